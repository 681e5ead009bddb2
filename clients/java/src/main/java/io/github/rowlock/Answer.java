package io.github.rowlock;

import java.util.List;
import java.util.Map;

/** What a node has answered. */
record Answer(int status, Map<?, ?> document) {
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
            return value instanceof String text && !text.startsWith("-") ? Long.valueOf(text) : null;
        } catch (NumberFormatException e) {
            return null;
        }
    }
}
