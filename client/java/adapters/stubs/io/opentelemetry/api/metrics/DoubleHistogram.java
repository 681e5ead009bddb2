package io.opentelemetry.api.metrics;

import io.opentelemetry.api.common.Attributes;

/** What the adapter uses of OpenTelemetry's. */
public interface DoubleHistogram {
    void record(double value, Attributes attributes);
}
