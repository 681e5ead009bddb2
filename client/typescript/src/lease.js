/** A lease and the timer that keeps it alive. */

import { now, pause } from "./clock.js";
import { LeaseOver } from "./errors.js";
import { isText, isTime } from "./transport.js";

/** Part of the time of a lease that its client does not count on: clocks do not run equally fast. */
const MARGIN = 0.1;
/** Milliseconds for which `end` waits for the cluster; the request goes on in the background. */
const END_MAX = 1000;

/** A session at the cluster. It asks for keep-alive at a third of its time, unless `keeps` is false. */
export class Lease {
  /**
   * @param {import("./transport.js").Transport} transport @param {number} ttlMs @param {number} until
   * @param {AbortSignal | undefined} signal @param {boolean} keeps
   */
  static async open(transport, ttlMs, until, signal, keeps) {
    // The moment from which the first answer counts is taken before the call, so retries only shorten it.
    const sent = now();
    const body = { ttl_ms: Math.trunc(ttlMs) };
    const each = Math.min(ttlMs / 3, transport.share(until - sent));
    const { answer } = await transport.call("POST", "/v1/leases", body, until, { each, signal, wants: isLease });
    return new Lease(transport, answer, sent, keeps);
  }

  /**
   * @param {import("./transport.js").Transport} transport @param {Record<string, any>} answer
   * @param {number} sent @param {boolean} keeps
   */
  constructor(transport, answer, sent, keeps) {
    this.transport = transport;
    /** @type {string} */
    this.secret = answer.secret;
    this.path = `/v1/leases/${answer.lease}`;
    /** @type {number} */
    this.ttlMs = answer.ttl_ms;
    /** A moment of `now` from which nothing of this lease may be relied on. */
    this.deadline = sent + this.ttlMs * (1 - MARGIN);
    /** When what it holds is taken away. */
    this.revoked = Infinity;
    /** Gets the field `asked` of each answer; gives the milliseconds until the lock is taken away. */
    this.hears = (/** @type {unknown} */ _) => Infinity;
    this.ended = new AbortController();
    this.stop = new AbortController();
    this.keeps = keeps;
    if (keeps) void this.keepAlive();
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

  /** Gives back everything of it, and waits `END_MAX` for a node. When none answers, it ends by itself. Never rejects. */
  async end() {
    this.stop.abort();
    const until = this.deadline;
    this.lose("the lease was given back");
    const answered = new AbortController();
    const done = this.transport
      .call("DELETE", this.path, { secret: this.secret }, until, { each: this.ttlMs / 3, wants: isEnded })
      .catch(() => {})
      .finally(() => answered.abort());
    await Promise.race([done, pause(END_MAX, answered.signal)]);
  }

  /** Takes the field `asked` of the answer to a request that was sent then. @param {unknown} asked @param {number} sent */
  hear(asked, sent) {
    // Invariant: what is taken away is lost before. The deadline of a question only moves nearer.
    this.revoked = Math.min(this.revoked, sent + this.hears(asked));
    this.deadline = Math.min(this.deadline, this.revoked);
  }

  /** @param {string} why */
  lose(why) {
    if (!this.ended.signal.aborted) this.ended.abort(new LeaseOver(why));
  }

  /** Asks for keep-alive once; whether the lease lives. @param {AbortSignal} [signal] */
  async keepAliveOnce(signal) {
    if (!this.lost) await this.ask(now(), signal);
    return !this.lost;
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

  /** @param {number} sent @param {AbortSignal} [signal] */
  async ask(sent, signal = this.stop.signal) {
    const bounds = { each: this.ttlMs / 6, signal, wants: isKept };
    const asked = this.transport.call("POST", `${this.path}/keepalive`, { secret: this.secret }, this.deadline, bounds);
    // No node, a refusal, or the end: what is known of the lease holds until its deadline.
    const said = await asked.catch(() => undefined);
    if (said?.status === 404) this.lose("the lease is over");
    else if (said && !this.lost) {
      // Invariant: a deadline that has passed is never moved, and none lies further ahead than the lease's time.
      this.deadline = Math.min(sent + Math.min(said.answer.valid_for_ms, this.ttlMs) * (1 - MARGIN), this.revoked);
      this.hear(said.answer.asked, sent);
    }
  }
}

/** @param {import("./transport.js").Answer} said */
function isLease({ status, answer: { secret, lease, ttl_ms: ttlMs } }) {
  return status === 201 && isText(secret) && isText(lease) && isTime(ttlMs) && ttlMs > 0;
}

/** @param {import("./transport.js").Answer} said */
function isEnded({ status }) {
  return status === 204 || status === 404;
}

/** @param {import("./transport.js").Answer} said */
function isKept({ status, answer }) {
  return status === 404 || (status === 200 && isTime(answer.valid_for_ms));
}
