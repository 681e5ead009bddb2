package io.github.rowlock;

import static io.github.rowlock.ClientTest.SHORT_MS;
import static io.github.rowlock.ClientTest.but;
import static io.github.rowlock.ClientTest.client;
import static io.github.rowlock.ClientTest.waitFor;
import static io.github.rowlock.ClientTest.works;
import static io.github.rowlock.Conformance.check;

import io.github.rowlock.ClientTest.Node;
import io.github.rowlock.ClientTest.Said;
import io.github.rowlock.LockObserver.Outcome;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.UnaryOperator;

/** What an observer gets, and locks that the program keeps by itself. {@link ClientTest} runs them. */
final class ObserverTest {
    private static final long TTL_MS = 60_000;
    /** What a client counts on of a lease. */
    private static final Duration RELIABLE = Duration.ofMillis(SHORT_MS * 9 / 10);
    private static final Said WAITING = new Said(202, "{\"state\":\"waiting\",\"position\":2}");

    private ObserverTest() {
    }

    /** Keeps everything. */
    private static final class Record implements LockObserver {
        private int inProgress;
        private final List<String> names = new ArrayList<>();
        private final List<Wait> waits = new ArrayList<>();
        private final List<Hold> holds = new ArrayList<>();

        @Override
        public synchronized void waiting(String name, String lock) {
            inProgress++;
            names.add(name);
        }

        @Override
        public synchronized void waited(Wait wait) {
            inProgress--;
            waits.add(wait);
        }

        @Override
        public synchronized void held(Hold hold) {
            holds.add(hold);
        }

        synchronized int inProgress() {
            return inProgress;
        }

        synchronized List<Wait> waits() {
            return List.copyOf(waits);
        }

        synchronized List<Hold> holds() {
            return List.copyOf(holds);
        }
    }

    private static Rowlock observed(Node node, LockObserver observer) {
        return Rowlock.builder(node.url()).ttl(Duration.ofMillis(TTL_MS)).observer(observer).build();
    }

    private static boolean isBetween(Duration found, long leastMs, long mostNanos) {
        return found.toMillis() >= leastMs && found.toNanos() <= mostNanos;
    }

    static void aWaitEndsAtTheGrantAndAHoldAtTheRelease() throws Exception {
        var seen = new Record();
        try (var node = new Node(but("/acquire", (path, body, count) -> {
            Thread.sleep(500);
            return new Said(200, "{\"state\":\"held\",\"token\":\"7\",\"contended\":true}");
        }))) {
            long began = Clock.now();
            var guard = observed(node, seen).lock("a/1").metricsName("a").acquire();
            long granted = Clock.now();
            check(seen.inProgress() == 0 && seen.holds().isEmpty(), seen.holds());
            Thread.sleep(400);
            long released = Clock.now();
            guard.release();
            long ended = Clock.now();
            var wait = seen.waits().get(0);
            var hold = seen.holds().get(0);
            check(wait.equals(new LockObserver.Wait("a", "a/1", true, Outcome.GRANTED, wait.waited())), wait);
            check(isBetween(wait.waited(), 500, granted - began), wait);
            check(hold.equals(new LockObserver.Hold("a", "a/1", Outcome.RELEASED, hold.held())), hold);
            check(hold.held().toNanos() >= released - granted, hold);
            check(wait.waited().plus(hold.held()).toNanos() <= ended - began, "the wait and the hold share no moment");
        }
    }

    static void aPositionInTheQueueIsContentionAndAGrantAtOnceIsNone() throws Exception {
        var seen = new Record();
        var asked = new AtomicInteger();
        try (var node = new Node(but("/acquire", (path, body, count) ->
                asked.incrementAndGet() < 3 ? WAITING : works(path, body, count)))) {
            var cluster = observed(node, seen);
            cluster.lock("a").acquire().release();
            cluster.lock("a").acquire().release();
            var found = seen.waits();
            check(found.get(0).contended() && !found.get(1).contended() && found.get(0).name().equals("default"), found);
        }
    }

    private static void ends(Outcome outcome, boolean isContended, Said said, UnaryOperator<LockRequest> options)
            throws Exception {
        var seen = new Record();
        try (var node = new Node(but("/acquire", (path, body, count) -> {
            Thread.sleep(100);
            return said;
        }))) {
            try {
                options.apply(observed(node, seen).lock("a")).acquire();
                check(false, outcome);
            } catch (RuntimeException expected) {
                // The outcome says which.
            }
            var waits = seen.waits();
            check(seen.inProgress() == 0 && waits.size() == 1 && seen.holds().isEmpty(), waits);
            check(waits.get(0).outcome() == outcome && waits.get(0).contended() == isContended, waits);
            check(outcome != Outcome.TIMED_OUT || isBetween(waits.get(0).waited(), 3_000, 9 * Transport.SECOND), waits);
        }
    }

    static void eachAcquireHasOneOutcomeAndLeavesTheWaiting() throws Exception {
        UnaryOperator<LockRequest> plain = request -> request;
        var busy = new Said(200, "{\"state\":\"busy\"}");
        ends(Outcome.BUSY, true, busy, request -> request.timeout(Duration.ZERO));
        ends(Outcome.TIMED_OUT, true, WAITING, request -> request.timeout(Duration.ofSeconds(3)));
        ends(Outcome.LOST, false, new Said(404, "{}"), plain);
        ends(Outcome.REFUSED, false, new Said(422, "{\"title\":\"no\"}"), plain);
        ends(Outcome.FAILED, true, WAITING, request -> request.onWaiting(position -> {
            throw new IllegalStateException("no");
        }));
    }

