package io.github.rowlock;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Flow;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;
import java.util.function.Predicate;

/** Asks one node after another until one answers. It knows no locks. All times are nanoseconds of {@link Clock}. */
final class Transport {
    static final long SECOND = TimeUnit.SECONDS.toNanos(1);
    static final long MILLISECOND = TimeUnit.MILLISECONDS.toNanos(1);
    /** How long a node may take for an answer, on top of the time for which it was asked to wait. */
    static final long ANSWER_MAX = 10 * SECOND;
    /** Between two rounds through all nodes. */
    static final long PAUSE = 200 * MILLISECOND;
    static final long FOREVER = Long.MAX_VALUE;
    /** Between two moves to a leader: it may be out of reach from here. */
    private static final long STAY = 60 * SECOND;
    /** How long answers at all URLs may be something else's than a node's before a request fails. */
    static final long STRANGE_MAX = 15 * SECOND;
    /** Bytes of an answer. */
    private static final int BODY_MAX = 1 << 20;
    /** Unwaited releases under way; the next one is waited for. */
    static final int UNWAITED_MAX = 1024;
    /** How long the end of the program waits for them. */
    private static final long FLUSH_MAX = 2 * SECOND;

    /** Runs what is short and never waits: a keep-alive must not be late because another task is slow. */
    final ScheduledExecutorService timer;
    /** Runs what a program does with our futures. */
    final ExecutorService workers;
    private final List<URI> nodes;
    private final String token;
    private final HttpClient http;
    private final AtomicInteger at = new AtomicInteger();
    /** Until when no leader is followed. */
    private volatile long staysUntil = Long.MIN_VALUE;
    /** Releases without an answer, by their address. */
    private final Set<Map.Entry<String, CompletableFuture<?>>> releases = ConcurrentHashMap.newKeySet();
    /** Releases under way, until their leases are given back. */
    private final Set<CompletableFuture<?>> unwaited = ConcurrentHashMap.newKeySet();
    /** Gets the name of the lock, and why an unwaited release has failed. */
    private final BiConsumer<String, RowlockException> onUnreleased;

