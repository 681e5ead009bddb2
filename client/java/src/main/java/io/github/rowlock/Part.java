package io.github.rowlock;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * One of several locks that are taken together.
 *
 * @param lock its name or path
 * @param mode with whom it is shared
 * @param permits how many are wanted; 0: it is no semaphore
 * @param limit how many permits the lock has
 */
public record Part(String lock, Mode mode, int permits, int limit) {
    /**
     * A lock for one holder.
     *
     * @param lock its name or path
     * @return the part
     */
    public static Part exclusive(String lock) {
        return new Part(lock, Mode.EXCLUSIVE, 0, 0);
    }

    /**
     * A lock that is shared.
     *
     * @param lock its name or path
     * @return the part
     */
    public static Part shared(String lock) {
        return new Part(lock, Mode.SHARED, 0, 0);
    }

    Map<String, Object> body(boolean isNamed) {
        var body = new LinkedHashMap<String, Object>();
        if (isNamed) {
            body.put("lock", lock);
        }
        if (permits > 0) {
            body.put("mode", "permits");
            body.put("permits", permits);
            if (limit > 0) {
                body.put("limit", limit);
            }
        } else {
            body.put("mode", mode == Mode.SHARED ? "shared" : "exclusive");
        }
        return body;
    }

    /** Where requests on this lock go. */
    String address() {
        return "/v1/locks/" + path();
    }

    String path() {
        for (var level : lock.split("/", -1)) {
            // The URI would lose them, and so ask for something else.
            if (level.equals(".") || level.equals("..")) {
                throw new IllegalArgumentException("not a name: " + lock);
            }
        }
        return Fence.encoded(lock);
    }
}
