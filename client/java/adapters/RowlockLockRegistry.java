package io.github.rowlock.adapters;

import io.github.rowlock.Rowlock;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;

/**
 * Spring Integration (5 to 7) on Rowlock: a key, encoded as in an address, is the lock of that name below {@code spring},
 * with {@code .key} behind it. A thread that holds a key may take it again, by any lock of this client.
 */
@SuppressWarnings("rawtypes") // Generic from 7 on: this way one class is for all of them.
public final class RowlockLockRegistry implements LockRegistry {
    private final Rowlock cluster;

    /**
     * A registry whose locks are those of a cluster.
     *
     * @param cluster where the locks are
     */
    public RowlockLockRegistry(Rowlock cluster) {
        this.cluster = cluster;
    }

    @Override
    public Lock obtain(Object lockKey) {
        var key = lockKey.toString();
        // Keys are UUIDs, whose end may be ten digits, and paths of files: neither is the name of a lock.
        var name = URLEncoder.encode(key, StandardCharsets.UTF_8) + ".key";
        return new RowlockLock(cluster.lock("spring/" + name), List.of(cluster, key));
    }
}