    static void aFutureThatIsCanceledEndsItsWaitAndOneThatIsTakenBackItsHold() throws Exception {
        var seen = new Record();
        try (var waits = new Node(but("/acquire", (path, body, count) -> WAITING));
             var works = new Node(ClientTest::works)) {
            var inQueue = new CompletableFuture<Integer>();
            var attempt = observed(waits, seen).lock("a").onWaiting(inQueue::complete).acquireAsync();
            ClientTest.get(inQueue);
            attempt.cancel(true);
            var taken = observed(works, seen).lock("a").acquireAsync();
            ClientTest.get(taken);
            taken.obtrudeValue(null);
            var outcomes = seen.waits().stream().map(LockObserver.Wait::outcome).toList();
            check(outcomes.equals(List.of(Outcome.CANCELED, Outcome.GRANTED)) && seen.inProgress() == 0, outcomes);
            check(seen.holds().size() == 1 && seen.holds().get(0).outcome() == Outcome.RELEASED, seen.holds());
        }
    }

    static void theEndOfAnAttemptsLeaseIsNoPartOfItsWait() throws Exception {
        var seen = new Record();
        try (var node = new Node((path, body, count) -> {
            if (path.equals("/v1/leases/0x1")) {
                Thread.sleep(TTL_MS);
            }
            return path.endsWith("/acquire") ? new Said(200, "{\"state\":\"busy\"}") : works(path, body, count);
        })) {
            long began = Clock.now();
            check(observed(node, seen).lock("a").tryAcquire().isEmpty(), "it is held");
            long took = Clock.now() - began;
            check(took >= Transport.SECOND, took);
            check(seen.waits().get(0).waited().toNanos() < took - Transport.SECOND / 2, seen.waits());
        }
    }

    static void aLostHoldEndsAtTheDeadlineAlsoWhenTheProgramNoticesItLate() throws Exception {
        var seen = new Record();
        try (var node = new Node(works(SHORT_MS))) {
            var cluster = observed(node, seen);
            var kept = cluster.lock("a").acquire();
            var byHand = cluster.lock("b").keepAlive(false).acquire();
            kept.silence();
            long began = Clock.now();
            waitFor(() -> !seen.holds().isEmpty() && Clock.now() > began + SHORT_MS * Transport.MILLISECOND, seen.holds());
            // The program notices the second loss late.
            Thread.sleep(1_000);
            check(seen.holds().size() == 1, "something has looked at the second: " + seen.holds());
            check(kept.isLost() && byHand.isLost(), "it is held past its deadline");
            check(!kept.release() && !byHand.release(), "not held");
            waitFor(() -> seen.holds().size() == 2, seen.holds());
            for (var hold : seen.holds()) {
                check(hold.outcome() == Outcome.LOST, hold);
                check(isBetween(hold.held(), RELIABLE.toMillis() - 3_000, RELIABLE.toNanos()), hold);
            }
        }
    }

    static void namesBeyondTheBoundCountAsOneAndAnObserverThatFailsTakesNoLockAway() throws Exception {
        var seen = new Record();
        var metering = new Metering(seen);
        for (int at = 0; at < Metering.NAMES_MAX + 2; at++) {
            metering.begin("job-" + at, "a");
        }
        metering.begin("job-0", "a");
        metering.begin(null, "a");
        var last = seen.names.subList(Metering.NAMES_MAX - 1, Metering.NAMES_MAX + 4);
        check(last.equals(List.of("job-" + (Metering.NAMES_MAX - 1), "other", "other", "job-0", "default")), last);
        var fails = new LockObserver() {
            @Override
            public void waiting(String name, String lock) {
                throw new IllegalStateException("a test");
            }

            @Override
            public void held(Hold hold) {
                throw new IllegalStateException("a test");
            }
        };
        try (var node = new Node(ClientTest::works)) {
            var guard = observed(node, fails).lock("a").acquire();
            check(!guard.isLost() && guard.release(), guard);
        }
    }

    static void aLockWithoutATimerLivesByTheProgramsOwnKeepAlive() throws Exception {
        try (var node = new Node(works(SHORT_MS))) {
            var guard = client(node).lock("a").keepAlive(false).acquire();
            int asked = node.all("/keepalive").size();
            int calls = 0;
            for (long began = Clock.now(); Clock.now() < began + SHORT_MS * 3 / 2 * Transport.MILLISECOND; calls++) {
                check(guard.keepAlive() && !guard.isLost(), guard);
                Thread.sleep(SHORT_MS / 3);
            }
            check(node.all("/keepalive").size() == asked + calls, "a timer asks as well");
            long last = Clock.now();
            check(guard.keepAlive(), guard);
            waitFor(guard::isLost, guard);
            check(Clock.now() - last >= RELIABLE.toNanos(), Clock.now() - last);
            check(!guard.keepAlive(), "a lock that was lost comes back");
            ClientTest.get(guard.lost());
        }
    }

    static void aWaitWithoutATimerKeepsItsLeaseByItsOwnRequests() throws Exception {
        var asked = new AtomicInteger();
        try (var node = new Node((path, body, count) -> {
            if (path.endsWith("/acquire") && asked.incrementAndGet() < 6) {
                Thread.sleep(SHORT_MS / 3);
                return WAITING;
            }
            return works(SHORT_MS).answer(path, body, count);
        })) {
            var guard = client(node).lock("a").keepAlive(false).acquire();
            check(!guard.isLost() && guard.release(), guard);
        }
    }
}
