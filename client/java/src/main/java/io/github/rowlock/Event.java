package io.github.rowlock;

import java.util.Map;

/**
 * What happened to a lock.
 *
 * @param id to go on from; null: there is none behind this event
 * @param event requested, granted, converted, asked, released, lost, abandoned or gap
 * @param data the record of the history: strings, Long, Double, Boolean, maps and lists
 */
public record Event(String id, String event, Map<String, Object> data) {
}
