package io.github.rowlock;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.ToLongFunction;

/** A session at the cluster. A timer, if it has one, asks for keep-alive at a third of its time. */
final class Lease {
    /** How long {@link #end} waits for the cluster; the request goes on in the background. */
    private static final long END_MAX = Transport.SECOND;
    /** Timers stand still while the machine sleeps: so long at most is the loss of a lease not told then. */
    private static final long LOOK_EVERY = Transport.SECOND;

    final Transport transport;
    final String secret;
    final long ttl;
    /** Completes when it is over, or must be taken to be. Dependents run on the transport's workers. */
    final CompletableFuture<Void> ended = new CompletableFuture<>();
    private final String path;
    /** From which nothing of this lease may be relied on. */
    private volatile long deadline;
    /** When what it holds is taken away. */
    private long revoked = Transport.FOREVER;
    /** Gets the field {@code asked} of each answer; gives the time until a lock is taken away. */
    private volatile ToLongFunction<List<?>> hears = said -> Transport.FOREVER;
    private volatile boolean isSilent;
    private CompletableFuture<Void> ending;
    /** Looks at the clock, and is over. */
    private volatile boolean isOver;

    private Lease(Transport transport, Answer answer, long sent) {
        this.transport = transport;
        secret = answer.text("secret");
        path = "/v1/leases/" + answer.text("lease");
        ttl = TimeUnit.MILLISECONDS.toNanos(answer.number("ttl_ms"));
        deadline = sent + reliable(ttl);
    }

    /** What its client counts on of a time that the cluster has promised: clocks do not run equally fast. */
    private static long reliable(long promised) {
        return promised - promised / 10;
    }

    static CompletableFuture<Lease> open(Transport transport, long ttl, long until, boolean keeps) {
        // The moment from which the answer counts is taken before the call, so retries only shorten it.
        long sent = Clock.now();
        var request = new Transport.Request(
            "POST", "/v1/leases", Map.of("ttl_ms", TimeUnit.NANOSECONDS.toMillis(ttl)));
        long each = Math.min(ttl / 3, transport.share(until));
        var call = transport.call(request, new Transport.Bounds(until, each, Lease::isLease));
        var opened = call.thenApply(answer -> {
            var lease = new Lease(transport, answer, sent);
            if (keeps) {
                lease.keepAlive(sent + lease.ttl / 3);
                lease.look();
            }
            return lease;
        });
        opened.whenComplete((lease, error) -> {
            if (opened.isCancelled()) {
                call.cancel(true);
            }
        });
        return opened;
    }

    private static boolean isLease(Answer answer) {
        var ttl = answer.number("ttl_ms");
        return answer.status() == 201 && answer.text("secret") != null && answer.text("lease") != null
            && ttl != null && ttl > 0 && ttl < Long.MAX_VALUE / Transport.MILLISECOND;
    }

    private static boolean isKept(Answer answer) {
        return answer.status() == 404 || answer.status() == 200 && answer.number("valid_for_ms") != null;
    }

    long deadline() {
        return deadline;
    }

    /** Looks at the clock, so it is right also when the timer had no time to run. */
    boolean isLost() {
        if (!isOver && Clock.now() >= deadline) {
            lose();
        }
        return isOver;
    }

    private void lose() {
        isOver = true;
        ended.completeAsync(() -> null, transport.workers);
    }

    /** Tells of the loss at the deadline. */
    private void look() {
        if (!isLost()) {
            transport.after(Math.min(deadline - Clock.now(), LOOK_EVERY), this::look);
        }
    }

    /** Asks for no keep-alive any more: the lease ends by itself. */
    void silence() {
        isSilent = true;
    }

    private void keepAlive(long due) {
        transport.after(due - Clock.now(), () -> {
            // Invariant: nothing is sent past the deadline, and a node that is silent leaves time for others.
            long sent = Clock.now();
            if (isSilent || isLost()) {
                return;
            }
            keepAlive(sent + ttl / 3);
            ask(sent);
        });
    }

    private CompletableFuture<Void> ask(long sent) {
        var request = new Transport.Request("POST", path + "/keepalive", Map.of("secret", secret));
        return transport.call(request, new Transport.Bounds(deadline, ttl / 6, Lease::isKept)).thenAccept(answer -> {
            if (answer.status() == 404) {
                lose();
            } else {
                extend(sent, answer.number("valid_for_ms"));
                hear(answer, sent);
            }
        });
    }

    /** Asks for keep-alive once; completes with whether the lease lives, and never fails. */
    CompletableFuture<Boolean> keepAlive() {
        if (isLost()) {
            return CompletableFuture.completedFuture(false);
        }
        // No node, or a refusal: what is known of the lease holds until its deadline.
        return ask(Clock.now()).handleAsync((none, error) -> !isLost(), transport.workers);
    }

    /** Invariant: a deadline that has passed is never moved, and none lies further ahead than the lease's time. */
    private synchronized void extend(long sent, long validForMs) {
        long valid = Math.min(ttl, TimeUnit.MILLISECONDS.toNanos(validForMs));
        if (!isLost()) {
            deadline = Math.min(revoked, sent + reliable(valid));
        }
    }

    /** Questions are for {@code guard} from now on: first those in the answer that it is made of. */
    void listen(ToLongFunction<List<?>> guard, Answer answer) {
        hears = guard;
        hear(answer, Clock.now());
    }

    /** Invariant: what is taken away is lost before. The deadline of a question only moves nearer. */
    private void hear(Answer answer, long sent) {
        long left = hears.applyAsLong(answer.list("asked"));
        if (left != Transport.FOREVER) {
            synchronized (this) {
                revoked = Math.min(revoked, sent + left);
                deadline = Math.min(deadline, revoked);
            }
        }
    }

    /** Gives back everything of it, once. Completes when a node has answered, and after a second at the latest. */
    synchronized CompletableFuture<Void> end() {
        if (ending == null) {
            ending = giveBack();
        }
        return ending;
    }

    private CompletableFuture<Void> giveBack() {
        isSilent = true;
        long until = deadline;
        lose();
        var request = new Transport.Request("DELETE", path, Map.of("secret", secret));
        var answered = transport.call(request, new Transport.Bounds(until, ttl / 3,
            answer -> answer.status() == 204 || answer.status() == 404));
        var done = new CompletableFuture<Void>();
        transport.after(END_MAX, () -> done.completeAsync(() -> null, transport.workers));
        answered.whenComplete((answer, error) -> done.complete(null));
        return done;
    }
}
