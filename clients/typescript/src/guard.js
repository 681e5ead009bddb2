/** What is held. */

import { now } from "./clock.js";
import { RowlockError } from "./errors.js";
import { ANSWER_MAX } from "./transport.js";

/** A lock that is held, or the lead of an election. */
export class Guard {
  #transport; #lease; #asked; #text; #released = false;
  #over = new AbortController();

  /**
   * @param {import("./transport.js").Transport} transport @param {import("./lease.js").Lease} lease
   * @param {import("./attempt.js").Asked} asked @param {string} token
   */
  constructor(transport, lease, asked, token) {
    this.#transport = transport;
    this.#lease = lease;
    this.#asked = asked;
    this.#text = token;
    const ended = lease.ended.signal;
    ended.addEventListener("abort", () => this.#end(ended.reason), { once: true });
    if (ended.aborted) this.#end(ended.reason);
  }

  /** @param {unknown} reason */
  #end(reason) {
    if (!this.#over.signal.aborted) this.#over.abort(reason);
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

  async verify() {
    const until = Math.min(now() + ANSWER_MAX, this.#lease.deadline);
    const wants = isAbout("held");
    const { answer } = await this.#transport.call("POST", this.#asked.verify, { token: this.#text }, until, { wants });
    return answer.held === true;
  }

  async release() {
    if (this.#released) return false;
    this.#released = true;
    const lost = this.#lease.lost;
    this.#lease.silence();
    this.#end(new RowlockError("the lock was released"));
    if (lost) return false;
    const each = Math.max(500, (this.#lease.deadline - now()) / 3);
    const body = { secret: this.#lease.secret, token: this.#text };
    const said = await this.#transport
      .call("POST", this.#asked.free, body, this.#lease.deadline, { each, wants: isAbout("released") })
      // Nobody has answered: the lease ends by itself, and the lock with it.
      .catch(() => undefined);
    await this.#lease.end();
    return said?.answer.released === true;
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
    await guard.release();
  }
}

