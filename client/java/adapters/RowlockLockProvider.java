package io.github.rowlock.adapters;

import io.github.rowlock.Guard;
import io.github.rowlock.Rowlock;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * ShedLock (4.44 to 7) on Rowlock. The lock is kept alive while the task runs, to {@code lockAtMostFor} at the longest; a
 * host that dies gives it back after a lease's time. The cluster keeps {@code lockAtLeastFor}, also for a host that dies;
 * that of an extension is kept by its host.
 */
public final class RowlockLockProvider implements ExtensibleLockProvider {
    private final Rowlock cluster;

    /**
     * A provider whose locks are those of a cluster, below {@code shedlock}.
     *
     * @param cluster where the locks are
     */
    public RowlockLockProvider(Rowlock cluster) {
        this.cluster = cluster;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        var request = cluster.lock("shedlock/" + configuration.getName()).minHold(configuration.getLockAtLeastFor());
        try {
            return request.tryAcquire().map(guard -> new Held(configuration, guard, Duration.ZERO));
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    private static final class Held extends AbstractSimpleLock {
        private final Guard guard;
        private final CompletableFuture<Void> end;
        private final long least;

        Held(LockConfiguration configuration, Guard guard, Duration atLeast) {
            super(configuration);
            this.guard = guard;
            least = System.nanoTime() + atLeast.toNanos();
            end = CompletableFuture.runAsync(guard::release, after(configuration.getLockAtMostFor().toNanos()));
        }

        private static Executor after(long nanos) {
            return CompletableFuture.delayedExecutor(nanos, TimeUnit.NANOSECONDS);
        }

        @Override
        protected void doUnlock() {
            end.cancel(false);
            long left = least - System.nanoTime();
            if (left <= 0) {
                guard.release();
            } else {
                after(left).execute(guard::release);
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration extended) {
            end.cancel(false);
            return guard.isLost() ? Optional.empty()
                : Optional.of(new Held(extended, guard, extended.getLockAtLeastFor()));
        }
    }
}
