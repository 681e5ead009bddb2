package net.javacrumbs.shedlock.core;

/** A stub with ShedLock's signatures. */
public interface ExtensibleLockProvider extends LockProvider {
}
