package io.opentelemetry.api.metrics;

import io.opentelemetry.api.common.Attributes;

/** What the adapter uses of OpenTelemetry's. */
public interface LongUpDownCounter {
    void add(long value, Attributes attributes);
}
