package org.springframework.integration.support.locks;

import java.util.concurrent.locks.Lock;

/** A stub with the signature of Spring Integration 7, to compile the adapter where its jar is not at hand. */
@FunctionalInterface
public interface LockRegistry<L extends Lock> {
    L obtain(Object lockKey);
}
