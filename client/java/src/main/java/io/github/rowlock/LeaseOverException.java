package io.github.rowlock;

/** The lease has ended: what it held is free, and its place in the queue is gone. */
public final class LeaseOverException extends RowlockException {
    private static final long serialVersionUID = 1L;

    LeaseOverException(String message) {
        super(message);
    }
}
