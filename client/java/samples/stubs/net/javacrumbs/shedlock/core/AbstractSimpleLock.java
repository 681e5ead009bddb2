package net.javacrumbs.shedlock.core;

/** A stub with ShedLock's signatures. */
public abstract class AbstractSimpleLock implements SimpleLock {
    protected final LockConfiguration lockConfiguration;

    protected AbstractSimpleLock(LockConfiguration lockConfiguration) {
        this.lockConfiguration = lockConfiguration;
    }

    @Override
    public final void unlock() {
        doUnlock();
    }

    protected abstract void doUnlock();
}