    Transport(
        List<URI> nodes, String token, HttpClient http, Path authorities, BiConsumer<String, RowlockException> onUnreleased
    ) {
        this.onUnreleased = onUnreleased != null ? onUnreleased : (lock, error) ->
            System.getLogger("io.github.rowlock").log(System.Logger.Level.WARNING, lock + ": " + error.getMessage());
        this.nodes = nodes;
        this.token = token;
        ThreadFactory daemons = work -> {
            var thread = new Thread(work, "rowlock");
            thread.setDaemon(true);
            return thread;
        };
        workers = Executors.newCachedThreadPool(daemons);
        var one = new ScheduledThreadPoolExecutor(1, daemons);
        one.setRemoveOnCancelPolicy(true);
        timer = one;
        var own = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).executor(workers)
            .followRedirects(HttpClient.Redirect.NEVER).connectTimeout(Duration.ofSeconds(10));
        if (authorities != null) {
            own.sslContext(Authorities.trust(authorities));
        }
        this.http = http != null ? http : own.build();
    }

    /**
     * One request that may be repeated.
     *
     * @param body bytes as they are, null for none, or a document
     */
    record Request(String method, String path, Object body, Map<String, String> headers) {
        Request(String method, String path, Object body) {
            this(method, path, body, Map.of());
        }
    }

    /**
     * How long it is repeated.
     *
     * @param until nothing is sent after it
     * @param each bounds one node's answer
     * @param wants what it does not take is no answer: a proxy may have made it
     */
    record Bounds(long until, long each, Predicate<Answer> wants) {
    }

    /** The part of the time that is left which one node may use up: others are to be asked, too. */
    long share(long until) {
        return until == FOREVER ? FOREVER : (until - Clock.now()) / nodes.size();
    }

    void after(long nanos, Runnable work) {
        timer.schedule(work, Math.max(0, nanos), TimeUnit.NANOSECONDS);
    }

    /** Has {@link #behind} wait for the answer to a release, and {@link #flush} until it is done with its lease. */
    void later(List<String> paths, CompletableFuture<?> answered, CompletableFuture<?> done) {
        var entries = paths.stream().map(path -> Map.<String, CompletableFuture<?>>entry(path, answered)).toList();
        releases.addAll(entries);
        answered.whenComplete((none, error) -> entries.forEach(releases::remove));
        unwaited.add(done);
        AtExit.FLUSHED.add(this);
        done.whenComplete((none, error) -> {
            unwaited.remove(done);
            if (unwaited.isEmpty()) {
                AtExit.FLUSHED.remove(this);
                if (!unwaited.isEmpty()) {
                    AtExit.FLUSHED.add(this);
                }
            }
        });
    }

    /** Whether the next unwaited release is waited for. */
    boolean isFull() {
        return unwaited.size() >= UNWAITED_MAX;
    }

    /** Completes behind the releases under way. */
    CompletableFuture<Void> flush() {
        return CompletableFuture.allOf(unwaited.toArray(CompletableFuture[]::new));
    }

    /** Reports a failure in a thread that may block. */
    void report(String lock, RowlockException error) {
        workers.execute(() -> onUnreleased.accept(lock, error));
    }

    /** Flushes at the end of the program, whose other threads of ours are daemons. */
    private static final class AtExit {
        static final Set<Transport> FLUSHED = ConcurrentHashMap.newKeySet();

        static {
            try {
                Runtime.getRuntime().addShutdownHook(new Thread(AtExit::flush, "rowlock flush"));
            } catch (IllegalStateException isEnding) {
                // Too late: the locks are free when their leases end.
            }
        }

        private static void flush() {
            var all = FLUSHED.stream().map(Transport::flush).toArray(CompletableFuture[]::new);
            CompletableFuture.allOf(all).completeOnTimeout(null, FLUSH_MAX, TimeUnit.NANOSECONDS).join();
        }
    }

    /** Completes behind the releases under way at these addresses, or after {@code until}. */
    CompletableFuture<Void> behind(List<String> paths, long until) {
        var before = releases.stream().filter(release -> paths.contains(release.getKey()))
            .map(Map.Entry::getValue).toArray(CompletableFuture[]::new);
        var all = CompletableFuture.allOf(before);
        return before.length == 0 || until == FOREVER ? all
            : all.completeOnTimeout(null, Math.max(0, until - Clock.now()), TimeUnit.NANOSECONDS);
    }

    /**
     * Fails with {@link TimedOutException} after the bounds, and with {@link RefusedException} for all refusals but 404,
     * and where something that is no node answers in their place for some time.
     * Cancelling it ends the request that is under way.
     */
    CompletableFuture<Answer> call(Request request, Bounds bounds) {
        var call = new Call(request, bounds);
        call.result.whenComplete((answer, error) -> {
            var current = call.current.get();
            if (current != null) {
                current.cancel(true);
            }
        });
        call.next("no node was asked");
        return call.result;
    }

    private final class Call {
        final Request request;
        final Bounds bounds;
        final CompletableFuture<Answer> result = new CompletableFuture<>();
        final AtomicReference<CompletableFuture<?>> current = new AtomicReference<>();
        private int tried;
        /** Status and first line of the last answer. */
        private String answered;
        /** Since when all answers were strange. */
        private long strangeSince = FOREVER;

        Call(Request request, Bounds bounds) {
            this.request = request;
            this.bounds = bounds;
        }

        void next(String failed) {
            long left = bounds.until == FOREVER ? FOREVER : bounds.until - Clock.now();
            if (result.isDone()) {
                return;
            }
            if (left <= 0) {
                result.completeExceptionally(
                    new TimedOutException("no node has answered in time; the last one: " + failed));
                return;
            }
            int asked = at.get();
            tried++;
            CompletableFuture<HttpResponse<byte[]>> sent;
            try {
                sent = http.sendAsync(build(asked, request), BOUNDED);
            } catch (IllegalArgumentException error) {
                result.completeExceptionally(error);
                return;
            }
            current.set(sent);
            if (result.isDone()) {
                sent.cancel(true);
            }
            var bound = timer.schedule(() -> sent.cancel(true), Math.min(left, bounds.each), TimeUnit.NANOSECONDS);
            sent.whenComplete((response, error) -> {
                bound.cancel(false);
                try {
                    judge(asked, response, error);
                } catch (Throwable thrown) {
                    result.completeExceptionally(thrown);
                }
            });
        }

        private boolean isStrangeForLong(Answer answer) {
            strangeSince = answer.strange() == null ? FOREVER : Math.min(strangeSince, Clock.now());
            return Clock.now() - STRANGE_MAX > strangeSince;
        }

        private void judge(int asked, HttpResponse<byte[]> response, Throwable error) {
            String failed;
            if (error != null) {
                // A request that the end of the caller's time has cut off says nothing of its node.
                failed = answered != null && Clock.now() >= bounds.until ? answered : said(error);
                strangeSince = FOREVER;
            } else {
                response.headers().firstValue("Rowlock-Leader").ifPresent(Transport.this::follow);
                var answer = Answer.read(response.statusCode(), new String(response.body(), StandardCharsets.UTF_8));
                if (answer.isRefusal() || isStrangeForLong(answer)) {
                    result.completeExceptionally(refusal(answer));
                    return;
                }
                if (answer.status() < 500 && answer.strange() == null && bounds.wants.test(answer)) {
                    result.complete(answer);
                    return;
                }
                answered = answer.status() + " " + answer.said();
                failed = answered;
            }
            // At the end of the caller's time, or of a canceled call, the node is not to blame.
            if (Clock.now() < bounds.until && !result.isDone()) {
                skip(asked);
            }
            var why = failed;
            if (tried % nodes.size() == 0) {
                after(Math.min(PAUSE, bounds.until - Clock.now()), () -> next(why));
            } else {
                next(why);
            }
        }
    }

    static RowlockException refusal(Answer answer) {
        if (answer.status() == 412 && Boolean.TRUE.equals(answer.document().get("stale"))) {
            return new StaleTokenException(answer.said());
        }
        return new RefusedException(answer.status(), answer.said());
    }

    /** Goes on to the next node, unless another request has done so. */
    private void skip(int asked) {
        at.compareAndSet(asked, (asked + 1) % nodes.size());
    }

    /** Goes to the leader that a node names, if it is one of these nodes. */
    private void follow(String leader) {
        if (Clock.now() < staysUntil) {
            return;
        }
        staysUntil = Clock.now() + STAY;
        int index = nodes.stream().map(Transport::address).toList().indexOf(leader.toLowerCase(Locale.ROOT));
        if (index >= 0) {
            at.set(index);
        }
    }

    /** Host and port of a node. */
    static String address(URI node) {
        int port = node.getPort() >= 0 ? node.getPort() : node.getScheme().equalsIgnoreCase("https") ? 443 : 80;
        return node.getHost().toLowerCase(Locale.ROOT) + ":" + port;
    }

    /** The URL of a node, whose path, if it has one, stands before that of each request. */
    static URI node(String url) {
        URI node;
        try {
            node = new URI(url.strip());
        } catch (URISyntaxException wrong) {
            throw new IllegalArgumentException("not the URL of a node: " + url, wrong);
        }
        boolean isHttp = "http".equalsIgnoreCase(node.getScheme()) || "https".equalsIgnoreCase(node.getScheme());
        if (isHttp && node.getHost() == null && node.getRawAuthority() != null && node.getRawAuthority().contains("_")) {
            throw new IllegalArgumentException("not the URL of a node: " + url + ": the JDK's HTTP client takes no host "
                + "name with \"_\"; give the node another name, or use its address");
        }
        if (!isHttp || node.getHost() == null) {
            throw new IllegalArgumentException("not the URL of a node: " + url);
        }
        if (node.getRawUserInfo() != null || node.getRawQuery() != null || node.getRawFragment() != null) {
            throw new IllegalArgumentException("the URL of a node has a user, a query or a fragment: " + url);
        }
        var path = node.getRawPath().replaceAll("/+$", "");
        return URI.create(node.getScheme().toLowerCase(Locale.ROOT) + "://" + node.getRawAuthority() + path);
    }

    private HttpRequest build(int node, Request request) {
        var builder = HttpRequest.newBuilder(URI.create(nodes.get(node) + request.path));
        request.headers.forEach(builder::header);
        if (token != null) {
            builder.header("Authorization", "Bearer " + token);
        }
        if (nodes.size() > 1 && Clock.now() >= staysUntil) {
            builder.header("Prefer", "leader");
        }
        if (request.body == null) {
            return builder.method(request.method, HttpRequest.BodyPublishers.noBody()).build();
        }
        boolean isData = request.body instanceof byte[];
        builder.header("Content-Type", isData ? "application/octet-stream" : "application/json");
        byte[] bytes =
            isData ? (byte[]) request.body : Json.bytes(Json.write(request.body));
        return builder.method(request.method, HttpRequest.BodyPublishers.ofByteArray(bytes)).build();
    }

    private static String said(Throwable error) {
        boolean wraps = error instanceof CompletionException || error instanceof ExecutionException;
        var cause = wraps && error.getCause() != null ? error.getCause() : error;
        return cause instanceof CancellationException ? "no answer in time" : cause.toString();
    }

    /**
     * The body of an answer that goes on: one request at the present node. Its head, and all of another answer, come
     * within {@link #ANSWER_MAX}, or it fails.
     */
    InputStream stream(Request request) throws IOException, InterruptedException {
        int asked = at.get();
        var sent = http.sendAsync(build(asked, request), STREAM);
        var bound = timer.schedule(() -> sent.cancel(true), ANSWER_MAX, TimeUnit.NANOSECONDS);
        try {
            var response = sent.get();
            if (response.statusCode() == 200) {
                return response.body();
            }
            var body = response.body().readAllBytes();
            var answer = Answer.read(response.statusCode(), new String(body, StandardCharsets.UTF_8));
            if (answer.isRefusal() || answer.status() == 404 && answer.strange() == null) {
                throw refusal(answer);
            }
            skip(asked);
            throw new IOException(answer.status() + " " + answer.said());
        } catch (ExecutionException | CancellationException error) {
            skip(asked);
            throw new IOException(said(error), error);
        } catch (InterruptedException error) {
            sent.cancel(true);
            throw error;
        } finally {
            bound.cancel(false);
        }
    }

    void moveOn() {
        skip(at.get());
    }

    int count() {
        return nodes.size();
    }

    private static final HttpResponse.BodyHandler<byte[]> BOUNDED =
        head -> new Bounded(HttpResponse.BodySubscribers.ofByteArray());

    private static final HttpResponse.BodyHandler<InputStream> STREAM = head -> head.statusCode() == 200
        ? HttpResponse.BodySubscribers.ofInputStream()
        : HttpResponse.BodySubscribers.mapping(BOUNDED.apply(head), ByteArrayInputStream::new);

    /** An answer of a decent size. */
    private static final class Bounded implements HttpResponse.BodySubscriber<byte[]> {
        private final HttpResponse.BodySubscriber<byte[]> inner;
        private Flow.Subscription subscription;
        private long length;

        Bounded(HttpResponse.BodySubscriber<byte[]> inner) {
            this.inner = inner;
        }

        @Override
        public CompletionStage<byte[]> getBody() {
            return inner.getBody();
        }

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            this.subscription = subscription;
            inner.onSubscribe(subscription);
        }

        @Override
        public void onNext(List<java.nio.ByteBuffer> pieces) {
            for (var piece : pieces) {
                length += piece.remaining();
            }
            if (length > BODY_MAX) {
                subscription.cancel();
                inner.onError(new IOException("the answer is too large"));
            } else {
                inner.onNext(pieces);
            }
        }

        @Override
        public void onError(Throwable error) {
            inner.onError(error);
        }

        @Override
        public void onComplete() {
            inner.onComplete();
        }
    }
}
