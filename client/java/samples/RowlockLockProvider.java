import io.github.rowlock.Rowlock;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * ShedLock on Rowlock. The lock is kept alive while the task runs, to {@code lockAtMostFor} at the longest, and given
 * back after {@code lockAtLeastFor}. A host that dies gives it back after a lease's time, whatever lockAtLeastFor says.
 */
public final class RowlockLockProvider implements LockProvider {
    private final Rowlock cluster;

    public RowlockLockProvider(Rowlock cluster) {
        this.cluster = cluster;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        try {
            var guard = cluster.lock("shedlock/" + configuration.getName()).tryAcquire();
            return guard.map(held -> {
                CompletableFuture.delayedExecutor(configuration.getLockAtMostFor().toMillis(), TimeUnit.MILLISECONDS)
                    .execute(held::release);
                return new Held(configuration, held);
            });
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    private static final class Held extends AbstractSimpleLock {
        private final io.github.rowlock.Guard guard;
        private final Instant atLeast;

        Held(LockConfiguration configuration, io.github.rowlock.Guard guard) {
            super(configuration);
            this.guard = guard;
            atLeast = configuration.getLockAtLeastUntil();
        }

        @Override
        protected void doUnlock() {
            long left = Duration.between(Instant.now(), atLeast).toMillis();
            if (left <= 0) {
                guard.release();
            } else {
                CompletableFuture.delayedExecutor(left, TimeUnit.MILLISECONDS).execute(guard::release);
            }
        }
    }
}
