package io.github.rowlock;

import static io.github.rowlock.Conformance.check;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;

/**
 * What the client does when nodes fail: against nodes of this file, which answer as they are told. Leases are long,
 * and what must happen is waited for, so that a slow machine is no failure.
 */
public final class ClientTest {
    private static final long TTL_MS = 60_000;
    /** Of leases whose end is waited for: short, but seconds longer than a slow machine needs for a request. */
    static final long SHORT_MS = 9_000;
    private static final String HELD = held(TTL_MS);

    private ClientTest() {
    }

    record Said(int status, String text) {
    }

    interface Script {
        Said answer(String path, Map<?, ?> body, int count) throws Exception;
    }

    record Seen(String method, String path, Map<?, ?> body, Map<String, List<String>> headers, String text) {
        Object field(String name) {
            return body.get(name);
        }
    }

    static final class Node implements AutoCloseable {
        final HttpServer server;
        final List<Seen> seen = Collections.synchronizedList(new ArrayList<>());
        /** What it names as the leader's address. */
        volatile String leader;

        Node(Script script) throws IOException {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
            server.setExecutor(Executors.newCachedThreadPool(work -> {
                var thread = new Thread(work);
                thread.setDaemon(true);
                return thread;
            }));
            server.createContext("/", exchange -> answer(script, exchange));
            server.start();
        }

        private void answer(Script script, HttpExchange exchange) throws IOException {
            var text = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            var isJson = "application/json".equals(exchange.getRequestHeaders().getFirst("Content-Type"));
            var body = text.isEmpty() || !isJson ? Map.of() : (Map<?, ?>) Json.parse(text);
            var path = exchange.getRequestURI().toString();
            seen.add(new Seen(exchange.getRequestMethod(), path, body, exchange.getRequestHeaders(), text));
            try {
                var said = script.answer(path, body, seen.size());
                var bytes = said.text.getBytes(StandardCharsets.UTF_8);
                if (leader != null) {
                    exchange.getResponseHeaders().set("Rowlock-Leader", leader);
                }
                exchange.sendResponseHeaders(said.status, bytes.length == 0 ? -1 : bytes.length);
                exchange.getResponseBody().write(bytes);
            } catch (Exception error) {
                // It hangs up.
            }
            exchange.close();
        }

        String url() {
            return "http://127.0.0.1:" + server.getAddress().getPort();
        }

        List<Seen> all(String end) {
            return List.copyOf(seen).stream().filter(one -> one.path.endsWith(end)).toList();
        }

        @Override
        public void close() {
            server.stop(0);
        }
    }

    private static String held(long ttlMs) {
        return "{\"state\":\"held\",\"token\":\"9007199254740993\",\"valid_for_ms\":" + ttlMs + "}";
    }

    static Script works(long ttlMs) {
        return (path, body, count) -> {
            if (path.equals("/v1/leases")) {
                return new Said(201, "{\"lease\":\"0x1\",\"secret\":\"s\",\"ttl_ms\":" + ttlMs + "}");
            } else if (path.endsWith("/acquire")) {
                return new Said(200, held(ttlMs));
            } else if (path.equals("/v1/leases/0x1")) {
                return new Said(204, "");
            } else if (path.endsWith("/keepalive")) {
                return new Said(200, "{\"valid_for_ms\":" + ttlMs + "}");
            }
            return new Said(200, "{\"released\":true,\"held\":true}");
        };
    }

    static Said works(String path, Map<?, ?> body, int count) throws Exception {
        return works(TTL_MS).answer(path, body, count);
    }

    static Script but(String end, Script other) {
        return but(TTL_MS, end, other);
    }

    private static Script but(long ttlMs, String end, Script other) {
        return (path, body, count) ->
            path.endsWith(end) ? other.answer(path, body, count) : works(ttlMs).answer(path, body, count);
    }

    /** What must happen, on a machine of any speed. */
    static <T> T get(Future<T> future) throws Exception {
        return future.get(60, TimeUnit.SECONDS);
    }

