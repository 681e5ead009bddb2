import io.github.rowlock.Rowlock;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;

/** Spring Integration on Rowlock: a key is the lock of that name below {@code spring}. */
public final class RowlockLockRegistry implements LockRegistry {
    private final Rowlock cluster;

    public RowlockLockRegistry(Rowlock cluster) {
        this.cluster = cluster;
    }

    @Override
    public Lock obtain(Object lockKey) {
        return new RowlockLock(cluster.lock("spring/" + lockKey));
    }
}
