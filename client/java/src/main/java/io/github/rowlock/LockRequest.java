package io.github.rowlock;

import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.IntConsumer;

/**
 * What is asked for: a lock, several, or the lead of an election. Nothing is sent before an acquire. A request is not
 * changed by its methods, and may be used again, by many threads at once.
 */
public final class LockRequest {
    /** One request waits so long at most; the node itself answers after half of the lease's time. */
    private static final long WAIT_MAX = 30 * Transport.SECOND;
    /** A timeout of zero takes no place in the queue, but a node has to answer. */
    private static final long AT_ONCE = 15 * Transport.SECOND;
    /** One request waits so long at least, unless less is left. */
    private static final long WAIT_MIN = 50 * Transport.MILLISECOND;
    private static final SecureRandom RANDOM = new SecureRandom();

    /** Where a request goes: it is asked for, given back and verified, in the order of the tokens. Observers get the name. */
    record Target(
        String name, String ask, List<String> release, List<String> verify, Map<String, Object> body, boolean again
    ) {
    }

    /** What a request has beside its body. */
    private record Options(Duration timeout, IntConsumer onWaiting, String metricsName, boolean keeps) {
    }

    final Transport transport;
    private final long ttl;
    private final Metering metering;
    private final Target target;
    private final Options options;

    LockRequest(Transport transport, long ttl, Metering metering, Target target) {
        this(transport, ttl, metering, target, new Options(null, position -> { }, null, true));
    }

    private LockRequest(Transport transport, long ttl, Metering metering, Target target, Options options) {
        this.transport = transport;
        this.ttl = ttl;
        this.metering = metering;
        this.target = target;
        this.options = options;
    }

    private LockRequest with(Options changed) {
        return new LockRequest(transport, ttl, metering, target, changed);
    }

    LockRequest with(String field, Object value) {
        var body = new LinkedHashMap<>(target.body);
        body.put(field, value);
        var changed = new Target(target.name, target.ask, target.release, target.verify, body, target.again);
        return new LockRequest(transport, ttl, metering, changed, options);
    }

    /**
     * With whom a lock is shared; for several locks it stands in each {@link Part}.
     *
     * @param mode exclusive if it is left out
     * @return the request
     */
    public LockRequest mode(Mode mode) {
        return with("mode", mode == Mode.SHARED ? "shared" : "exclusive");
    }

    /**
     * Makes it a semaphore.
     *
     * @param permits how many are wanted
     * @param limit how many it has; 0: as many as it has
     * @return the request
     */
    public LockRequest permits(int permits, int limit) {
        var wanted = with("mode", "permits").with("permits", permits);
        return limit > 0 ? wanted.with("limit", limit) : wanted;
    }

    /**
     * For deadlock detection: attempts of one owner are one program's that does one thing at a time.
     *
     * @param owner its name
     * @return the request
     */
    public LockRequest owner(String owner) {
        return with("owner", owner);
    }

    /**
     * What people see in the queue.
     *
     * @param label up to 256 bytes
     * @return the request
     */
    public LockRequest label(String label) {
        return with("label", label);
    }

    /**
     * The least time from this grant to the next one, also when the lock is released before or its holder dies.
     *
     * @param minHold at most 31 days
     * @return the request
     */
    public LockRequest minHold(Duration minHold) {
        return with("min_hold_ms", minHold.toMillis());
    }

    /**
     * How long to wait; without end if it is left out. It is kept also where nodes do not answer.
     *
     * @param timeout zero: takes no place in the queue
     * @return the request
     */
    public LockRequest timeout(Duration timeout) {
        return with(new Options(timeout, options.onWaiting, options.metricsName, options.keeps));
    }

    /**
     * Is called with the position in the queue each time the cluster tells it.
     *
     * @param onWaiting must not block; what it throws ends the attempt
     * @return the request
     */
    public LockRequest onWaiting(IntConsumer onWaiting) {
        return with(new Options(options.timeout, onWaiting, options.metricsName, options.keeps));
    }

    /**
     * What a {@link LockObserver} gets as the name.
     *
     * @param metricsName one of a few, such as {@code orders}, not of one for each lock; {@code default} if it is left
     *     out. A client has at most 100; those beyond count as {@code other}
     * @return the request
     */
    public LockRequest metricsName(String metricsName) {
        return with(new Options(options.timeout, options.onWaiting, metricsName, options.keeps));
    }

    /**
     * Whether a timer keeps the lock. Without it call {@link Guard#keepAlive} in time: nothing notices that the program
     * is late, and {@link Guard#lost} does not complete before the program has called {@link Guard#isLost}.
     *
     * @param keeps true if it is left out
     * @return the request
     */
    public LockRequest keepAlive(boolean keeps) {
        return with(new Options(options.timeout, options.onWaiting, options.metricsName, keeps));
    }

