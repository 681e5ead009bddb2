/** Locks of a Rowlock cluster by HTTP: `new Rowlock(url).withLock("x", { timeoutMs: 5000 }, async (guard) => ..)`. */

import { attempt } from "./attempt.js";
import { now } from "./clock.js";
import { Election } from "./election.js";
import { Refused } from "./errors.js";
import { during } from "./guard.js";
import { Metering } from "./observer.js";
import { isAsked } from "./question.js";
import { ANSWER_MAX, Transport, address } from "./transport.js";
import { watch } from "./watch.js";

export { Busy, LeaseOver, Refused, RowlockError, Stale, TimedOut } from "./errors.js";
export { FENCE_HEADER, Fence, fenceHeader } from "./fence.js";

/** Milliseconds of a lease: a century. The cluster has bounds of its own. */
const TTL_MAX = 36_500 * 86_400_000;
/** Where `rowlock up` takes locks by HTTP. */
const API = "http://127.0.0.1:8481";

export class Rowlock {
  #transport; #ttlMs; #metering;

  /** @param {string | readonly string[]} urls @param {import("./index.js").RowlockOptions} [options] */
  constructor(urls, { token, ttlMs = 10_000, fetch, onUnreleased, observer } = {}) {
    if (!(ttlMs >= 1 && ttlMs <= TTL_MAX)) throw new RangeError(`not the time of a lease in milliseconds: ${ttlMs}`);
    this.#transport = new Transport(urls, token, fetch, onUnreleased);
    this.#ttlMs = ttlMs;
    this.#metering = new Metering(observer);
  }

  /** @param {import("./index.js").RowlockOptions} [options] */
  static fromEnv(options = {}) {
    const { ROWLOCK_API, ROWLOCK_TOKEN, ROWLOCK_TLS_CA: ca, NODE_EXTRA_CA_CERTS } =
      /** @type {any} */ (globalThis).process?.env ?? {};
    const urls = (ROWLOCK_API || API).split(",");
    if (ca && !NODE_EXTRA_CA_CERTS && !options.fetch && urls.some((/** @type {string} */ url) => url.startsWith("https:"))) {
      throw new Error(`Node reads authorities when it starts: set NODE_EXTRA_CA_CERTS=${ca}, as ROWLOCK_TLS_CA`);
    }
    return new Rowlock(urls, { token: ROWLOCK_TOKEN || undefined, ...options });
  }

  /** @param {string} name @param {import("./index.js").LockOptions} [options] */
  async lock(name, options = {}) {
    const path = `/v1/locks/${address(name)}`;
    const { mode = "exclusive", permits, limit, owner, label } = options;
    const asked = {
      ask: `${path}/acquire`, free: `${path}/release`, verify: `${path}/verify`,
      body: { mode, permits, limit, owner, label }, again: false,
    };
    return attempt(this.#transport, this.#ttlMs, asked, options, this.#metering.begin(options.metricsName, name));
  }

  /**
   * @template T
   * @param {string} name @param {import("./index.js").LockOptions} options
   * @param {(guard: import("./guard.js").Guard) => T | Promise<T>} work
   */
  async withLock(name, options, work) {
    return during(await this.lock(name, options), work);
  }

  /** @param {string} name @param {string} reason @param {import("./index.js").AskOptions} [options] */
  async ask(name, reason, { withinMs, label, signal } = {}) {
    const body = { reason, within_ms: withinMs, label };
    const bounds = { signal, wants: isAsked };
    const path = `/v1/locks/${address(name)}/ask`;
    const { status, answer } = await this.#transport.call("POST", path, body, now() + ANSWER_MAX, bounds);
    if (status === 404) throw new Refused(404, answer);
    return answer.asked;
  }

  flush() {
    return this.#transport.flush();
  }

  /** @param {string} name */
  election(name) {
    return new Election(this.#transport, this.#ttlMs, name, this.#metering);
  }

  /** @param {import("./index.js").WatchOptions} [options] */
  watch(options = {}) {
    return watch(this.#transport, options);
  }
}