    static void waitFor(BooleanSupplier what, Object seen) throws InterruptedException {
        long until = Clock.now() + 60 * Transport.SECOND;
        while (!what.getAsBoolean()) {
            check(Clock.now() < until, seen);
            Thread.sleep(5);
        }
    }

    static Rowlock client(Node... nodes) {
        var urls = String.join(",", List.of(nodes).stream().map(Node::url).toList());
        return Rowlock.builder(urls).ttl(Duration.ofMillis(TTL_MS)).build();
    }

    static void aClientByTheEnvironmentHasNodesTokenAndAuthorities() throws Exception {
        try (var node = new Node(ClientTest::works)) {
            var env = Map.of("ROWLOCK_API", node.url() + ",http://127.0.0.1:1", "ROWLOCK_TOKEN", "t", "ROWLOCK_TLS_CA", "");
            Rowlock.fromEnv(env).lock("a").acquire().release();
            check(List.of("Bearer t").equals(node.seen.get(0).headers().get("Authorization")), node.seen);
        }
        for (var file : List.of("/none/ca.pem", "pom.xml")) {
            try {
                Rowlock.fromEnv(Map.of("ROWLOCK_TLS_CA", file));
                check(false, "a client without authorities");
            } catch (IllegalArgumentException error) {
                check(error.getMessage().contains(file), error);
            }
        }
    }

    static void aReleaseThatIsNotWaitedForStaysInFrontOfTheNextRequestForItsLock() throws Exception {
        var letGo = new CompletableFuture<Void>();
        try (var node = new Node(but("/a/release", (path, body, count) -> {
            get(letGo);
            return works(path, body, count);
        }))) {
            var cluster = client(node);
            var released = cluster.lock("a").acquire().releaseAsync();
            var next = cluster.lock("a").acquireAsync();
            var cancelled = cluster.lock("a").acquireAsync();
            check(cluster.lock("b").acquire().release(), "another lock waits");
            check(cancelled.cancel(true) && node.all("/a/acquire").size() == 1, node.seen);
            try {
                cluster.lock("a").timeout(Duration.ofMillis(20)).acquire();
                check(false, "it overtook the release");
            } catch (TimedOutException expected) {
                letGo.complete(null);
            }
            check(get(released) && get(next).release(), node.seen);
            check(node.all("/a/acquire").size() == 2, node.seen);
        }
    }

    static void attemptKeepsItsRequestIdAtTheNextNode() throws Exception {
        try (var fails = new Node(but("/acquire", (path, body, count) -> new Said(503, "{}")));
             var good = new Node(ClientTest::works)) {
            Guard kept;
            try (var guard = client(fails, good).lock("a/b").acquire()) {
                check(guard.token() == 9_007_199_254_740_993L && !guard.isLost(), guard);
                kept = guard;
            }
            check(kept.isLost() && get(kept.lost()) == null, kept);
            var one = fails.all("/acquire").get(0);
            var other = good.all("/v1/locks/a/b/acquire").get(0);
            check(one.field("request_id").equals(other.field("request_id")), other);
            waitFor(() -> !good.all("/v1/leases/0x1").isEmpty(), good.seen);
        }
    }

