package org.springframework.integration.support.locks;

import java.util.concurrent.locks.Lock;

/** A stub with the signature of Spring Integration 6, to compile the sample where its jar is not at hand. */
public interface LockRegistry {
    Lock obtain(Object lockKey);
}
