/** The largest fencing token that a resource has seen. */

/** One for each resource. It lives in memory: data that outlive the program need the token beside them. */
export class Fence {
  #seen;

  /** @param {bigint} [seen] */
  constructor(seen = 0n) {
    this.#seen = seen;
  }

  get seen() {
    return this.#seen;
  }

  /** @param {bigint} token */
  check(token) {
    if (token < this.#seen) return false;
    this.#seen = token;
    return true;
  }
}

/** The header in which a token travels to a service. */
export const FENCE_HEADER = "Rowlock-Fence";

/** @param {string} lock @param {bigint} token */
export function fenceHeader(lock, token) {
  return `${strict(lock)};${token}`;
}

/** Percent-encoded, its slashes as they are. @param {string} text */
export function strict(text) {
  const rest = (/** @type {string} */ c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`;
  return encodeURIComponent(text).replace(/%2F/g, "/").replace(/[!'()*]/g, rest);
}
