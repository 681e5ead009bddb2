package io.github.rowlock;

import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * A lock that is held, several of them, or the lead of an election. A guard that is not closed keeps its lock while
 * the program runs.
 */
public final class Guard implements AutoCloseable {
    /** Of a znode: any will do. */
    public static final int ANY_VERSION = -1;

    private final Lease lease;
    private final LockRequest.Target target;
    private final List<Long> tokens;
    private final AtomicBoolean isReleased = new AtomicBoolean();
    private final CompletableFuture<Void> lost = new CompletableFuture<>();
    private final CompletableFuture<Question> asked = new CompletableFuture<>();
    private final Heard heard;
    private final Metering.Measure measure;

    /** {@code answer} says that all of it is held; {@code measure} is that of a hold that has begun. */
    Guard(Lease lease, LockRequest.Target target, List<Long> tokens, Answer answer, Metering.Measure measure) {
        this.lease = lease;
        this.measure = measure;
        this.target = target;
        this.tokens = List.copyOf(tokens);
        heard = new Heard(this.tokens);
        lease.ended.whenComplete((none, error) -> {
            endHold(LockObserver.Outcome.LOST);
            lost.complete(null);
        });
        lost.whenComplete((none, error) ->
            asked.completeExceptionally(new LeaseOverException("the lock is lost or released, and was not asked for")));
        lease.listen(this::hear, answer);
    }

    /** In the past, if the lease has ended while the program stood still. */
    private void endHold(LockObserver.Outcome outcome) {
        measure.endHold(outcome, Math.min(Clock.now(), lease.deadline()));
    }

    private long hear(List<?> said) {
        long left = heard.hear(said);
        if (heard.newest() != null && !asked.isDone()) {
            asked.completeAsync(heard::newest, lease.transport.workers);
        }
        return left;
    }

    /** {@return the fencing token: give it to what you write to. Tokens of a lock rise} */
    public long token() {
        return tokens.get(0);
    }

    /** {@return a token for each of several locks, in their order} */
    public List<Long> tokens() {
        return tokens;
    }

    /**
     * Whether the lock may be another client's: stop then. It looks at the clock, so it is right also at once after
     * the program or the machine stood still.
     *
     * @return also true after the release
     */
    public boolean isLost() {
        return isReleased.get() || lease.isLost();
    }

    /** {@return how long the lock is certainly held, unless it is taken away; zero: it is lost} */
    public Duration remaining() {
        return isLost() ? Duration.ZERO : Duration.ofNanos(Math.max(0, lease.deadline() - Clock.now()));
    }

    /**
     * Completes when the lock is lost or released. What depends on it runs in a thread of this client, and may block.
     *
     * @return a copy: completing it changes nothing
     */
    public CompletableFuture<Void> lost() {
        return lost.copy();
    }

    /**
     * Completes when the holder is asked to give the lock back, with the first question; with {@link LeaseOverException}
     * when the lock is lost or released before. The lock stays held, until {@link Question#revoked} at most: release it
     * where the work can be cut. What depends on it runs in a thread of this client, and may block.
     *
     * @return a copy: completing it changes nothing
     */
    public CompletableFuture<Question> asked() {
        return asked.copy();
    }

    /** {@return the newest question to this holder} */
    public Optional<Question> question() {
        return Optional.ofNullable(heard.newest());
    }

    /**
     * Keeps the lock for another time of its lease from now. For locks with {@link LockRequest#keepAlive} false: call it
     * at least each third of the lease's time. Nothing else notices that the program is late: check {@link #isLost}
     * before each step, and give each write the token.
     *
     * @return whether the lock is held
     */
    public boolean keepAlive() {
        return !isReleased.get() && joined(lease.keepAlive());
    }

    /**
     * Asks the cluster whether all of it was held at a moment of this call.
     *
     * @return false is final
     * @throws TimedOutException no node has answered
     */
    public boolean verify() {
        for (int at = 0; at < tokens.size(); at++) {
            long until = Math.min(Clock.now() + Transport.ANSWER_MAX, lease.deadline());
            var request = new Transport.Request(
                "POST", target.verify().get(at), Map.of("token", Long.toString(tokens.get(at))));
            var bounds = new Transport.Bounds(until, lease.transport.share(until), answer -> answer.isAbout("held"));
            if (!Boolean.TRUE.equals(joined(lease.transport.call(request, bounds)).document().get("held"))) {
                return false;
            }
        }
        return true;
    }

    /**
     * Gives the lock back. It may be repeated, and raises no error.
     *
     * @return whether it was still held; false also when no node has answered before the lease's deadline
     */
    public boolean release() {
        return joined(releaseAsync());
    }

    /**
     * As {@link #release}, without a thread that waits. What this client asks of the same lock from now on is sent
     * behind it.
     *
     * @return completes in any case
     */
    public CompletableFuture<Boolean> releaseAsync() {
        var release = begin();
        return release == null ? CompletableFuture.completedFuture(false)
            : release.done.thenApply(none -> release.isHeld());
    }

    /**
     * As {@link #release}, without waiting for the answer. The request leaves at once and is repeated until the lease's
     * deadline; {@link Rowlock.Builder#onUnreleased} gets a failure, and the end of the program waits for the answer, for
     * two seconds. What this client asks of the same lock from now on is sent behind it. With 1,024 of them under way it
     * waits.
     */
    @Override
    public void close() {
        boolean isFull = lease.transport.isFull();
        var release = begin();
        if (release == null) {
            return;
        }
        var reported = release.done.thenRun(release::report);
        if (isFull) {
            joined(reported);
        }
    }