    static void aClientGoesToALeaderThatItKnowsAndOnlyNowAndThen() throws Exception {
        var leader = new Node(ClientTest::works);
        try (var first = new Node(ClientTest::works); var other = new Node(ClientTest::works);
             var stranger = new Node(ClientTest::works)) {
            first.leader = leader.url().substring("http://".length());
            var cluster = client(first, other, leader);
            check(cluster.lock("a").acquire().release() && cluster.lock("a").acquire().release(), "released");
            check(prefers(first, 0).equals(List.of(true)) && leader.seen.size() >= 7, leader.seen);
            // It dies, and is named again: that counts for nothing for a while.
            leader.close();
            check(cluster.lock("a").acquire().release(), "released");
            check(first.seen.size() >= 5 && !prefers(first, 1).contains(true), prefers(first, 0));

            first.leader = stranger.url().substring("http://".length());
            int asked = first.seen.size();
            check(client(first, other).lock("a").acquire().release(), "released");
            check(prefers(first, asked).subList(0, 2).equals(List.of(true, false)), prefers(first, asked));
            asked = first.seen.size();
            check(client(first).lock("a").acquire().release(), "released");
            check(first.seen.size() > asked && !prefers(first, asked).contains(true), "there is no other node");
            check(other.seen.isEmpty() && stranger.seen.isEmpty(), stranger.seen);
        }
        check(Transport.address(URI.create("https://Db1.Example")).equals("db1.example:443"), "of TLS");
        check(Transport.address(URI.create("http://[::1]:8481")).equals("[::1]:8481"), "of IPv6");
    }

    /** Whether each request from there on has asked for the leader. */
    private static List<Boolean> prefers(Node node, int from) {
        var seen = List.copyOf(node.seen);
        return seen.subList(from, seen.size()).stream().map(one -> one.headers.containsKey("Prefer")).toList();
    }

    /** Answers when it is told to. */
    private static Script hangs(CompletableFuture<?> until) {
        return (path, body, count) -> {
            get(until);
            return new Said(503, "{}");
        };
    }

    static void theEndOfTheCallersTimeIsNoFailureOfTheNode() throws Exception {
        var ended = new CompletableFuture<Void>();
        try (var hanging = new Node(hangs(ended)); var good = new Node(ClientTest::works)) {
            var nodes = List.of(URI.create(hanging.url()), URI.create(good.url()));
            var transport = new Transport(nodes, null, null, null, null);
            var request = new Transport.Request("POST", "/v1/leases", Map.of());
            long soon = Transport.SECOND;
            try {
                get(transport.call(request, new Transport.Bounds(Clock.now() + soon, 5 * soon, said -> true)));
                check(false, "answered");
            } catch (ExecutionException late) {
                check(late.getCause() instanceof TimedOutException, late);
            }
            check(good.seen.isEmpty(), good.seen);
            int asked = hanging.seen.size();
            var until = Clock.now() + 60 * Transport.SECOND;
            var answer = get(transport.call(request, new Transport.Bounds(until, soon, said -> true)));
            check(answer.status() == 201, answer);
            check(hanging.seen.size() > asked, "it is still the first to be asked");
            ended.complete(null);
        }
    }

    static void whatIsNotDocumentedIsNoAnswer() throws Exception {
        for (var strange : List.of(new Said(200, "{}"), new Said(200, ""), new Said(200, "[]"), new Said(200, "<html>"),
            new Said(302, ""), new Said(404, "no"), new Said(200, "{\"state\":\"held\",\"token\":null}"),
            new Said(200, "{\"state\":\"held\",\"token\":\"-7\"}"), new Said(200, "{\"valid_for_ms\":-5,\"released\":1}"),
            new Said(201, "{\"lease\":\"0x1\",\"secret\":\"s\",\"ttl_ms\":-1}"), new Said(200, "x".repeat(2 << 20)))) {
            try (var proxy = new Node((path, body, count) -> strange); var good = new Node(ClientTest::works)) {
                var guard = client(proxy, good).lock("a").timeout(Duration.ofSeconds(60)).acquire();
                check(guard.token() > 0 && guard.release(), strange);
            }
        }
    }

    static void timeoutIsKeptWhereNodesHang() throws Exception {
        var ended = new CompletableFuture<Void>();
        try (var node = new Node(hangs(ended))) {
            long began = Clock.now();
            try {
                client(node).lock("a").timeout(Duration.ofMillis(300)).acquire();
                throw new AssertionError("granted");
            } catch (TimedOutException late) {
                check(Clock.now() - began < Transport.ANSWER_MAX, late);
            }
            ended.complete(null);
        }
    }

