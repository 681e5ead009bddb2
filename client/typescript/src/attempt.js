/** One attempt to hold something: it makes a lease, asks until it is told, and leaves no place behind. */

import { now, pause } from "./clock.js";
import { Busy, LeaseOver, TimedOut } from "./errors.js";
import { Guard } from "./guard.js";
import { Lease } from "./lease.js";
import { ANSWER_MAX, PAUSE, isText, requestId } from "./transport.js";

/** Milliseconds that one request waits at most; the node itself answers after half of the lease's time. */
const WAIT_MAX = 30_000;
/** Milliseconds for an attempt with `timeoutMs` 0: it takes no place in the queue, but a node has to answer. */
const AT_ONCE = 15_000;
/** Milliseconds that one request waits at least, unless less is left. */
const WAIT_MIN = 50;

/**
 * @typedef {object} Asked What is asked for.
 * @property {string} ask The address of the request that takes it.
 * @property {string} free The address of the request that gives it back.
 * @property {string} verify
 * @property {Record<string, unknown>} body
 * @property {boolean} again Whether a place that was taken away is asked for again.
 */

/**
 * @param {import("./transport.js").Transport} transport @param {number} ttlMs @param {Asked} asked
 * @param {import("./index.js").AttemptOptions} options @param {import("./observer.js").Measure} measure
 * @returns {Promise<Guard>}
 */
export async function attempt(transport, ttlMs, asked, options, measure) {
  const { timeoutMs, signal, keepAlive = true } = options;
  const until = timeoutMs === undefined ? Infinity : now() + (timeoutMs || AT_ONCE);
  /** @type {Lease | undefined} */
  let lease;
  try {
    lease = await Lease.open(transport, ttlMs, until, signal, keepAlive);
    // The lease is opened meanwhile: an earlier release of this lock costs no round trip.
    await transport.behind(asked.free, until, signal);
    return await ask(transport, lease, asked, until, options, measure);
  } catch (error) {
    measure.fail(error, signal);
    await lease?.end();
    throw error;
  }
}

/**
 * @param {import("./transport.js").Transport} transport @param {Lease} lease @param {Asked} asked
 * @param {number} until @param {import("./index.js").AttemptOptions} options
 * @param {import("./observer.js").Measure} measure
 * @returns {Promise<Guard>}
 */
async function ask(transport, lease, asked, until, { timeoutMs, signal, onWaiting }, measure) {
  const defined = Object.entries(asked.body).filter(([, value]) => value !== undefined);
  let id = requestId();
  for (;;) {
    signal?.throwIfAborted();
    // Each answer comes within half of the lease's time.
    if (!lease.keeps) await lease.keepAliveOnce(signal);
    const left = until - now();
    if (left <= 0) throw new TimedOut("the lock was not granted in time");
    if (lease.lost) throw new LeaseOver("the lease is over");
    const share = Math.max(WAIT_MIN, transport.share(left));
    // Invariant: all requests of an attempt wait, or none does; the server takes them for one then.
    const wait = timeoutMs === 0 ? 0 : Math.max(1, Math.trunc(Math.min(left, WAIT_MAX, lease.ttlMs / 2, share)));
    const bound = Math.min(until, lease.deadline);
    const body = { ...Object.fromEntries(defined), secret: lease.secret, request_id: id, wait_ms: wait };
    const each = wait + Math.min(ANSWER_MAX, lease.ttlMs / 3, share);
    const bounds = { each, signal, wants: isStanding };
    const said = await transport.call("POST", asked.ask, body, bound, bounds).catch((error) => {
      // The lease's own timer may have moved its deadline meanwhile.
      if (error instanceof TimedOut) return undefined;
      throw error;
    });
    if (!said) continue;
    const { status, answer } = said;
    measure.contended ||= answer.state === "waiting" || answer.contended === true;
    if (answer.state === "gone" && asked.again && !lease.lost) {
      id = requestId();
      await pause(PAUSE, signal);
      continue;
    }
    if (status === 404 || answer.state === "gone") throw new LeaseOver("the place in the queue was taken away");
    if (answer.state === "busy") throw new Busy(answer.holder ?? null);
    if (answer.state === "held") {
      signal?.throwIfAborted();
      if (lease.lost) throw new LeaseOver("the lease has ended before the answer came");
      measure.grant();
      return new Guard(transport, lease, asked, answer, measure);
    }
    onWaiting?.(answer.position);
  }
}

/** @param {import("./transport.js").Answer} said */
function isStanding({ status, answer: { state, token, position } }) {
  if (state === "held") return status === 200 && isText(token) && /^[0-9]{1,19}$/.test(token);
  if (state === "waiting") return status === 202 && Number.isInteger(position);
  return status === 404 || (status === 200 && (state === "busy" || state === "gone"));
}
