package io.github.rowlock;

/** With whom a lock is shared. */
public enum Mode {
    /** One holder. */
    EXCLUSIVE,
    /** All who ask for {@code SHARED}. */
    SHARED
}
