package net.javacrumbs.shedlock.core;

import java.time.Duration;
import java.time.Instant;
import java.util.Optional;

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

    @Override
    public Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
        return doExtend(new LockConfiguration(Instant.now(), lockConfiguration.getName(), lockAtMostFor, lockAtLeastFor));
    }

    protected Optional<SimpleLock> doExtend(LockConfiguration newConfiguration) {
        throw new UnsupportedOperationException();
    }
}
