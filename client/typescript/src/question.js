/** Questions: a holder is asked to give its lock back. */

import { isText, isTime } from "./transport.js";

/** The questions about one token, from answers of the cluster, which repeat them. */
export class Heard {
  #token;
  #ago = 0;
  /** @type {import("./index.js").Question | null} */
  newest = null;

  /** @param {string} token */
  constructor(token) {
    this.#token = token;
  }

  /**
   * Takes the field `asked` of an answer. Gives the milliseconds until the lock is taken away, Infinity if it is not,
   * and whether the question was not heard before.
   * @param {unknown} said
   */
  hear(said) {
    const all = (Array.isArray(said) ? said : []).filter((one) => isQuestion(one) && one.token === this.#token);
    if (all.length === 0) return { left: Infinity, isNews: false };
    const one = all.reduce((newest, each) => (each.asked_ms_ago < newest.asked_ms_ago ? each : newest));
    const left = isTime(one.revoked_in_ms) ? one.revoked_in_ms : Infinity;
    const last = this.newest;
    const isSame = last?.reason === one.reason && last?.by === one.by && (last?.revokedMs === null) === (left === Infinity);
    // The same question grows older from answer to answer.
    const isNews = !isSame || one.asked_ms_ago < this.#ago;
    this.#ago = one.asked_ms_ago;
    if (isNews) {
      const { lock, reason, by } = one;
      const revokedMs = left === Infinity ? null : Date.now() + left;
      this.newest = { lock, token: BigInt(one.token), reason, by, askedMs: Date.now() - one.asked_ms_ago, revokedMs };
    }
    return { left, isNews };
  }
}

/** @param {any} one */
function isQuestion(one) {
  const areTexts = one && typeof one.lock === "string" && typeof one.reason === "string" && typeof one.by === "string";
  return areTexts && isText(one.token) && isTime(one.asked_ms_ago);
}

/** @param {import("./transport.js").Answer} said */
export function isAsked({ status, answer: { title, asked } }) {
  return status === 404 ? isText(title) : status === 200 && Number.isInteger(asked);
}