    static void aLockIsLostWhenNoKeepAliveSucceeds() throws Exception {
        for (var answer : List.of(new Said(503, "{}"), new Said(200, "{\"valid_for_ms\":null}"))) {
            try (var node = new Node(but(SHORT_MS, "/keepalive", (path, body, count) -> answer))) {
                var guard = client(node).lock("a").acquire();
                long began = Clock.now();
                // Its deadline was counted from an earlier moment, and may not be passed by a single look.
                for (long now = began; !guard.isLost(); now = Clock.now()) {
                    check(now - began < SHORT_MS * Transport.MILLISECOND * 9 / 10, now - began);
                    Thread.sleep(1);
                }
                get(guard.lost());
                check(!node.all("/keepalive").isEmpty() && !guard.release(), "it was lost");
            }
        }
    }

    static void aLockIsLostAtA404() throws Exception {
        try (var node = new Node(but(2 * SHORT_MS, "/keepalive", (path, body, count) -> new Said(404, "{}")))) {
            var guard = client(node).lock("a").acquire();
            long began = Clock.now();
            get(guard.lost());
            // A third of its time is usual; without it, it were nine tenths.
            check(Clock.now() - began < SHORT_MS * Transport.MILLISECOND * 3 / 2, Clock.now() - began);
            check(guard.isLost() && !guard.release(), "it was lost");
        }
    }

    static void aKeptLockIsNotLostAlthoughWhatDependsOnTheLossOfAnotherBlocks() throws Exception {
        var ended = new CompletableFuture<Void>();
        try (var node = new Node(works(SHORT_MS))) {
            var cluster = client(node);
            var guard = cluster.lock("a").acquire();
            var other = cluster.lock("b").acquire();
            guard.lost().thenRun(ended::join);
            guard.silence();
            waitFor(guard::isLost, guard);
            Thread.sleep(SHORT_MS);
            check(!other.isLost() && node.all("/keepalive").size() >= 4, node.seen.size());
            check(other.release(), other);
            ended.complete(null);
        }
    }

    static Said waits(String path, Map<?, ?> body, int count) throws Exception {
        Thread.sleep(50);
        return new Said(202, "{\"state\":\"waiting\",\"position\":2}");
    }

    static void anInterruptAndACancelGiveThePlaceBack() throws Exception {
        try (var node = new Node(but("/acquire", ClientTest::waits))) {
            var position = new CompletableFuture<Integer>();
            var interrupted = new CompletableFuture<Boolean>();
            var thread = new Thread(() -> {
                try {
                    client(node).lock("a").onWaiting(position::complete).acquire();
                } catch (InterruptedException interrupt) {
                    interrupted.complete(true);
                }
            });
            thread.start();
            check(get(position) == 2, "its position");
            thread.interrupt();
            check(get(interrupted), "it goes on");
            int asked = node.all("/acquire").size();
            var waiting = client(node).lock("a").acquireAsync();
            waitFor(() -> node.all("/acquire").size() > asked + 1, node.seen);
            waiting.cancel(true);
            waitFor(() -> deletes(node) == 2, node.seen);
        }
    }

    static long deletes(Node node) {
        return List.copyOf(node.seen).stream().filter(seen -> seen.method.equals("DELETE")).count();
    }

