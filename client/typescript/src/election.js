/** Elections: whoever holds their lock leads. */

import { attempt } from "./attempt.js";
import { now, pause } from "./clock.js";
import { during } from "./guard.js";
import { TimedOut } from "./errors.js";
import { ANSWER_MAX, PAUSE, address, isText } from "./transport.js";

/** Milliseconds that a request for the next leader waits. */
const WAIT = 30_000;

export class Election {
  #transport; #ttlMs; #path; #lock; #name; #metering;

  /**
   * @param {import("./transport.js").Transport} transport @param {number} ttlMs @param {string} name
   * @param {import("./observer.js").Metering} metering
   */
  constructor(transport, ttlMs, name, metering) {
    if (name === "." || name === "..") throw new TypeError(`not a name: ${name}`);
    this.#transport = transport;
    this.#ttlMs = ttlMs;
    this.#name = name;
    this.#metering = metering;
    this.#path = `/v1/elections/${encodeURIComponent(name)}`;
    this.#lock = `/v1/locks/@elections/${address(name)}`;
  }

  /** @param {import("./index.js").CampaignOptions} [options] */
  campaign(options = {}) {
    const { value, owner } = options;
    const asked = {
      ask: `${this.#path}/campaign`, free: `${this.#path}/resign`, verify: `${this.#lock}/verify`,
      body: { value, owner }, again: true,
    };
    const measure = this.#metering.begin(options.metricsName, `@elections/${this.#name}`);
    return attempt(this.#transport, this.#ttlMs, asked, options, measure);
  }

  /**
   * @template T
   * @param {import("./index.js").CampaignOptions} options @param {(guard: any) => T | Promise<T>} work
   */
  async lead(options, work) {
    return during(await this.campaign(options), work);
  }

  /** @param {{ signal?: AbortSignal }} [options] */
  async leader({ signal } = {}) {
    return (await this.#ask("", now() + ANSWER_MAX, undefined, signal)).leader;
  }

  /** @param {{ signal?: AbortSignal }} [options] */
  async *leaders({ signal } = {}) {
    let query = "";
    let seen = "";
    for (;;) {
      let found;
      try {
        found = await this.#ask(query, Infinity, query === "" ? ANSWER_MAX : WAIT + ANSWER_MAX, signal);
      } catch (error) {
        if (signal?.aborted) return;
        if (error instanceof TimedOut) continue;
        throw error;
      }
      const state = `${found.zxid} ${found.leader?.token} ${found.leader?.value}`;
      if (state !== seen) yield found.leader;
      else await pause(PAUSE, signal);
      if (signal?.aborted) return;
      seen = state;
      query = `?after=${found.zxid}&wait_ms=${WAIT}`;
    }
  }

  /**
   * @param {string} query @param {number} until @param {number} [each] @param {AbortSignal} [signal]
   * @returns {Promise<{ zxid: string, leader: import("./index.js").Leader | null }>}
   */
  async #ask(query, until, each, signal) {
    const path = `${this.#path}/leader${query}`;
    const { answer } = await this.#transport.call("GET", path, undefined, until, { each, signal, wants: isLed });
    const { leader } = answer;
    const known = leader && { value: leader.value, token: BigInt(leader.token), sinceMs: leader.since_ms };
    return { zxid: answer.zxid ?? "0", leader: known ?? null };
  }
}

/** @param {import("./transport.js").Answer} said */
function isLed({ status, answer: { zxid, leader } }) {
  const isKnown = leader === null || (typeof leader === "object" && /^\d+$/.test(leader.token));
  return status === 200 && isText(zxid) && isKnown;
}
