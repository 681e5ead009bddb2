package io.github.rowlock.adapters;

import io.github.rowlock.LockObserver;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.metrics.DoubleHistogram;
import io.opentelemetry.api.metrics.LongUpDownCounter;
import io.opentelemetry.api.metrics.Meter;
import java.time.Duration;
import java.util.List;

/**
 * The metrics of docs/monitoring.md by OpenTelemetry 1.32 or later:
 * {@code Rowlock.builder(urls).observer(new OpenTelemetryObserver(GlobalOpenTelemetry.getMeter("rowlock")))}.
 */
public final class OpenTelemetryObserver implements LockObserver {
    private static final AttributeKey<String> NAME = AttributeKey.stringKey("rowlock.lock.name");
    private static final AttributeKey<String> OUTCOME = AttributeKey.stringKey("rowlock.lock.outcome");
    private static final AttributeKey<Boolean> CONTENDED = AttributeKey.booleanKey("rowlock.lock.contended");
    /** The SDK's own boundaries are for milliseconds. */
    private static final List<Double> BOUNDARIES = List.of(
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0);

    private final LongUpDownCounter waiting;
    private final DoubleHistogram waits;
    private final DoubleHistogram holds;

    public OpenTelemetryObserver(Meter meter) {
        waiting = meter.upDownCounterBuilder("rowlock.client.lock.waiting").setUnit("{acquire}")
            .setDescription("Acquires in progress").build();
        waits = histogram(meter, "rowlock.client.lock.wait", "Time from the call of an acquire to its end");
        holds = histogram(meter, "rowlock.client.lock.hold", "Time from the grant to the release or the loss");
    }

    private static DoubleHistogram histogram(Meter meter, String name, String description) {
        return meter.histogramBuilder(name).setUnit("s").setDescription(description)
            .setExplicitBucketBoundariesAdvice(BOUNDARIES).build();
    }

    @Override
    public void waiting(String name, String lock) {
        waiting.add(1, Attributes.of(NAME, name));
    }

    @Override
    public void waited(Wait wait) {
        waiting.add(-1, Attributes.of(NAME, wait.name()));
        waits.record(seconds(wait.waited()),
            Attributes.of(NAME, wait.name(), CONTENDED, wait.contended(), OUTCOME, wait.outcome().text()));
    }

    @Override
    public void held(Hold hold) {
        holds.record(seconds(hold.held()), Attributes.of(NAME, hold.name(), OUTCOME, hold.outcome().text()));
    }

    private static double seconds(Duration time) {
        return time.toNanos() / 1e9;
    }
}