    static void aFencedWriteIsRepeatedWithItsKeyAndALateOneIsStale() throws Exception {
        var count = new AtomicInteger();
        var said = List.of(new Said(200, "{}"), new Said(503, "{}"), new Said(200, "{\"stat\":{\"version\":3}}"),
            new Said(412, "{\"stale\":true,\"title\":\"late\"}"), new Said(412, "{\"title\":\"other version\"}"));
        try (var node = new Node(but("/x%20y", (path, body, all) -> said.get(count.getAndIncrement())))) {
            var guard = client(node).lock("a;b").acquire();
            check(guard.set("/x y", "data".getBytes(StandardCharsets.UTF_8), 2) == 3, "its version");
            var sent = node.all("/v1/znodes/x%20y");
            check(sent.size() == 3 && sent.get(2).text.equals("data"), sent);
            check(sent.stream().map(one -> one.headers.get("Idempotency-key")).distinct().count() == 1, sent);
            check(sent.get(2).headers.get("Rowlock-fence").equals(List.of("a%3Bb;9007199254740993")), sent);
            check(sent.get(2).headers.get("If-match").equals(List.of("\"2\"")), sent);
            try {
                guard.delete("/x y", 1);
                throw new AssertionError("a late write");
            } catch (StaleTokenException stale) {
                check(stale.getMessage().contains("late"), stale);
            }
            try {
                guard.delete("/x y", 1);
                throw new AssertionError("another version");
            } catch (RefusedException refused) {
                check(refused.status() == 412, refused);
            }
            guard.release();
        }
    }

    private static String asks(String reason, String rest) {
        return "{\"lock\":\"/locks/a\",\"token\":\"9007199254740993\",\"by\":\"ops\",\"reason\":\"" + reason + "\","
            + rest + "}";
    }

    static void aHolderHearsQuestionsAndLosesTheLockAtTheirDeadline() throws Exception {
        var last = asks("last", "\"asked_ms_ago\":5,\"revoked_in_ms\":4000");
        // Of another holder, and of something else than a node.
        var strange = String.join(",", "{\"token\":\"9007199254740993\"},null,5",
            asks("no time", "\"asked_ms_ago\":-1"), asks("not you", "\"asked_ms_ago\":1").replace("993", "992"));
        var said = List.of(strange, asks("first", "\"asked_ms_ago\":10"),
            asks("first", "\"asked_ms_ago\":400") + "," + asks("second", "\"asked_ms_ago\":20"));
        var turn = new AtomicInteger();
        try (var node = new Node(but(SHORT_MS, "/keepalive", (path, body, count) -> {
            var at = turn.getAndIncrement();
            var one = at < said.size() ? said.get(at) : last;
            return new Said(200, "{\"valid_for_ms\":" + SHORT_MS + ",\"asked\":[" + one + "]}");
        }))) {
            var guard = client(node).lock("a").acquire();
            check(guard.question().isEmpty() && !guard.asked().isDone(), guard);
            var first = get(guard.asked());
            check(first.reason().equals("first") && first.by().equals("ops") && first.revoked() == null, first);
            check(first.token() == guard.token() && first.lock().equals("/locks/a"), first);
            get(guard.lost());
            var newest = guard.question().orElseThrow();
            check(newest.reason().equals("last") && newest.asked().isBefore(newest.revoked()), newest);
            check(newest.revoked().isBefore(java.time.Instant.now().plusSeconds(2)), newest);
            check(guard.asked().get() == first, "the first one");
        }
        var held = HELD.replace("}", ",\"asked\":[" + asks("waited for", "\"asked_ms_ago\":0") + "]}");
        try (var node = new Node(but("/acquire", (path, body, count) -> new Said(200, held)));
             var quiet = new Node(ClientTest::works);
             var guard = client(node).lock("a").acquire()) {
            check(get(guard.asked()).reason().equals("waited for"), guard);
            var other = client(quiet).lock("a").acquire();
            var asked = other.asked();
            other.release();
            try {
                throw new AssertionError(get(asked));
            } catch (ExecutionException notAsked) {
                check(notAsked.getCause() instanceof LeaseOverException, notAsked);
            }
        }
    }

