package io.github.rowlock;

import static io.github.rowlock.ClientTest.but;
import static io.github.rowlock.ClientTest.client;
import static io.github.rowlock.ClientTest.get;
import static io.github.rowlock.ClientTest.waitFor;
import static io.github.rowlock.ClientTest.works;
import static io.github.rowlock.Conformance.check;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Releases that nothing waits for. {@link ClientTest} runs them. */
final class ReleaseTest {
    private ReleaseTest() {
    }

    /** Releases of the lock {@code a} wait. */
    private static ClientTest.Script slow(CompletableFuture<Void> letGo) {
        return but("/a/release", (path, body, count) -> {
            get(letGo);
            return works(path, body, count);
        });
    }

    static void theEndOfTryWaitsForNoRelease() throws Exception {
        var letGo = new CompletableFuture<Void>();
        try (var node = new ClientTest.Node(slow(letGo))) {
            var cluster = client(node);
            Guard kept;
            try (var guard = cluster.lock("a").acquire()) {
                kept = guard;
            }
            check(kept.isLost() && !kept.release(), "a second request");
            waitFor(() -> node.all("/a/release").size() == 1, node.seen);
            var flushing = CompletableFuture.runAsync(() -> {
                try {
                    cluster.flush();
                } catch (InterruptedException error) {
                    throw new AssertionError(error);
                }
            });
            Thread.sleep(20);
            check(!flushing.isDone() && node.all("/leases/0x1").isEmpty(), node.seen);
            letGo.complete(null);
            get(flushing);
            check(node.all("/leases/0x1").size() == 1, node.seen);
        }
    }

    static void anAttemptOpensItsLeaseWhileTheReleaseOfItsLockIsUnderWay() throws Exception {
        var letGo = new CompletableFuture<Void>();
        try (var node = new ClientTest.Node(slow(letGo))) {
            var cluster = client(node);
            cluster.lock("a").acquire().close();
            var next = cluster.lock("a").acquireAsync();
            waitFor(() -> node.all("/v1/leases").size() == 2, node.seen);
            check(node.all("/acquire").size() == 1, node.seen);
            letGo.complete(null);
            check(get(next).release(), node.seen);
        }
    }

    static void anAttemptDoesNotWaitForTheEndOfTheLeaseBefore() throws Exception {
        var ended = new CompletableFuture<Void>();
        try (var node = new ClientTest.Node(but("/v1/leases/0x1", (path, body, count) -> {
            get(ended);
            return works(path, body, count);
        }))) {
            var cluster = client(node);
            for (int cycle = 0; cycle < 9; cycle++) {
                cluster.lock("a").acquire().close();
            }
            check(cluster.lock("a").acquire() != null && !ended.isDone(), node.seen);
            ended.complete(null);
        }
    }

    static void anUnwaitedReleaseIsRepeatedAndItsFailureIsReported() throws Exception {
        reports(List.of(new ClientTest.Said(503, "{}"), new ClientTest.Said(200, "{}"),
            new ClientTest.Said(200, "{\"released\":true}")), null);
        var notHeld = "a b: it was not held any more at its release";
        reports(List.of(new ClientTest.Said(200, "{\"released\":false}")), notHeld);
        reports(List.of(new ClientTest.Said(404, "{}")), notHeld);
        reports(List.of(new ClientTest.Said(403, "{\"title\":\"no\"}")),
            "a b: cannot release it; it is free when its lease ends: ");
    }

    private static void reports(List<ClientTest.Said> answers, String says) throws Exception {
        var reported = Collections.synchronizedList(new ArrayList<String>());
        var left = new ArrayList<>(answers);
        try (var node = new ClientTest.Node(but("/release", (path, body, count) -> left.remove(0)))) {
            var cluster = Rowlock.builder(node.url()).ttl(Duration.ofMinutes(1))
                .onUnreleased((lock, error) -> reported.add(lock + ": " + error.getMessage())).build();
            cluster.lock("a b").acquire().close();
            cluster.flush();
            if (says != null) {
                waitFor(() -> !reported.isEmpty(), node.seen);
            }
            check(says == null ? reported.isEmpty() : reported.get(0).startsWith(says), reported);
            check(reported.size() <= 1 && left.isEmpty(), node.seen);
        }
    }

    static void aReleaseBeyondTheBoundOfUnwaitedOnesIsWaitedFor() throws Exception {
        var letGo = new CompletableFuture<Void>();
        try (var node = new ClientTest.Node(slow(letGo))) {
            var request = client(node).lock("a");
            var guard = request.acquire();
            var others = new CompletableFuture<Void>();
            for (int done = 0; done < Transport.UNWAITED_MAX; done++) {
                request.transport.later(List.of(), others, others.copy());
            }
            var closing = CompletableFuture.runAsync(guard::close);
            waitFor(() -> node.all("/a/release").size() == 1, node.seen);
            Thread.sleep(20);
            check(!closing.isDone() && guard.isLost(), node.seen);
            letGo.complete(null);
            get(closing);
            others.complete(null);
        }
    }
}
