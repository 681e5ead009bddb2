/** Compiled and not run: what a program in TypeScript writes. */

import { otelObserver } from "rowlock/otel";
import { Busy, FENCE_HEADER, Fence, Refused, Rowlock, Stale, fenceHeader, type Guard, type Leader, type LockOptions, type Observer, type Question, type Wait } from "rowlock";

const options: LockOptions = { timeoutMs: 5000, mode: "permits", permits: 1, limit: 3, label: "a", keepAlive: false, metricsName: "a" };

export const observers: Observer[] = [
  { waited: ({ outcome, seconds }: Wait) => console.log(outcome === "granted" ? seconds.toFixed() : outcome) },
  otelObserver({
    meter: { createHistogram: () => ({ record: () => {} }), createUpDownCounter: () => ({ add: () => {} }) },
    tracer: { startSpan: (name, options) => ({ end: (at) => console.log(name, options?.startTime, at) }) },
  }),
];

export async function uses(signal: AbortSignal): Promise<number> {
  const cluster = new Rowlock(["http://127.0.0.1:8481"], { token: "t", ttlMs: 5000, observer: observers[0], onUnreleased: (lock, error) => console.error(lock, error.message) });
  const length: number = await cluster.withLock("a/b", options, async (guard) => guard.token.toString().length);
  const guard: Guard = await cluster.lock("a", { signal, onWaiting: (position) => position.toFixed() });
  const token: bigint = guard.token;
  const lost: AbortSignal = guard.signal;
  const isKept: boolean = await guard.keepAlive();
  const asked: number = await cluster.ask("a", "the next release", { withinMs: 60_000, label: "me", signal: guard.asked });
  const question: Question | null = asked === 0 ? null : guard.question;
  if (question?.revokedMs && question.token === token) throw new Error(question.reason + question.by + question.lock);
  const version: number = await guard.set("/a", new Uint8Array([1]), await guard.create("/a", "text"));
  await guard.delete("/a", version).catch((error) => error instanceof Stale);
  const fits: boolean = new Fence(token).check(guard.token) && FENCE_HEADER === "Rowlock-Fence";
  const header: string = fenceHeader("a/b", token);
  const released: boolean = (await guard.release()) && fits && isKept && header !== "";
  await using other: Guard = await cluster.lock("b");
  await other.releaseLater().then(() => cluster.flush());
  const leader: Leader | null = await cluster.election("e").leader({ signal: lost });
  for await (const { id, event, data } of cluster.watch({ prefix: "/locks/", signal })) {
    if (event === "gap" && id !== undefined) return data.time_ms + Number(token) + Number(released);
  }
  // @ts-expect-error there is no such mode
  await cluster.lock("a", { mode: "both" });
  // @ts-expect-error a token is no number
  const wrong: number = guard.token;
  return length + wrong + (leader?.value.length ?? 0);
}

export function says(error: unknown): string {
  if (error instanceof Busy) return error.holder?.token ?? "a delay";
  return error instanceof Refused ? `${error.status} ${error.problem.title}` : "";
}
