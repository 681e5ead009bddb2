package io.github.rowlock;

/** Another client has the lock, and the timeout was zero. No place in the queue was taken. */
public final class BusyException extends RowlockException {
    private static final long serialVersionUID = 1L;
    private final transient Holder holder;

    BusyException(Holder holder) {
        super("another client has the lock" + (holder == null ? "" : ": " + holder));
        this.holder = holder;
    }

    /** {@return who holds the lock; null during a lock-delay} */
    public Holder holder() {
        return holder;
    }
}
