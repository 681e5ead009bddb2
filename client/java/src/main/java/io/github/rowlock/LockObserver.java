package io.github.rowlock;

import java.time.Duration;
import java.util.Locale;

/**
 * Gets the waits and holds of a client, in the threads that end them: it must not block. What it throws is a warning of
 * the logger {@code io.github.rowlock}.
 */
public interface LockObserver {
    /**
     * An acquire begins; {@link #waited} follows in any case.
     *
     * @param name the metrics name
     * @param lock the lock itself
     */
    default void waiting(String name, String lock) {
    }

    /**
     * An acquire has ended.
     *
     * @param wait how, and after which time
     */
    default void waited(Wait wait) {
    }

    /**
     * A hold has ended.
     *
     * @param hold how, and after which time
     */
    default void held(Hold hold) {
    }

    /** How a wait or a hold has ended. */
    enum Outcome {
        /** A hold begins. */
        GRANTED,
        /** Another client had it, and the timeout was zero. */
        BUSY,
        /** Not granted in time. */
        TIMED_OUT,
        /** The queue position was lost, or the lock. */
        LOST,
        /** The future was completed by the program, or the thread interrupted. */
        CANCELED,
        /** The cluster does not allow it. */
        REFUSED,
        /** Any other error. */
        FAILED,
        /** By the program. */
        RELEASED;

        /** {@return the value of a metric's attribute, such as {@code timed_out}} */
        public String text() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /**
     * An acquire that has ended.
     *
     * @param name the metrics name
     * @param lock the lock itself, or several: for spans, not for metrics
     * @param contended the lock was found taken; false also where no node has said so
     * @param outcome how it has ended
     * @param waited from the call to its end
     */
    record Wait(String name, String lock, boolean contended, Outcome outcome, Duration waited) {
    }

    /**
     * A hold that has ended.
     *
     * @param name the metrics name
     * @param lock the lock itself, or several
     * @param outcome {@link Outcome#RELEASED} or {@link Outcome#LOST}
     * @param held from the grant to the release or the loss
     */
    record Hold(String name, String lock, Outcome outcome, Duration held) {
    }
}
