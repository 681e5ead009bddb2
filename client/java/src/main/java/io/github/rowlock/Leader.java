package io.github.rowlock;

/**
 * Who leads an election.
 *
 * @param value what it says of itself
 * @param token the fencing token of its lead
 * @param sinceMs when its lead began, in milliseconds since 1970
 */
public record Leader(String value, long token, long sinceMs) {
}
