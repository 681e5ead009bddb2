package io.github.rowlock;

import java.util.Map;

/**
 * Who holds a lock.
 *
 * @param token its fencing token
 * @param label what it says of itself; may be empty
 * @param sinceMs when it got the lock, in milliseconds since 1970
 */
public record Holder(long token, String label, long sinceMs) {
    static Holder of(Object document) {
        if (!(document instanceof Map<?, ?> fields)) {
            return null;
        }
        var token = Answer.token(fields.get("token"));
        var label = fields.get("label") instanceof String text ? text : "";
        return new Holder(token == null ? 0 : token, label, fields.get("since_ms") instanceof Long ms ? ms : 0);
    }
}
