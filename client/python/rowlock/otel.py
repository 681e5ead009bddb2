"""An observer for OpenTelemetry: `Rowlock(urls, observer=OtelObserver())`. Needs `opentelemetry-api`."""

import time
from typing import Any

from .observer import Hold, Observer, Wait

# Seconds. The SDKs' own boundaries are for milliseconds.
BOUNDARIES = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800]


class OtelObserver(Observer):
    """Records the metrics of docs/monitoring.md, and a span for each acquire, a child of the caller's span.

    Without `meter` and `tracer` it takes those of the global providers.
    """

    def __init__(self, meter: Any = None, tracer: Any = None) -> None:
        if meter is None:
            from opentelemetry import metrics
            meter = metrics.get_meter("rowlock")
        if tracer is None:
            from opentelemetry import trace
            tracer = trace.get_tracer("rowlock")
        self._tracer = tracer
        self._waiting = meter.create_up_down_counter(
            "rowlock.client.lock.waiting", unit="{acquire}", description="Acquires in progress")
        self._wait = meter.create_histogram(
            "rowlock.client.lock.wait", unit="s", description="Time from the call of an acquire to its end",
            explicit_bucket_boundaries_advisory=BOUNDARIES)
        self._hold = meter.create_histogram(
            "rowlock.client.lock.hold", unit="s", description="Time from the grant to the release or the loss",
            explicit_bucket_boundaries_advisory=BOUNDARIES)

    def waiting(self, name: str, lock: str) -> None:
        self._waiting.add(1, {"rowlock.lock.name": name})

    def waited(self, wait: Wait) -> None:
        attributes = {
            "rowlock.lock.name": wait.name,
            "rowlock.lock.contended": wait.contended,
            "rowlock.lock.outcome": wait.outcome,
        }
        self._waiting.add(-1, {"rowlock.lock.name": wait.name})
        self._wait.record(wait.seconds, attributes)
        end = time.time_ns()
        began = end - int(wait.seconds * 1e9)
        attributes = {**attributes, "rowlock.lock.path": wait.lock}
        self._tracer.start_span("rowlock.acquire", start_time=began, attributes=attributes).end(end)

    def held(self, hold: Hold) -> None:
        self._hold.record(
            hold.seconds, {"rowlock.lock.name": hold.name, "rowlock.lock.outcome": hold.outcome})
