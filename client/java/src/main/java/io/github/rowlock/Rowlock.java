package io.github.rowlock;

import java.net.URI;
import java.net.http.HttpClient;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;

/**
 * A cluster. Safe for threads; one for a program will do. It has a thread for its timer and some for requests, all of
 * them daemons, so nothing has to be closed.
 */
public final class Rowlock {
    private final Transport transport;
    private final long ttl;
    private final Metering metering;

    private Rowlock(Builder builder) {
        var nodes = new ArrayList<URI>();
        for (var url : builder.urls) {
            nodes.add(Transport.node(url));
        }
        if (nodes.isEmpty()) {
            throw new IllegalArgumentException("no URL of a node");
        }
        transport = new Transport(List.copyOf(nodes), builder.token, builder.http, builder.authorities, builder.onUnreleased);
        ttl = builder.ttl.toNanos();
        metering = new Metering(builder.observer);
    }

    /**
     * A client with nothing but defaults.
     *
     * @param urls of the nodes' {@code api} listeners, separated by commas. Name all of them, so that the next one is
     *     asked when one fails. A path, such as that of a gateway, stands before that of each request
     * @return the client; nothing is sent yet
     * @throws IllegalArgumentException one is no URL of a node
     */
    public static Rowlock connect(String urls) {
        return builder(urls).build();
    }

    /**
     * A client by {@code ROWLOCK_API} (URLs with commas between; else {@code http://127.0.0.1:8481}), {@code
     * ROWLOCK_TOKEN}, and {@code ROWLOCK_TLS_CA} as {@link Builder#authorities}.
     *
     * @return the client; nothing is sent yet
     * @throws IllegalArgumentException a variable has an invalid value
     */
    public static Rowlock fromEnv() {
        return fromEnv(System.getenv());
    }

    static Rowlock fromEnv(Map<String, String> env) {
        var urls = env.getOrDefault("ROWLOCK_API", "");
        var builder = builder(urls.isEmpty() ? "http://127.0.0.1:8481" : urls);
        var token = env.getOrDefault("ROWLOCK_TOKEN", "");
        var authorities = env.getOrDefault("ROWLOCK_TLS_CA", "");
        return builder.token(token.isEmpty() ? null : token)
            .authorities(authorities.isEmpty() ? null : Path.of(authorities)).build();
    }

    /**
     * A client with options.
     *
     * @param urls as for {@link #connect}
     * @return to be given options
     */
    public static Builder builder(String urls) {
        return new Builder(urls);
    }

    /** Options of a client. */
    public static final class Builder {
        private final List<String> urls;
        private String token;
        private Duration ttl = Duration.ofSeconds(10);
        private HttpClient http;
        private Path authorities;
        private BiConsumer<String, RowlockException> onUnreleased;
        private LockObserver observer;

        private Builder(String urls) {
            this.urls = List.of(urls.split(","));
        }

        /**
         * Goes into {@code Authorization: Bearer}.
         *
         * @param token of {@code rowlock token new}
         * @return this
         */
        public Builder token(String token) {
            this.token = token;
            return this;
        }

        /**
         * The time of leases, 10 s if it is left out: the locks of a program that has died are free after it.
         *
         * @param ttl the cluster has bounds
         * @return this
         * @throws IllegalArgumentException it is less than a millisecond, or more than a century
         */
        public Builder ttl(Duration ttl) {
            if (ttl.compareTo(Duration.ofMillis(1)) < 0 || ttl.compareTo(Duration.ofDays(36_500)) > 0) {
                throw new IllegalArgumentException("not the time of a lease: " + ttl);
            }
            this.ttl = ttl;
            return this;
        }

        /**
         * The authorities that are trusted for {@code https://}, instead of the JDK's.
         *
         * @param pem a file, which {@link #build} reads; null: those of the JDK
         * @return this
         */
        public Builder authorities(Path pem) {
            authorities = pem;
            return this;
        }

        /**
         * For a proxy or a certificate of your own, for example; it has its own authorities.
         *
         * @param http makes the requests: HTTP/1.1, no redirects
         * @return this
         */
        public Builder http(HttpClient http) {
            this.http = http;
            return this;
        }

        /**
         * Gets each release by {@link Guard#close} that has failed. Left out: a warning of the logger
         * {@code io.github.rowlock}.
         *
         * @param onUnreleased gets the name of the lock and the failure, in a thread of this client
         * @return this
         */
        public Builder onUnreleased(BiConsumer<String, RowlockException> onUnreleased) {
            this.onUnreleased = onUnreleased;
            return this;
        }

