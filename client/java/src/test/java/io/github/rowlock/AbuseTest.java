package io.github.rowlock;

import static io.github.rowlock.ClientTest.but;
import static io.github.rowlock.ClientTest.client;
import static io.github.rowlock.ClientTest.deletes;
import static io.github.rowlock.ClientTest.get;
import static io.github.rowlock.ClientTest.waitFor;
import static io.github.rowlock.Conformance.check;

import io.github.rowlock.ClientTest.Node;
import io.github.rowlock.ClientTest.Said;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** Programs and gateways that do what they should not. {@link ClientTest} runs these tests. */
final class AbuseTest {
    private static final String PAGE = "<html>\r\n<head><title>%s</title></head>\r\n<body>%s</body></html>";

    private AbuseTest() {
    }

    private static final List<Consumer<CompletableFuture<Guard>>> COMPLETIONS = List.of(
        future -> future.orTimeout(1, TimeUnit.MILLISECONDS),
        future -> future.completeOnTimeout(null, 1, TimeUnit.MILLISECONDS),
        future -> future.completeExceptionally(new IllegalStateException("stop")),
        future -> future.complete(null),
        future -> future.cancel(false),
        future -> future.obtrudeValue(null),
        future -> future.obtrudeException(new Error("stop")));

    static void anyCompletionOfAnAttemptThatWaitsGivesThePlaceBack() throws Exception {
        for (var completion : COMPLETIONS) {
            try (var node = new Node(but("/acquire", ClientTest::waits))) {
                var position = new CompletableFuture<Integer>();
                var attempt = client(node).lock("a").onWaiting(position::complete).acquireAsync();
                get(position);
                completion.accept(attempt);
                waitFor(() -> deletes(node) == 1, node.seen);
            }
        }
    }

    static void anyCompletionBeforeTheLeaseIsOpenAsksForNoLock() throws Exception {
        for (var completion : COMPLETIONS) {
            var opens = new CompletableFuture<Void>();
            try (var node = new Node((path, body, count) -> {
                if (path.equals("/v1/leases")) {
                    get(opens);
                }
                return ClientTest.works(path, body, count);
            })) {
                var attempt = client(node).lock("a").acquireAsync();
                waitFor(() -> !node.seen.isEmpty(), node.seen);
                completion.accept(attempt);
                waitFor(attempt::isDone, attempt);
                opens.complete(null);
                check(client(node).lock("b").acquire().release(), node.seen);
                check(node.all("/a/acquire").isEmpty(), node.seen);
            }
        }
    }

    static void aGuardThatIsObtrudedIsGivenBackAndOneThatIsHeldStays() throws Exception {
        try (var node = new Node(ClientTest::works)) {
            var attempt = client(node).lock("a").acquireAsync();
            var guard = get(attempt);
            check(!attempt.complete(null) && !attempt.cancel(true) && !guard.isLost(), guard);
            attempt.obtrudeValue(null);
            waitFor(() -> guard.isLost() && deletes(node) == 1, node.seen);
        }
    }

    @SuppressWarnings("unchecked")
    private static <E extends Throwable> void raise(Throwable error) throws E {
        throw (E) error;
    }

    static void whateverOnWaitingThrowsGivesThePlaceBack() throws Exception {
        for (var thrown : List.of(new AssertionError("no"), new Exception("checked"), new StackOverflowError())) {
            try (var node = new Node(but("/acquire", ClientTest::waits))) {
                var request = client(node).lock("a").onWaiting(position -> AbuseTest.<RuntimeException>raise(thrown));
                try {
                    throw new IllegalStateException("held " + request.acquire());
                } catch (RowlockException expected) {
                    check(expected.getCause() == thrown, expected);
                }
                check(deletes(node) == 1, node.seen);
            }
        }
    }

    private static RowlockException fails(Node node, Duration timeout) throws InterruptedException {
        try {
            var request = client(node).lock("a");
            throw new AssertionError((timeout == null ? request : request.timeout(timeout)).acquire());
        } catch (RowlockException expected) {
            return expected;
        }
    }

    static void theStatusAndTheFirstLineOfAGatewaysPageAreSaidAndFinalOnesEndTheAttempt() throws Exception {
        for (var entry : Map.of(400, "400 Plain HTTP to an HTTPS port", 401, "401 Sign in", 403, "403 No entry")
            .entrySet()) {
            var page = PAGE.formatted(entry.getValue(), "at the gateway");
            try (var node = new Node((path, body, count) -> new Said(entry.getKey(), page))) {
                var refused = fails(node, null);
                check(refused instanceof RefusedException one && one.status() == entry.getKey(), refused);
                check(refused.getMessage().contains(entry.getValue()) && node.seen.size() == 1, refused);
            }
        }
        for (int status : List.of(404, 429, 502, 503)) {
            var page = PAGE.formatted("Not now", "");
            try (var node = new Node((path, body, count) -> new Said(status, page))) {
                var late = fails(node, Duration.ofSeconds(1));
                check(late instanceof TimedOutException && late.getMessage().contains(status + " Not now"), late);
            }
        }
        try (var node = new Node((path, body, count) -> new Said(404, ""))) {
            long began = Clock.now();
            var refused = fails(node, null);
            check(refused instanceof RefusedException one && one.status() == 404, refused);
            check(Clock.now() - began >= Transport.STRANGE_MAX, refused);
        }
    }

