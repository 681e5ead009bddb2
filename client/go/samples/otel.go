//go:build ignore

// An observer for OpenTelemetry 1.24 or later, to copy: rowlock.Config{Observer: observer}.
package samples

import (
	"context"
	"time"

	rowlock "github.com/rowlock/rowlock/client/go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

type otelObserver struct {
	waiting      metric.Int64UpDownCounter
	waits, holds metric.Float64Histogram
	tracer       trace.Tracer
}

// NewOtelObserver records the metrics of docs/monitoring.md, and a span for each acquire, a child of the caller's span.
func NewOtelObserver(meter metric.Meter, tracer trace.Tracer) (rowlock.Observer, error) {
	waiting, err1 := meter.Int64UpDownCounter("rowlock.client.lock.waiting",
		metric.WithUnit("{acquire}"), metric.WithDescription("Acquires in progress"))
	// The SDK's own boundaries are for milliseconds.
	boundaries := metric.WithExplicitBucketBoundaries(
		0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
	waits, err2 := meter.Float64Histogram("rowlock.client.lock.wait", metric.WithUnit("s"), boundaries,
		metric.WithDescription("Time from the call of an acquire to its end"))
	holds, err3 := meter.Float64Histogram("rowlock.client.lock.hold", metric.WithUnit("s"), boundaries,
		metric.WithDescription("Time from the grant to the release or the loss"))
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return nil, err
		}
	}
	return otelObserver{waiting, waits, holds, tracer}, nil
}

func (o otelObserver) Waiting(ctx context.Context, name, _ string) {
	o.waiting.Add(ctx, 1, metric.WithAttributes(attribute.String("rowlock.lock.name", name)))
}

func (o otelObserver) Waited(ctx context.Context, wait rowlock.Wait) {
	name := attribute.String("rowlock.lock.name", wait.Name)
	outcome := attribute.String("rowlock.lock.outcome", string(wait.Outcome))
	contended := attribute.Bool("rowlock.lock.contended", wait.Contended)
	o.waiting.Add(ctx, -1, metric.WithAttributes(name))
	o.waits.Record(ctx, wait.Waited.Seconds(), metric.WithAttributes(name, outcome, contended))
	_, span := o.tracer.Start(ctx, "rowlock.acquire", trace.WithTimestamp(time.Now().Add(-wait.Waited)))
	span.SetAttributes(name, outcome, contended, attribute.String("rowlock.lock.path", wait.Lock))
	span.End()
}

func (o otelObserver) Held(hold rowlock.Hold) {
	name := attribute.String("rowlock.lock.name", hold.Name)
	outcome := attribute.String("rowlock.lock.outcome", string(hold.Outcome))
	o.holds.Record(context.Background(), hold.Held.Seconds(), metric.WithAttributes(name, outcome))
}