    static void holdersAreAskedForTheLock() throws Exception {
        var holder = "{\"token\":\"7\",\"place\":\"p\",\"label\":\"l\",\"since_ms\":5}";
        var said = List.of(new Said(503, "{}"), new Said(200, "{}"),
            new Said(200, "{\"asked\":1,\"holders\":[" + holder + "]}"), new Said(200, "{\"asked\":0,\"holders\":[]}"),
            new Said(404, "{\"title\":\"Not Found\"}"), new Said(403, "{\"title\":\"Forbidden\"}"));
        try (var node = new Node((path, body, count) -> said.get(count - 1))) {
            var cluster = client(node);
            var asked = cluster.ask("ci/a b", "the next release", Duration.ofMillis(1_500), "me");
            check(asked == 1, asked);
            var sent = node.all("/v1/locks/ci/a%20b/ask").get(2).body;
            check(sent.equals(Map.of("reason", "the next release", "within_ms", 1_500L, "label", "me")), sent);
            check(cluster.ask("a", "why") == 0, "it is free");
            for (int status : List.of(404, 403)) {
                try {
                    throw new AssertionError(cluster.ask("a", "why"));
                } catch (RefusedException refused) {
                    check(refused.status() == status, refused);
                }
            }
        }
    }

    static void aFenceRefusesSmallerTokensAndWaitsForWritesUnderWay() throws Exception {
        var fence = new Fence(7);
        check(!fence.check(6) && fence.check(7) && fence.check(8), fence.seen());
        var first = fence.enter(8);
        var second = CompletableFuture.runAsync(() -> {
            try (var in = fence.enter(9)) {
                check(fence.seen() == 9, "its token");
            } catch (InterruptedException interrupt) {
                throw new AssertionError(interrupt);
            }
        });
        while (fence.seen() < 9) {
            Thread.sleep(1);
        }
        try (var late = fence.enter(8)) {
            throw new AssertionError("let in while the larger one waits");
        } catch (StaleTokenException stale) {
            check(!second.isDone(), "it has not waited");
        }
        first.close();
        first.close();
        get(second);
        check(Fence.header("a;b's/\u00e9 *~", 5).equals("a%3Bb%27s/%C3%A9%20%2A~;5"), Fence.header("a;b's/\u00e9 *~", 5));
    }

    static void jsonIsReadAsItIsWritten() {
        var text = "{\"a\":[1,-2.5,true,null,{}],\"b\":\"\\u00e9\\n\\\"\",\"c\":9007199254740993}";
        check(Json.parse(Json.write(Json.parse(text))).equals(Json.parse(text)), Json.parse(text));
        for (var wrong : List.of("", "{", "[1,]", "nul", "\"a", "{\"a\":1}x", "[".repeat(100), "\"\\u12\"", "--1")) {
            try {
                throw new AssertionError(wrong + ": " + Json.parse(wrong));
            } catch (IllegalArgumentException expected) {
                // NumberFormatException is one.
            }
        }
    }

    private static boolean isTest(Method method) {
        return method.getParameterCount() == 0 && method.getReturnType() == void.class && !method.isSynthetic();
    }

    /**
     * Runs all tests, which are static, and take and give nothing, beside each other: most of them wait.
     *
     * @param args none
     */
    public static void main(String[] args) throws Exception {
        // A JVM is slow until it has loaded what a request needs.
        attemptKeepsItsRequestIdAtTheNextNode();
        var threads = Executors.newCachedThreadPool();
        var runs = new TreeMap<String, Future<?>>();
        for (var tests : List.of(ClientTest.class, AbuseTest.class, ObserverTest.class, ReleaseTest.class)) {
            for (var method : tests.getDeclaredMethods()) {
                if (isTest(method)) {
                    runs.put(method.getName(), threads.submit(() -> method.invoke(null)));
                }
            }
        }
        boolean isGood = runs.size() >= 8;
        for (var run : runs.entrySet()) {
            try {
                run.getValue().get();
                System.out.println("ok " + run.getKey());
            } catch (ExecutionException failed) {
                isGood = false;
                System.out.println("FAILED " + run.getKey());
                failed.getCause().getCause().printStackTrace(System.out);
            }
        }
        System.out.println(runs.size() + " tests");
        System.exit(isGood ? 0 : 1);
    }
}
