package io.github.rowlock;

/** Not granted in time, or no node has answered. The place in the queue was given back, or ends with the lease. */
public final class TimedOutException extends RowlockException {
    private static final long serialVersionUID = 1L;

    TimedOutException(String message) {
        super(message);
    }
}
