package io.github.rowlock;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/** The queue of a lock; its holder leads. */
public final class Election {
    /** A request for the next leader waits so long. */
    private static final long WAIT = 30 * Transport.SECOND;

    private final String path;
    private final LockRequest candidacy;

    Election(Transport transport, long ttl, Metering metering, String name) {
        path = "/v1/elections/" + Fence.encoded(name).replace("/", "%2F");
        var verify = Part.exclusive("@elections/" + name).address() + "/verify";
        candidacy = new LockRequest(transport, ttl, metering, new LockRequest.Target(
            "@elections/" + name, path + "/campaign", List.of(path + "/resign"), List.of(verify), Map.of(), true));
    }

    /**
     * A candidate: {@link LockRequest#acquire} waits for the lead, {@link Guard#release} resigns.
     *
     * @param value what others see of it, such as an address: up to 256 bytes
     * @return the request
     */
    public LockRequest candidate(String value) {
        return candidacy.with("value", value);
    }

    /**
     * Who leads at a moment of this call.
     *
     * @return empty: no candidate does
     * @throws InterruptedException the thread was interrupted
     */
    public Optional<Leader> leader() throws InterruptedException {
        long until = Clock.now() + Transport.ANSWER_MAX;
        return Optional.ofNullable(leader(ask("", until, candidacy.transport.share(until))));
    }

    /**
     * Tells who leads (empty: no candidate does), now and at every change, until {@code told} returns false. A short
     * lead may be left out.
     *
     * @param told is called in the caller's thread
     * @throws InterruptedException the thread was interrupted
     */
    public void observe(Predicate<Optional<Leader>> told) throws InterruptedException {
        var query = "";
        String seen = null;
        while (true) {
            var answer = ask(query, Transport.FOREVER, query.isEmpty() ? Transport.ANSWER_MAX : WAIT + Transport.ANSWER_MAX);
            var leader = leader(answer);
            var state = answer.text("zxid") + " " + leader;
            if (state.equals(seen)) {
                TimeUnit.NANOSECONDS.sleep(Transport.PAUSE);
            } else if (!told.test(Optional.ofNullable(leader))) {
                return;
            }
            seen = state;
            query = "?after=" + answer.text("zxid") + "&wait_ms=" + TimeUnit.NANOSECONDS.toMillis(WAIT);
        }
    }

    private Answer ask(String query, long until, long each) throws InterruptedException {
        var request = new Transport.Request("GET", path + "/leader" + query, null);
        var bounds = new Transport.Bounds(until, each, Election::isLed);
        return LockRequest.waited(candidacy.transport.call(request, bounds));
    }

    private static boolean isLed(Answer answer) {
        boolean isKnown = answer.document().get("leader") == null || leader(answer) != null;
        return answer.status() == 200 && answer.text("zxid") != null && isKnown;
    }

    private static Leader leader(Answer answer) {
        if (!(answer.document().get("leader") instanceof Map<?, ?> fields)) {
            return null;
        }
        var token = Answer.token(fields.get("token"));
        boolean isWhole = token != null && fields.get("value") instanceof String && fields.get("since_ms") instanceof Long;
        return isWhole ? new Leader((String) fields.get("value"), token, (Long) fields.get("since_ms")) : null;
    }
}
