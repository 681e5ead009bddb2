/** What is held. */

import { now } from "./clock.js";
import { LeaseOver, Refused, RowlockError, Stale } from "./errors.js";
import { FENCE_HEADER, strict } from "./fence.js";
import { Heard } from "./question.js";
import { ANSWER_MAX, isText, requestId } from "./transport.js";

/** Characters before the name of a lock in an address. */
const LOCKS = "/v1/locks/".length;
const NOT_HELD = "it was not held any more at its release";
// Node 20.3 has none of its own.
/** @type {typeof Symbol.dispose} */
const DISPOSE = Symbol.dispose ?? Symbol.for("Symbol.dispose");
/** @type {typeof Symbol.asyncDispose} */
const ASYNC_DISPOSE = Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");
const STALE = "the token does not hold the lock any more: only an earlier copy of the write may have taken effect";

/** A lock that is held, or the lead of an election. */
export class Guard {
  #transport; #lease; #target; #text; #heard; #measure; #released = false;
  #over = new AbortController();
  #asked = new AbortController();

  /**
   * @param {import("./transport.js").Transport} transport @param {import("./lease.js").Lease} lease
   * @param {import("./attempt.js").Asked} target @param {Record<string, any>} answer
   * @param {import("./observer.js").Measure} measure Of a hold that has begun.
   */
  constructor(transport, lease, target, answer, measure) {
    this.#measure = measure;
    this.#transport = transport;
    this.#lease = lease;
    this.#target = target;
    this.#text = answer.token;
    this.#heard = new Heard(answer.token);
    lease.hears = (said) => this.#hear(said);
    lease.hear(answer.asked, now());
    const ended = lease.ended.signal;
    ended.addEventListener("abort", () => this.#end(ended.reason), { once: true });
    if (ended.aborted) this.#end(ended.reason);
  }

  /** @param {unknown} reason */
  #end(reason) {
    // A hold in the past: the lease may have ended while the program stood still.
    const ago = Math.max(0, now() - this.#lease.deadline);
    this.#measure.endHold(reason instanceof LeaseOver ? "lost" : "released", ago);
    if (!this.#over.signal.aborted) this.#over.abort(reason);
  }

  /** @param {unknown} said */
  #hear(said) {
    const { left, isNews } = this.#heard.hear(said);
    if (isNews && !this.#asked.signal.aborted) this.#asked.abort(this.#heard.newest);
    return left;
  }

  get asked() {
    return this.#asked.signal;
  }

  get question() {
    return this.#heard.newest;
  }

  get token() {
    return BigInt(this.#text);
  }

  get lost() {
    // `lost` of the lease looks at the clock, and tells the signal.
    return this.#lease.lost || this.#released;
  }

  get signal() {
    return this.#over.signal;
  }

  async keepAlive() {
    return !this.#released && this.#lease.keepAliveOnce();
  }

  async verify() {
    const until = Math.min(now() + ANSWER_MAX, this.#lease.deadline);
    const wants = isAbout("held");
    const { answer } = await this.#transport.call("POST", this.#target.verify, { token: this.#text }, until, { wants });
    return answer.held === true;
  }

  async release() {
    return this.#letGo() && this.#start().catch(() => false);
  }

  async releaseLater() {
    const isFull = this.#transport.isFull;
    if (this.#released) return;
    if (!this.#letGo()) return this.#report(new RowlockError(NOT_HELD));
    const reported = this.#start().then(
      (released) => released || this.#report(new RowlockError(NOT_HELD)),
      (error) => this.#report(new RowlockError(`cannot release it; it is free when its lease ends: ${error.message}`)),
    );
    if (isFull) await reported;
  }

  [DISPOSE]() {
    if (!this.#transport.isFull || this.#released) return void this.releaseLater();
    // Nothing can wait here.
    this.#letGo();
    this.#report(new RowlockError("too many releases are under way; it is free when its lease ends"));
  }

  [ASYNC_DISPOSE]() {
    return this.releaseLater();
  }

  /** Ends the hold for this program. Returns whether the lock was held until now. */
  #letGo() {
    if (this.#released) return false;
    this.#released = true;
    const lost = this.#lease.lost;
    this.#lease.silence();
    this.#end(new RowlockError("the lock was released"));
    return !lost;
  }

  /** Resolves to whether the lock was released, and rejects where no node has answered before the lease's deadline. */
  #start() {
    const release = async () => {
      const { secret, deadline } = this.#lease;
      const bounds = { each: Math.max(500, (deadline - now()) / 3), wants: isAbout("released") };
      const body = { secret, token: this.#text };
      const { answer } = await this.#transport.call("POST", this.#target.free, body, deadline, bounds);
      return answer.released === true;
    };
    return this.#transport.later(this.#target.free, release, () => this.#lease.end());
  }

  /** Reports the failure of an unwaited release. @param {Error} error */
  #report(error) {
    this.#transport.onUnreleased(decodeURIComponent(this.#target.verify.slice(LOCKS, -"/verify".length)), error);
  }

  /** @param {string} path @param {string | Uint8Array} [data] */
  async create(path, data = "") {
    return this.#write("POST", path, data, undefined, 201);
  }

  /** @param {string} path @param {string | Uint8Array} data @param {number} [version] */
  async set(path, data, version) {
    return this.#write("PUT", path, data, version, 200);
  }

  /** @param {string} path @param {number} [version] */
  async delete(path, version) {
    await this.#write("DELETE", path, "", version, 204);
  }

  /**
   * @param {string} method @param {string} path @param {string | Uint8Array} data
   * @param {number | undefined} version @param {number} done
   */
  async #write(method, path, data, version, done) {
    /** @type {Record<string, string>} */
    const headers = {
      [FENCE_HEADER]: `${this.#target.verify.slice(LOCKS, -"/verify".length)};${this.#text}`,
      "Rowlock-Lease": this.#lease.secret,
      "Idempotency-Key": requestId(),
    };
    if (version !== undefined) headers["If-Match"] = `"${version}"`;
    // A late holder is told so by the cluster.
    const until = Math.max(this.#lease.deadline, now() + 1000);
    const each = Math.max(500, (until - now()) / 3);
    /** @param {import("./transport.js").Answer} said */
    const wants = ({ status, answer }) =>
      status === 404 ? isText(answer.title) : status === done && (done === 204 || Number.isInteger(answer.stat?.version));
    const bounds = { each, wants, headers };
    const said = await this.#transport.call(method, `/v1/znodes${strict(path)}`, data, until, bounds).catch((error) => {
      if (error instanceof Refused && error.status === 412 && error.problem.stale === true) throw new Stale(STALE);
      throw error;
    });
    if (said.status === 404) throw this.lost ? new Stale(STALE) : new Refused(404, said.answer);
    return Number(said.answer.stat?.version ?? 0);
  }

  silence() {
    this.#lease.silence();
  }
}

/** @param {string} what @returns {(said: import("./transport.js").Answer) => boolean} */
function isAbout(what) {
  return ({ status, answer }) => status === 404 || (status === 200 && typeof answer[what] === "boolean");
}

/**
 * Runs `work` with what is held and gives it back afterwards, whatever happens.
 * @template T
 * @param {Guard} guard @param {(guard: Guard) => T | Promise<T>} work @returns {Promise<Awaited<T>>}
 */
export async function during(guard, work) {
  try {
    return await work(guard);
  } finally {
    await guard.releaseLater();
  }
}

