package io.github.rowlock;

import java.util.List;
import java.util.Map;

/**
 * What a node, or a gateway in front of it, has answered.
 *
 * @param strange the first line of a body that is no document of the API; null: it is one
 */
record Answer(int status, Map<?, ?> document, String strange) {
    /** Characters of a strange answer that are looked at, and of it in a message. */
    private static final int STRANGE_MAX = 4096;
    private static final int LINE_MAX = 200;

    Answer(int status, Map<?, ?> document) {
        this(status, document, null);
    }

    /** Reads a body. Errors of the API have documents, so an empty one with such a status is strange. */
    static Answer read(int status, String body) {
        try {
            var document = body.isEmpty() && status < 400 ? Map.of() : Json.parse(body);
            if (document instanceof Map<?, ?> map) {
                return new Answer(status, map);
            }
        } catch (IllegalArgumentException wrong) {
            // It is strange.
        }
        return new Answer(status, Map.of(), firstLine(body));
    }

    /** The first line with text, without the tags of HTML. */
    private static String firstLine(String body) {
        var start = body.substring(0, Math.min(body.length(), STRANGE_MAX));
        return start.replaceAll("<[^>]*>", " ").lines().map(line -> line.replaceAll("[^ -~]", " ").strip())
            .filter(line -> !line.isEmpty()).findFirst()
            .map(line -> line.substring(0, Math.min(line.length(), LINE_MAX))).orElse("an empty answer");
    }

    /**
     * Whether another try makes no sense. A 404 is for the caller to understand; a strange 408 or 429 is a gateway's,
     * which will let later requests through.
     */
    boolean isRefusal() {
        boolean isLater = strange != null && (status == 408 || status == 429);
        return status >= 400 && status < 500 && status != 404 && !isLater;
    }

    /** The problem, for people. */
    String said() {
        var detail = text("detail") == null ? text("title") : text("detail");
        return strange != null ? strange : detail == null ? "not an answer of this API" : detail;
    }

    /** Its field, if it has one of this kind, or null. */
    <T> T get(String name, Class<T> kind) {
        var value = document.get(name);
        return kind.isInstance(value) ? kind.cast(value) : null;
    }

    String text(String name) {
        var value = get(name, String.class);
        return value == null || value.isEmpty() ? null : value;
    }

    /** A time in milliseconds or a count, or null. */
    Long number(String name) {
        var value = get(name, Long.class);
        return value == null || value < 0 || value > 1L << 53 ? null : value;
    }

    List<?> list(String name) {
        var value = get(name, List.class);
        return value == null ? List.of() : value;
    }

    /** Whether it is about this fact, or says that there is nothing. */
    boolean isAbout(String fact) {
        return status == 404 || status == 200 && get(fact, Boolean.class) != null;
    }

    /** A token as the API writes it, or null. */
    static Long token(Object value) {
        try {
            return value instanceof String text && text.matches("[0-9]{1,19}") ? Long.valueOf(text) : null;
        } catch (NumberFormatException e) {
            return null;
        }
    }
}