        /**
         * Gets the waits and holds of the client.
         *
         * @param observer null: nothing is measured
         * @return this
         */
        public Builder observer(LockObserver observer) {
            this.observer = observer;
            return this;
        }

        /**
         * The client.
         *
         * @return it has sent nothing yet
         * @throws IllegalArgumentException a URL is no node's, or the file of {@link #authorities} cannot be read
         */
        public Rowlock build() {
            return new Rowlock(this);
        }
    }

    /**
     * A lock. Nothing is sent.
     *
     * @param name its levels are separated by slashes; one that begins with a slash is the path of a znode
     * @return to be acquired
     */
    public LockRequest lock(String name) {
        var address = Part.exclusive(name).address();
        return new LockRequest(transport, ttl, metering, new LockRequest.Target(
            name, address + "/acquire", List.of(address + "/release"), List.of(address + "/verify"), Map.of(), false));
    }

    /**
     * Several locks, of which all places are taken by one change, or none. Nothing is sent.
     *
     * @param parts 1 to 64; the guard has a token for each, in their order
     * @return to be acquired
     */
    public LockRequest locks(List<Part> parts) {
        var bodies = parts.stream().map(part -> part.body(true)).toList();
        var release = parts.stream().map(part -> part.address() + "/release").toList();
        var verify = parts.stream().map(part -> part.address() + "/verify").toList();
        var names = String.join(", ", parts.stream().map(Part::lock).toList());
        return new LockRequest(transport, ttl, metering, new LockRequest.Target(
            names, "/v1/locks/acquire", release, verify, Map.of("locks", bodies), false));
    }

    /**
     * Asks the holders of a lock to give it back: they learn it with their next keep-alive ({@link Guard#asked}).
     *
     * @param name as that of a lock
     * @param reason at most 256 bytes
     * @return how many holders were asked; 0: the lock is free
     * @throws InterruptedException the thread was interrupted
     * @throws TimedOutException no node has answered
     */
    public int ask(String name, String reason) throws InterruptedException {
        return ask(name, reason, null, null);
    }

    /**
     * As {@link #ask(String, String)}, with a deadline or a name.
     *
     * @param name as that of a lock
     * @param reason at most 256 bytes
     * @param within a second to an hour: the cluster takes the lock away at that deadline; for an operator's token.
     *     null: never
     * @param label what the holder sees of the caller, beside what the cluster knows; null: nothing
     * @return how many holders were asked; 0: the lock is free
     * @throws InterruptedException the thread was interrupted
     * @throws RefusedException the cluster does not allow it
     */
    public int ask(String name, String reason, Duration within, String label) throws InterruptedException {
        var body = new LinkedHashMap<String, Object>(Map.of("reason", reason));
        if (within != null) {
            body.put("within_ms", within.toMillis());
        }
        if (label != null) {
            body.put("label", label);
        }
        long until = Clock.now() + Transport.ANSWER_MAX;
        var bounds = new Transport.Bounds(until, transport.share(until), answer -> answer.status() == 404
            ? answer.text("title") != null : answer.status() == 200 && answer.number("asked") != null);
        var request = new Transport.Request("POST", Part.exclusive(name).address() + "/ask", body);
        var answer = LockRequest.waited(transport.call(request, bounds));
        if (answer.status() == 404) {
            throw Transport.refusal(answer);
        }
        return answer.number("asked").intValue();
    }

    /**
     * Waits for the releases by {@link Guard#close} that are under way. The end of the program does so for two seconds.
     *
     * @throws InterruptedException the thread was interrupted
     */
    public void flush() throws InterruptedException {
        LockRequest.waited(transport.flush());
    }

    /**
     * An election. Nothing is sent.
     *
     * @param name as that of a lock
     * @return to stand for, or to look at
     */
    public Election election(String name) {
        return new Election(transport, ttl, metering, name);
    }

    /**
     * What happens to one lock.
     *
     * @param path with {@code /locks/}
     * @return to be run
     */
    public Watch watchLock(String path) {
        return new Watch(transport, "?lock=" + Fence.encoded(path), null);
    }

    /**
     * What happens to the locks below a path.
     *
     * @param prefix {@code /locks/ci/}; {@code /}: all of them
     * @return to be run
     */
    public Watch watchBelow(String prefix) {
        return new Watch(transport, "?prefix=" + Fence.encoded(prefix), null);
    }
}
