package io.github.rowlock;

/** A write came too late: a holder with a larger token has been there, or this token holds the lock no more. */
public final class StaleTokenException extends RowlockException {
    private static final long serialVersionUID = 1L;

    StaleTokenException(String message) {
        super(message);
    }
}
