package io.github.rowlock;

import java.time.Instant;

/**
 * Why a lock is wanted that is held: its holder is asked to give it back.
 *
 * @param lock the path of the lock
 * @param token of the holder that is asked
 * @param reason in the words of the one who asks
 * @param by who asks, as the cluster knows it
 * @param asked when, by the clock of this machine
 * @param revoked the guard is lost then, and the cluster takes the lock away; null: never
 */
public record Question(String lock, long token, String reason, String by, Instant asked, Instant revoked) {
}
