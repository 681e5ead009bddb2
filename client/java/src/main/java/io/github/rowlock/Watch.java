package io.github.rowlock;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;

/** What happens to one lock, to those below a prefix, or to all. */
public final class Watch {
    /** A stream that says nothing for so long counts as dead: nodes say something every 15 s. */
    private static final long SILENCE_MAX = 40 * Transport.SECOND;
    /** Between two rounds through all nodes, at most. */
    private static final long PAUSE_MAX = 5 * Transport.SECOND;

    private final Transport transport;
    private final String query;
    private final String after;

    Watch(Transport transport, String query, String after) {
        this.transport = transport;
        this.query = query;
        this.after = after;
    }

    /**
     * Goes on behind an event that is known.
     *
     * @param id of that event; "0": from the beginning of the history
     * @return the watch
     */
    public Watch after(String id) {
        return new Watch(transport, query, id);
    }

    /**
     * Tells what happens, in order, until {@code told} returns false. It goes on at another node when one fails. Then
     * an event may be told again; none is left out, except where a gap says so.
     *
     * @param told is called in the caller's thread
     * @throws InterruptedException the thread was interrupted
     * @throws RefusedException the cluster does not allow it
     */
    public void run(Predicate<Event> told) throws InterruptedException {
        var reading = new Reading(told);
        for (int failed = 0; !reading.isOver; failed++) {
            var headers = new HashMap<>(Map.of("Accept", "text/event-stream"));
            if (reading.last != null) {
                headers.put("Last-Event-ID", reading.last);
            }
            try (var stream = transport.stream(new Transport.Request("GET", "/v1/watch" + query, null, headers))) {
                if (reading.read(stream)) {
                    failed = 0;
                }
                transport.moveOn();
            } catch (IOException error) {
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
            }
            if (!reading.isOver && failed % transport.count() == 0) {
                TimeUnit.NANOSECONDS.sleep(Math.min(Transport.PAUSE << Math.min(failed, 8), PAUSE_MAX));
            }
        }
    }

    private final class Reading {
        private final Predicate<Event> told;
        private String last = after;
        private boolean isOver;
        private String id;
        private String event = "";
        private StringBuilder data;

        Reading(Predicate<Event> told) {
            this.told = told;
        }

        /** Reads a stream to its end; whether it has said anything. */
        boolean read(InputStream stream) throws IOException {
            var heard = new AtomicLong(Clock.now());
            var guard = transport.timer.scheduleWithFixedDelay(() -> {
                if (Clock.now() - heard.get() > SILENCE_MAX) {
                    transport.workers.execute(() -> close(stream));
                }
            }, 1, 1, TimeUnit.SECONDS);
            boolean isAny = false;
            try (var lines = new BufferedReader(new InputStreamReader(stream, StandardCharsets.UTF_8))) {
                for (var line = lines.readLine(); line != null && !isOver; line = lines.readLine()) {
                    heard.set(Clock.now());
                    isAny |= line(line);
                    if (isOver) {
                        break;
                    }
                    if (Thread.currentThread().isInterrupted()) {
                        throw new IOException("interrupted");
                    }
                }
            } finally {
                guard.cancel(false);
            }
            return isAny;
        }

        private boolean line(String line) {
            if (line.isEmpty()) {
                boolean isAny = id != null || data != null;
                if (data != null && Json.parse(data.toString()) instanceof Map<?, ?> fields) {
                    @SuppressWarnings("unchecked")
                    var document = (Map<String, Object>) fields;
                    isOver = !told.test(new Event(id, event, document));
                }
                last = id == null ? last : id;
                id = null;
                event = "";
                data = null;
                return isAny;
            }
            int colon = line.indexOf(':');
            var name = colon < 0 ? line : line.substring(0, colon);
            var value = colon < 0 ? "" : line.substring(colon + 1);
            value = value.startsWith(" ") ? value.substring(1) : value;
            switch (name) {
                case "id" -> id = value;
                case "event" -> event = value;
                case "data" -> data = (data == null ? new StringBuilder() : data.append('\n')).append(value);
                default -> { }
            }
            return false;
        }

        private void close(InputStream stream) {
            try {
                stream.close();
            } catch (IOException error) {
                // It is dead.
            }
        }
    }
}
