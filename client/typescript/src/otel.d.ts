import type { Observer } from "./index.js";

type Attributes = Record<string, string | boolean>;

/** What is used of a `Meter` of `@opentelemetry/api` (1.7 or later). */
export interface MeterLike {
  createUpDownCounter(name: string, options?: object): { add(value: number, attributes?: Attributes): void };
  createHistogram(name: string, options?: object): { record(value: number, attributes?: Attributes): void };
}

/** What is used of a `Tracer` of `@opentelemetry/api`. */
export interface TracerLike {
  startSpan(name: string, options?: { startTime?: number; attributes?: Attributes }): { end(endTime?: number): void };
}

/**
 * Records the metrics of docs/monitoring.md and, with a tracer, a span for each acquire, a child of the caller's span:
 * `new Rowlock(urls, { observer: otelObserver({ meter: metrics.getMeter("rowlock"), tracer: trace.getTracer("rowlock") }) })`.
 */
export function otelObserver(apis: { meter: MeterLike; tracer?: TracerLike }): Observer;
