/**
 * Locks of a Rowlock cluster by HTTP, with nothing but the JDK.
 *
 * <p>Each lock has a lease of its own at the cluster, which a timer keeps alive. When that fails for the time of the
 * lease, the lock is lost: {@link io.github.rowlock.Guard#isLost} says so before the cluster grants it to another
 * client.
 */
package io.github.rowlock;
