package io.opentelemetry.api.metrics;

import java.util.List;

/** What the adapter uses of OpenTelemetry's. */
public interface DoubleHistogramBuilder {
    DoubleHistogramBuilder setDescription(String description);

    DoubleHistogramBuilder setUnit(String unit);

    DoubleHistogramBuilder setExplicitBucketBoundariesAdvice(List<Double> bucketBoundaries);

    DoubleHistogram build();
}
