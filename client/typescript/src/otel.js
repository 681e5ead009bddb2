/** An observer for OpenTelemetry. It imports nothing: the program gives it a meter and a tracer. */

/** Seconds. The SDKs' own boundaries are for milliseconds. */
const explicitBucketBoundaries = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800,
];

/** @param {{ meter: import("./otel.js").MeterLike, tracer?: import("./otel.js").TracerLike }} apis */
export function otelObserver({ meter, tracer }) {
  const seconds = (/** @type {string} */ description) => ({ unit: "s", description, advice: { explicitBucketBoundaries } });
  const waiting = meter.createUpDownCounter(
    "rowlock.client.lock.waiting", { unit: "{acquire}", description: "Acquires in progress" });
  const waits = meter.createHistogram(
    "rowlock.client.lock.wait", seconds("Time from the call of an acquire to its end"));
  const holds = meter.createHistogram(
    "rowlock.client.lock.hold", seconds("Time from the grant to the release or the loss"));
  return {
    /** @param {string} name */
    waiting(name) {
      waiting.add(1, { "rowlock.lock.name": name });
    },
    /** @param {import("./index.js").Wait} wait */
    waited({ name, lock, contended, outcome, seconds }) {
      const attributes = {
        "rowlock.lock.name": name, "rowlock.lock.contended": contended, "rowlock.lock.outcome": outcome,
      };
      waiting.add(-1, { "rowlock.lock.name": name });
      waits.record(seconds, attributes);
      const [end, more] = [Date.now(), { ...attributes, "rowlock.lock.path": lock }];
      tracer?.startSpan("rowlock.acquire", { startTime: end - seconds * 1000, attributes: more }).end(end);
    },
    /** @param {import("./index.js").Hold} hold */
    held({ name, outcome, seconds }) {
      holds.record(seconds, { "rowlock.lock.name": name, "rowlock.lock.outcome": outcome });
    },
  };
}
