/** Observers: a program learns how long its acquires wait, and how long it holds the locks. */

import { now } from "./clock.js";
import { Busy, LeaseOver, Refused, TimedOut } from "./errors.js";

/** Metrics names of one client; `OTHER` stands for those beyond. */
export const NAMES_MAX = 100;
const [DEFAULT, OTHER] = ["default", "other"];

/** Milliseconds by which `now` may differ from the clock that is finer and stands still while the machine sleeps. */
const COARSE = 100;

/** A moment. */
const moment = () => ({ steady: performance.now(), whole: now() });

/** Milliseconds since then. @param {ReturnType<typeof moment>} then */
function since(then) {
  const { steady, whole } = moment();
  return whole - then.whole > steady - then.steady + COARSE ? whole - then.whole : steady - then.steady;
}

/** The observer of a client and its metrics names. */
export class Metering {
  #observer;
  #names = new Set([DEFAULT, OTHER]);

  /** @param {import("./index.js").Observer} [observer] */
  constructor(observer) {
    this.#observer = observer;
  }

  /** Begins to measure an attempt. @param {string | undefined} name @param {string} lock */
  begin(name, lock) {
    return new Measure(this.#observer, name === undefined ? DEFAULT : this.#bound(name), lock);
  }

  /** @param {string} name */
  #bound(name) {
    if (!this.#names.has(name) && this.#names.size >= NAMES_MAX + 2) return OTHER;
    this.#names.add(name);
    return name;
  }
}

/** The wait and the hold of one attempt. */
export class Measure {
  #observer; #name; #lock;
  #began = moment();
  /** @type {ReturnType<typeof moment> | undefined} */
  #granted;
  /** Whether the lock was found taken. */
  contended = false;

  /** @param {import("./index.js").Observer | undefined} observer @param {string} name @param {string} lock */
  constructor(observer, name, lock) {
    this.#observer = observer;
    this.#name = name;
    this.#lock = lock;
    this.#call(() => observer?.waiting?.(name, lock));
  }

  /** Ends the wait; the hold begins at the same moment. */
  grant() {
    this.#granted = moment();
    this.#endWait("granted");
  }

  /** Ends the wait by an error. @param {unknown} error @param {AbortSignal} [signal] */
  fail(error, signal) {
    if (signal?.aborted && error === signal.reason) return this.#endWait("canceled");
    this.contended ||= error instanceof Busy;
    const kinds = /** @type {const} */ ([[Busy, "busy"], [TimedOut, "timed_out"], [LeaseOver, "lost"], [Refused, "refused"]]);
    this.#endWait(kinds.find(([kind]) => error instanceof kind)?.[1] ?? "failed");
  }

  /** @param {import("./index.js").Wait["outcome"]} outcome */
  #endWait(outcome) {
    const [name, lock, contended, seconds] = [this.#name, this.#lock, this.contended, since(this.#began) / 1000];
    this.#call(() => this.#observer?.waited?.({ name, lock, contended, outcome, seconds }));
  }

  /** Ends the hold, once. @param {"released" | "lost"} outcome @param {number} ago Milliseconds since its end. */
  endHold(outcome, ago) {
    if (this.#granted === undefined) return;
    const [name, lock, seconds] = [this.#name, this.#lock, Math.max(0, since(this.#granted) - ago) / 1000];
    this.#granted = undefined;
    this.#call(() => this.#observer?.held?.({ name, lock, outcome, seconds }));
  }

  /** An observer that throws takes no lock away. @param {() => void} event */
  #call(event) {
    try {
      event();
    } catch (error) {
      console.warn(`rowlock: the observer of ${this.#lock} has failed: ${error}`);
    }
  }
}