    /**
     * Waits for the lock. An interrupt, a timeout and an error give the place in the queue back. The thread is parked
     * and nothing is pinned: a virtual thread will do.
     *
     * @return what is held
     * @throws InterruptedException the thread was interrupted
     * @throws BusyException another client has it, and the timeout was zero
     * @throws TimedOutException not granted in time
     * @throws LeaseOverException the place in the queue was lost: no node was reached for a lease's time
     * @throws RefusedException the cluster does not allow it
     */
    public Guard acquire() throws InterruptedException {
        var attempt = acquireAsync();
        try {
            return waited(attempt);
        } catch (InterruptedException interrupt) {
            // The grant may have come between the interrupt and the cancel.
            attempt.thenAccept(Guard::releaseAsync);
            throw interrupt;
        }
    }

    /**
     * Takes the lock if it is free. It takes no place in the queue.
     *
     * @return empty: another client has it
     * @throws InterruptedException the thread was interrupted
     */
    public Optional<Guard> tryAcquire() throws InterruptedException {
        try {
            return Optional.of(timeout(Duration.ZERO).acquire());
        } catch (BusyException busy) {
            return Optional.empty();
        }
    }

    /**
     * As {@link #acquire}, without a thread that waits. Completing the future in any way ({@code cancel},
     * {@code orTimeout}, {@code completeOnTimeout}, {@code obtrudeValue} ..) gives back the place in the queue, or the
     * lock. Futures that depend on it have no such effect.
     *
     * @return completes with what is held, or with an error of {@link #acquire}
     */
    public CompletableFuture<Guard> acquireAsync() {
        return new Attempt().begin();
    }

    /** Its result; an interrupt cancels it. */
    static <T> T waited(CompletableFuture<T> future) throws InterruptedException {
        try {
            return future.get();
        } catch (InterruptedException interrupt) {
            future.cancel(true);
            throw interrupt;
        } catch (ExecutionException error) {
            throw unwrapped(error.getCause());
        }
    }

    static RuntimeException unwrapped(Throwable error) {
        var cause = error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
        if (cause instanceof RowlockException known) {
            // The stack of the caller, and not only that of a thread of ours.
            known.addSuppressed(new RowlockException("asked for here"));
            return known;
        }
        return cause instanceof RuntimeException other ? other : new RowlockException(cause.toString(), cause);
    }