    /** Ends the hold for this program, and starts its release; null: it was released before. */
    private Release begin() {
        boolean wasLost = lease.isLost();
        if (isReleased.getAndSet(true)) {
            return null;
        }
        endHold(wasLost ? LockObserver.Outcome.LOST : LockObserver.Outcome.RELEASED);
        lease.silence();
        lost.completeAsync(() -> null, lease.transport.workers);
        return new Release(wasLost);
    }

    /** A release, with an answer for each token. */
    private final class Release {
        final List<CompletableFuture<Answer>> answers = new ArrayList<>();
        /** Completes when the lease is given back, and never fails. */
        final CompletableFuture<Void> done;

        Release(boolean wasLost) {
            if (wasLost) {
                done = CompletableFuture.completedFuture(null);
                return;
            }
            long until = lease.deadline();
            long each = Math.max(Transport.SECOND / 2, (until - Clock.now()) / 3);
            for (int at = 0; at < tokens.size(); at++) {
                var body = Map.of("secret", lease.secret, "token", Long.toString(tokens.get(at)));
                var request = new Transport.Request("POST", target.release().get(at), body);
                var bounds = new Transport.Bounds(until, each, answer -> answer.isAbout("released"));
                answers.add(lease.transport.call(request, bounds));
            }
            // When no node has answered, the lease ends by itself, and the lock with it.
            var answered = CompletableFuture.allOf(answers.toArray(CompletableFuture[]::new)).handle((none, error) -> none);
            done = answered.thenCompose(none -> lease.end()).thenApplyAsync(none -> none, lease.transport.workers);
            lease.transport.later(target.release(), answered, done);
        }

        boolean isHeld() {
            return !answers.isEmpty() && answers.stream().allMatch(Release::isReleased);
        }

        private static boolean isReleased(CompletableFuture<Answer> answer) {
            return !answer.isCompletedExceptionally()
                && Boolean.TRUE.equals(answer.join().document().get("released"));
        }

        void report() {
            for (int at = 0; at < tokens.size(); at++) {
                var answer = answers.isEmpty() ? null : answers.get(at);
                if (answer != null && answer.isCompletedExceptionally()) {
                    var verify = target.verify().get(at);
                    answer.whenComplete((none, error) -> report(verify,
                        "cannot release it; it is free when its lease ends: " + error.getMessage()));
                } else if (answer == null || !isReleased(answer)) {
                    report(target.verify().get(at), "it was not held any more at its release");
                }
            }
        }

        private void report(String verify, String says) {
            var path = URI.create(verify).getPath();
            var lock = path.substring("/v1/locks/".length(), path.length() - "/verify".length());
            lease.transport.report(lock, new RowlockException(says));
        }
    }

    /**
     * Makes a znode, only while this guard's token holds the lock. It takes effect once.
     *
     * @param path of the znode
     * @param data what it holds
     * @return its version
     * @throws StaleTokenException the lock is lost; a copy whose answer was lost may have taken effect before
     * @throws RefusedException 409: there is one
     */
    public int create(String path, byte[] data) {
        return write("POST", path, data, ANY_VERSION, 201);
    }

    /**
     * Sets the data of a znode, as {@link #create} makes one.
     *
     * @param path of the znode
     * @param data what it is to hold
     * @param version it must have this one, or {@link #ANY_VERSION}
     * @return its new version
     * @throws StaleTokenException the lock is lost; a copy whose answer was lost may have taken effect before
     * @throws RefusedException 412: another version; 404: no such znode
     */
    public int set(String path, byte[] data, int version) {
        return write("PUT", path, data, version, 200);
    }

    /**
     * Deletes a znode, as {@link #set} changes one.
     *
     * @param path of the znode
     * @param version it must have this one, or {@link #ANY_VERSION}
     */
    public void delete(String path, int version) {
        write("DELETE", path, null, version, 204);
    }

    private int write(String method, String path, byte[] data, int version, int done) {
        var verify = target.verify().get(0);
        var headers = new HashMap<String, String>();
        var lock = verify.substring("/v1/locks/".length(), verify.length() - "/verify".length());
        headers.put(Fence.HEADER, lock + ";" + token());
        headers.put("Rowlock-Lease", lease.secret);
        headers.put("Idempotency-Key", LockRequest.requestId());
        if (version != ANY_VERSION) {
            headers.put("If-Match", "\"" + version + "\"");
        }
        // A late holder is told so by the cluster.
        long until = Math.max(lease.deadline(), Clock.now() + Transport.SECOND);
        long each = Math.max(Transport.SECOND / 2, (until - Clock.now()) / 3);
        var request = new Transport.Request(method, "/v1/znodes" + Fence.encoded(path), data, headers);
        var answer = joined(lease.transport.call(request, new Transport.Bounds(until, each, found ->
            found.status() == 404 ? found.text("title") != null
                : found.status() == done && (done == 204 || version(found) != null))));
        if (answer.status() == 404) {
            throw isLost() ? new StaleTokenException("the lock is lost: only an earlier copy of the write may have taken effect")
                : Transport.refusal(answer);
        }
        return done == 204 ? 0 : version(answer).intValue();
    }

    private static Long version(Answer answer) {
        return answer.document().get("stat") instanceof Map<?, ?> stat && stat.get("version") instanceof Long number
            ? number : null;
    }

    /** Stops keep-alive, so that the lock is lost: for tests of what happens then. */
    public void silence() {
        lease.silence();
    }

    /** Waits for what has a bound of its own; an interrupt is kept for later. */
    private static <T> T joined(CompletableFuture<T> future) {
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    return future.get();
                } catch (InterruptedException interrupt) {
                    isInterrupted = true;
                } catch (ExecutionException | CompletionException error) {
                    throw LockRequest.unwrapped(error.getCause());
                }
            }
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public String toString() {
        return "Guard[" + target.ask() + ", token " + tokens + (isLost() ? ", lost]" : "]");
    }
}
