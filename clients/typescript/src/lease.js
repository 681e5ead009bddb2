/** A lease and the timer that keeps it alive. */

import { now, pause } from "./clock.js";
import { LeaseOver, RowlockError } from "./errors.js";

/** Part of the time of a lease that its client does not count on: clocks do not run equally fast. */
const MARGIN = 0.1;

/** A session at the cluster. It asks for keep-alive at a third of its time. */
export class Lease {
  /**
   * @param {import("./transport.js").Transport} transport @param {number} ttlMs @param {number} until
   * @param {AbortSignal} [signal]
   */
  static async open(transport, ttlMs, until, signal) {
    // The moment from which the first answer counts is taken before the call, so retries only shorten it.
    const sent = now();
    const body = { ttl_ms: Math.trunc(ttlMs) };
    const { status, answer } = await transport.call("POST", "/v1/leases", body, until, { each: ttlMs / 3, signal });
    if (status !== 201) throw new RowlockError(`not an answer of this API: ${status}`);
    return new Lease(transport, answer, sent);
  }

  /**
   * @param {import("./transport.js").Transport} transport @param {Record<string, any>} answer
   * @param {number} sent
   */
  constructor(transport, answer, sent) {
    this.transport = transport;
    /** @type {string} */
    this.secret = answer.secret;
    this.path = `/v1/leases/${answer.lease}`;
    /** @type {number} */
    this.ttlMs = answer.ttl_ms;
    /** A moment of `now` from which nothing of this lease may be relied on. */
    this.deadline = sent + this.ttlMs * (1 - MARGIN);
    this.ended = new AbortController();
    this.stop = new AbortController();
    void this.keepAlive();
  }

  /** Whether it is over, or must be taken to be. Right also when the timer had no time to run. */
  get lost() {
    if (!this.ended.signal.aborted && now() >= this.deadline) this.lose("the lease is over");
    return this.ended.signal.aborted;
  }

  /** Asks for no keep-alive any more: the lease ends by itself. */
  silence() {
    this.stop.abort();
  }

  /** Gives back everything of it. When no node answers, it ends by itself. Never rejects. */
  async end() {
    this.stop.abort();
    const until = this.deadline;
    this.lose("the lease was given back");
    await this.transport
      .call("DELETE", this.path, { secret: this.secret }, until, { each: this.ttlMs / 3 })
      .catch(() => {});
  }

  /** @param {string} why */
  lose(why) {
    if (!this.ended.signal.aborted) this.ended.abort(new LeaseOver(why));
  }

  async keepAlive() {
    let due = now() + this.ttlMs / 3;
    while (!this.lost) {
      const stopped = this.stop.signal.aborted;
      const wake = stopped ? this.deadline : Math.min(due, this.deadline);
      if (wake > now()) {
        await pause(wake - now(), stopped ? this.ended.signal : this.stop.signal, false);
        continue;
      }
      // Invariant: nothing is sent past the deadline, and a node that is silent leaves time for others.
      const sent = now();
      due = sent + this.ttlMs / 3;
      await this.ask(sent);
    }
  }

  /** @param {number} sent */
  async ask(sent) {
    const bounds = { each: this.ttlMs / 6, signal: this.stop.signal };
    const asked = this.transport.call("POST", `${this.path}/keepalive`, { secret: this.secret }, this.deadline, bounds);
    // No node, a refusal, or the end: what is known of the lease holds until its deadline.
    const said = await asked.catch(() => undefined);
    if (said?.status === 404) this.lose("the lease is over");
    else if (said && !this.lost) {
      // Invariant: a deadline that has passed is never moved.
      this.deadline = sent + said.answer.valid_for_ms * (1 - MARGIN);
    }
  }
}
