package io.github.rowlock;

import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The largest token that a resource has seen: one for each resource. Safe for threads.
 *
 * <p>It lives in memory: data that outlive the program need the token beside them, compared in the same transaction.
 */
public final class Fence {
    /** The HTTP header in which a token travels to a service: the lock, percent-encoded, a semicolon, the token. */
    public static final String HEADER = "Rowlock-Fence";

    private final ReentrantLock mutex = new ReentrantLock();
    private final Condition changed = mutex.newCondition();
    private final TreeMap<Long, Integer> inside = new TreeMap<>();
    private long seen;

    /** Has seen no token. */
    public Fence() {
    }

    /**
     * Begins with a token that was stored.
     *
     * @param seen the largest token beside the data
     */
    public Fence(long seen) {
        this.seen = seen;
    }

    /** Ends a write that {@link Fence#enter} has let in. */
    @FunctionalInterface
    public interface Entered extends AutoCloseable {
        /** Lets holders with larger tokens in. It may be repeated. */
        @Override
        void close();
    }

    /** {@return the largest token so far} */
    public long seen() {
        mutex.lock();
        try {
            return seen;
        } finally {
            mutex.unlock();
        }
    }

    /**
     * Remembers the token if none was larger. Compare and write must be one step: call it under the mutex of the data,
     * or use {@link #enter}.
     *
     * @param token of the caller
     * @return false: refuse the write
     */
    public boolean check(long token) {
        mutex.lock();
        try {
            return admit(token);
        } finally {
            mutex.unlock();
        }
    }

    private boolean admit(long token) {
        if (token < seen) {
            return false;
        }
        seen = token;
        return true;
    }

    /**
     * As {@link #check}, for writes that take time: waits until those with smaller tokens have ended. Smaller tokens
     * are refused from the call on.
     *
     * @param token of the caller
     * @return to be closed when the write has ended
     * @throws StaleTokenException refuse the write
     * @throws InterruptedException the thread was interrupted
     */
    public Entered enter(long token) throws InterruptedException {
        mutex.lockInterruptibly();
        try {
            if (!admit(token)) {
                throw stale(token);
            }
            inside.merge(token, 1, Integer::sum);
            var isIn = false;
            try {
                while (inside.firstKey() < token) {
                    changed.await(1, TimeUnit.SECONDS);
                }
                if (token < seen) {
                    throw stale(token);
                }
                isIn = true;
            } finally {
                if (!isIn) {
                    leave(token);
                }
            }
        } finally {
            mutex.unlock();
        }
        return new Entered() {
            private boolean isClosed;

            @Override
            public void close() {
                mutex.lock();
                try {
                    if (!isClosed) {
                        isClosed = true;
                        leave(token);
                    }
                } finally {
                    mutex.unlock();
                }
            }
        };
    }

    private void leave(long token) {
        inside.computeIfPresent(token, (key, count) -> count == 1 ? null : count - 1);
        changed.signalAll();
    }

    private StaleTokenException stale(long token) {
        return new StaleTokenException("stale token " + token + ": a holder with token " + seen + " has been here");
    }

    /**
     * The value of {@link #HEADER}.
     *
     * @param lock its name or path
     * @param token of the holder
     * @return what a service with a fence takes
     */
    public static String header(String lock, long token) {
        return encoded(lock) + ";" + token;
    }

    /** Percent-encoded, its slashes as they are. */
    static String encoded(String text) {
        var out = new StringBuilder();
        for (byte b : Json.bytes(text)) {
            char c = (char) (b & 0xff);
            if (c < 128 && (Character.isLetterOrDigit(c) || "-._~/".indexOf(c) >= 0)) {
                out.append(c);
            } else {
                out.append(String.format("%%%02X", (int) c));
            }
        }
        return out.toString();
    }
}