    static void namesThatAreNoTextAndTimesThatAreNoneAreRefused() throws Exception {
        try (var node = new Node(ClientTest::works)) {
            var attempts = new ArrayList<Runnable>(List.of(
                () -> client(node).lock("a\ud800"), () -> client(node).lock("\udc00/b"),
                () -> client(node).election("\ud800"), () -> client(node).watchLock("/locks/\ud800"),
                () -> client(node).lock("a").label("\ud800").acquireAsync().join()));
            for (var ttl : List.of(Duration.ZERO, Duration.ofNanos(1), Duration.ofSeconds(-1), Duration.ofSeconds(Long.MAX_VALUE))) {
                attempts.add(() -> Rowlock.builder(node.url()).ttl(ttl));
            }
            for (var url : List.of("ftp://h", "http://", "h:1", "http://a_b:1", "http://u:p@h", "http://h?a=b", "http://h/#a", "http://h/{")) {
                attempts.add(() -> Rowlock.connect(url));
            }
            for (int at = 0; at < attempts.size(); at++) {
                try {
                    attempts.get(at).run();
                } catch (IllegalArgumentException expected) {
                    continue;
                } catch (java.util.concurrent.CompletionException wrapped) {
                    check(wrapped.getCause() instanceof IllegalArgumentException, wrapped);
                    continue;
                }
                throw new AssertionError("attempt " + at + " was not refused");
            }
            check(client(node).lock("a\ud83d\ude00").acquire().release(), "a whole pair");
            check(!node.all("/a%F0%9F%98%80/release").isEmpty(), node.seen);
        }
    }

    static void thePathOfAUrlStandsBeforeThatOfEachRequest() throws Exception {
        try (var node = new Node((path, body, count) -> path.startsWith("/gw/a%20b/v1/")
            ? ClientTest.works(path.substring("/gw/a%20b".length()), body, count) : new Said(404, "elsewhere"))) {
            var url = node.url().replace("http", "HTTP") + "/gw/a%20b//";
            check(Rowlock.connect(url).lock("a").acquire().release(), node.seen);
            check(node.all("/gw/a%20b/v1/locks/a/release").size() == 1, node.seen);
        }
    }

    static void tokensAndAnswersOfAnotherShapeAreNoAnswers() throws Exception {
        for (var strange : List.of("[".repeat(5_000), "{\"a\":".repeat(5_000), "null", "\"held\"", "{\"lease\":{},\"secret\":[]}",
            "{\"state\":\"held\",\"token\":7}", "{\"state\":\"held\",\"token\":\"+7\"}", "{\"state\":\"held\",\"token\":\"" + "9".repeat(40) + "\"}",
            "{\"state\":[\"held\"]}", "{\"lease\":\"0x1\",\"secret\":\"s\",\"ttl_ms\":1e999}")) {
            try (var other = new Node((path, body, count) -> new Said(path.equals("/v1/leases") ? 201 : 200, strange));
                 var good = new Node(ClientTest::works)) {
                check(client(other, good).lock("a").timeout(Duration.ofSeconds(60)).acquire().release(), strange);
            }
        }
    }

    /** Watches at a node that sends this and then nothing more, and at one that works. */
    private static void watchesPast(String sent) throws Exception {
        try (var silent = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
            var good = new Node((path, body, count) -> new Said(200, "id: 7\nevent: acquired\ndata: {}\n\n"))) {
            var held = new ArrayList<Socket>();
            var accepts = new Thread(() -> {
                try {
                    while (true) {
                        var socket = silent.accept();
                        held.add(socket);
                        socket.getOutputStream().write(sent.getBytes(StandardCharsets.US_ASCII));
                    }
                } catch (IOException closed) {
                    // The test is over.
                }
            });
            accepts.setDaemon(true);
            accepts.start();
            var received = new CompletableFuture<String>();
            var watch = Rowlock.builder("http://127.0.0.1:" + silent.getLocalPort() + "," + good.url()).build()
                .watchLock("/locks/a");
            var watches = new Thread(() -> {
                try {
                    watch.run(event -> !received.complete(event.id()));
                } catch (Throwable error) {
                    received.completeExceptionally(error);
                }
            });
            watches.setDaemon(true);
            watches.start();
            check("7".equals(received.get(60, TimeUnit.SECONDS)), sent);
        }
    }

    static void aWatchGoesOnWhenANodeSendsNoHead() throws Exception {
        watchesPast("");
    }

    static void aWatchGoesOnWhenARefusalNeverEnds() throws Exception {
        watchesPast("HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\n{");
    }
}
