package io.opentelemetry.api.metrics;

/** What the adapter uses of OpenTelemetry's. */
public interface LongUpDownCounterBuilder {
    LongUpDownCounterBuilder setDescription(String description);

    LongUpDownCounterBuilder setUnit(String unit);

    LongUpDownCounter build();
}