    static String requestId() {
        var bytes = new byte[16];
        RANDOM.nextBytes(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    /** One attempt: it makes a lease, asks until it is told, and leaves no place behind. */
    private final class Attempt {
        private final Duration timeout = options.timeout;
        private final boolean isWaiting = timeout == null || !timeout.isZero();
        private final long until = timeout == null ? Transport.FOREVER
            : Clock.now() + (timeout.isZero() ? AT_ONCE : Math.max(1, nanos(timeout)));
        private final Metering.Measure measure = metering.begin(options.metricsName, target.name);
        private final Result result = new Result();
        /** The guard or the error with which this attempt completes its result. Any other is a program's. */
        private volatile Object outcome;
        private volatile CompletableFuture<?> current;
        private volatile Lease lease;
        private String requestId = requestId();

        private static long nanos(Duration duration) {
            try {
                return Math.min(duration.toNanos(), Transport.FOREVER / 4);
            } catch (ArithmeticException e) {
                return Transport.FOREVER / 4;
            }
        }

        CompletableFuture<Guard> begin() {
            result.whenComplete((guard, error) -> {
                if (outcome == null || guard != outcome && error != outcome) {
                    giveUp();
                }
            });
            open();
            return result;
        }

        private void giveUp() {
            measure.endWait(LockObserver.Outcome.CANCELED);
            measure.endHold(LockObserver.Outcome.RELEASED, Clock.now());
            if (current != null) {
                current.cancel(true);
            }
            if (lease != null) {
                lease.end();
            }
        }

        /** Takes the guard back when its value is replaced, also after a grant. */
        private final class Result extends CompletableFuture<Guard> {
            @Override
            public void obtrudeValue(Guard value) {
                outcome = null;
                super.obtrudeValue(value);
                giveUp();
            }

            @Override
            public void obtrudeException(Throwable error) {
                outcome = null;
                super.obtrudeException(error);
                giveUp();
            }
        }

        private void open() {
            if (result.isDone()) {
                return;
            }
            var opening = Lease.open(transport, ttl, until, options.keeps);
            current = opening;
            opening.whenComplete((opened, error) -> {
                if (error != null) {
                    fail(error);
                    return;
                }
                lease = opened;
                // Invariant: a lease that is opened after the end of its attempt is ended at once.
                if (result.isDone()) {
                    opened.end();
                } else {
                    // The lease was opened meanwhile: an earlier release of these locks costs no round trip.
                    transport.behind(target.release, until).thenRun(this::ask);
                }
            });
        }

        private void fail(Throwable error) {
            var known = error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
            outcome = known;
            measure.endWait(Metering.outcome(known));
            if (lease == null) {
                transport.workers.execute(() -> result.completeExceptionally(known));
            } else {
                lease.end().whenCompleteAsync((done, none) -> result.completeExceptionally(known), transport.workers);
            }
        }

        private void ask() {
            if (options.keeps || result.isDone()) {
                request();
                return;
            }
            // Each answer comes within half of the lease's time.
            var kept = lease.keepAlive();
            current = kept;
            kept.whenComplete((isKept, error) -> request());
        }

        private void request() {
            long left = until == Transport.FOREVER ? Transport.FOREVER : until - Clock.now();
            if (result.isDone()) {
                return;
            }
            if (left <= 0) {
                fail(new TimedOutException("the lock was not granted in time"));
                return;
            }
            if (lease.isLost()) {
                fail(new LeaseOverException("the lease is over"));
                return;
            }
            long share = Math.max(WAIT_MIN, transport.share(until));
            // Invariant: all requests of an attempt wait, or none does; the server takes them for one then.
            long wait = 0;
            if (isWaiting) {
                long most = Math.min(Math.min(left, WAIT_MAX), Math.min(lease.ttl / 2, share));
                wait = Math.max(1, TimeUnit.NANOSECONDS.toMillis(most));
            }
            var body = new LinkedHashMap<>(target.body);
            body.put("secret", lease.secret);
            body.put("request_id", requestId);
            body.put("wait_ms", wait);
            long each = TimeUnit.MILLISECONDS.toNanos(wait)
                + Math.min(Transport.ANSWER_MAX, Math.min(lease.ttl / 3, share));
            var bounds = new Transport.Bounds(Math.min(until, lease.deadline()), each, this::isStanding);
            var call = transport.call(new Transport.Request("POST", target.ask, body), bounds);
            current = call;
            if (result.isDone()) {
                call.cancel(true);
            }
            call.whenComplete((answer, error) -> {
                try {
                    if (error == null) {
                        judge(answer);
                    } else if (error instanceof TimedOutException) {
                        // The lease's timer may have moved its deadline meanwhile.
                        ask();
                    } else if (!(error instanceof CancellationException)) {
                        fail(error);
                    }
                } catch (Throwable thrown) {
                    // Also an error or a checked exception of the program's onWaiting.
                    fail(thrown);
                }
            });
        }

        private void judge(Answer answer) {
            var state = answer.text("state");
            measure.answered(answer);
            if ("gone".equals(state) && target.again && !lease.isLost()) {
                requestId = requestId();
                transport.after(Transport.PAUSE, this::ask);
            } else if (answer.status() == 404 || "gone".equals(state)) {
                fail(new LeaseOverException("the place in the queue was taken away"));
            } else if ("busy".equals(state)) {
                fail(new BusyException(Holder.of(holder(answer))));
            } else if ("held".equals(state)) {
                hold(answer);
            } else {
                var position = answer.number("position");
                if (position != null) {
                    options.onWaiting.accept(position.intValue());
                }
                ask();
            }
        }

        private void hold(Answer answer) {
            if (lease.isLost()) {
                fail(new LeaseOverException("the lease has ended before the answer came"));
                return;
            }
            measure.endWait(LockObserver.Outcome.GRANTED);
            var guard = new Guard(lease, target, tokens(answer), answer, measure);
            outcome = guard;
            transport.workers.execute(() -> {
                if (!result.complete(guard)) {
                    // The program has completed it meanwhile.
                    giveUp();
                }
            });
        }

        private Object holder(Answer answer) {
            for (var part : answer.list("locks")) {
                if (part instanceof Map<?, ?> fields && "busy".equals(fields.get("state"))) {
                    return fields.get("holder");
                }
            }
            return answer.document().get("holder");
        }

        private boolean isStanding(Answer answer) {
            var state = String.valueOf(answer.text("state"));
            return switch (state) {
                case "held" -> answer.status() == 200 && tokens(answer).size() == target.release.size();
                case "waiting" -> answer.status() == 202;
                case "busy", "gone" -> answer.status() == 200;
                default -> answer.status() == 404;
            };
        }

        /** Those that are numbers. */
        private static List<Long> tokens(Answer answer) {
            var tokens = new ArrayList<Long>();
            var parts = answer.list("locks");
            for (var part : parts.isEmpty() ? List.of(answer.document()) : parts) {
                var token = part instanceof Map<?, ?> fields ? Answer.token(fields.get("token")) : null;
                if (token != null) {
                    tokens.add(token);
                }
            }
            return tokens;
        }
    }
}
