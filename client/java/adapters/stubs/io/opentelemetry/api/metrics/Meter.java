package io.opentelemetry.api.metrics;

/** What the adapter uses of OpenTelemetry's. */
public interface Meter {
    LongUpDownCounterBuilder upDownCounterBuilder(String name);

    DoubleHistogramBuilder histogramBuilder(String name);
}
