package io.github.rowlock;

/** Why a request has failed: a subclass for each reason. */
public class RowlockException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    RowlockException(String message) {
        super(message);
    }

    RowlockException(String message, Throwable cause) {
        super(message, cause);
    }
}
