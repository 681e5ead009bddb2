package io.github.rowlock;

/** The cluster does not allow it. */
public final class RefusedException extends RowlockException {
    private static final long serialVersionUID = 1L;
    /** Of HTTP. */
    private final int status;

    RefusedException(int status, String message) {
        super(status + ": " + message);
        this.status = status;
    }

    /** {@return the status of HTTP} */
    public int status() {
        return status;
    }
}
