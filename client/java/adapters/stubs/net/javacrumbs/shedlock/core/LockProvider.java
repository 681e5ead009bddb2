package net.javacrumbs.shedlock.core;

import java.util.Optional;

/** A stub with ShedLock's signatures, to compile the adapter where its jar is not at hand. */
public interface LockProvider {
    Optional<SimpleLock> lock(LockConfiguration configuration);
}
