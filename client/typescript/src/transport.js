/** Requests to one node after another until one answers. It knows no locks. */

import { now, pause } from "./clock.js";
import { Refused, TimedOut } from "./errors.js";

/** Milliseconds that a node may take for an answer, on top of the time for which it was asked to wait. */
export const ANSWER_MAX = 10_000;
/** Milliseconds between two rounds through all nodes. */
export const PAUSE = 200;
/** Milliseconds between two moves to a leader: it may be out of reach from here. */
const STAY = 60_000;
/** Characters of an answer that are read at most. */
export const BODY_MAX = 1 << 20;

/** Milliseconds for which answers at all URLs may be something else's than a node's before a request fails. */
export const STRANGE_MAX = 15_000;
/** Characters of a strange answer that are looked at, and of it in a message. */
const [LOOKED_AT, LINE_MAX] = [4096, 200];
/** Levels of a document: those of the API have four. */
const DEPTH_MAX = 32;
/** Releases under way; the next unwaited release is waited for. */
export const UNWAITED_MAX = 1024;

/**
 * @typedef {{ status: number, answer: Record<string, any>, strange?: string }} Answer
 *   `strange` is the first line of a body that is no document of the API.
 */

/** A span of time in an answer: a finite number. @param {unknown} value @returns {value is number} */
export const isTime = (value) => Number.isFinite(value) && /** @type {number} */ (value) >= 0;

/** @param {unknown} value @returns {value is string} */
export const isText = (value) => typeof value === "string" && value !== "";

/** The nodes of a cluster. */
export class Transport {
  /**
   * @param {string | readonly string[]} urls @param {string} [token] @param {typeof fetch} [fetcher]
   * @param {(lock: string, error: Error) => void} [onUnreleased]
   */
  constructor(urls, token, fetcher, onUnreleased) {
    this.nodes = (typeof urls === "string" ? [urls] : [...urls]).map((url) => {
      const { protocol, origin, pathname, search, hash, username, password } = new URL(url);
      if (protocol !== "http:" && protocol !== "https:") throw new TypeError(`not the URL of a node: ${url}`);
      if (search || hash || username || password) {
        throw new TypeError(`the URL of a node has a user, a query or a fragment: ${url}`);
      }
      // The path of a URL, such as that of a gateway, stands before that of each request.
      return origin + pathname.replace(/\/+$/, "");
    });
    if (this.nodes.length === 0) throw new TypeError("no URL of a node");
    this.token = token;
    // Called without `this`, as browsers want it.
    this.fetch = fetcher ?? ((/** @type {any} */ url, /** @type {any} */ init) => fetch(url, init));
    this.at = 0;
    /** Until when no leader is followed. */
    this.staysUntil = 0;
    /** Releases without an answer, by their address. @type {Map<string, Promise<unknown>>} */
    this.releases = new Map();
    /** Releases under way, until their leases are given back. @type {Set<Promise<unknown>>} */
    this.unwaited = new Set();
    this.onUnreleased = onUnreleased ?? ((lock, error) => console.warn(`rowlock: ${lock}: ${error.message}`));
  }

  get isFull() {
    return this.unwaited.size >= UNWAITED_MAX;
  }

  /**
   * Starts a release; `behind` waits for its answer. Resolves behind `end`, which gives the lease back and never rejects.
   * @template T @param {string} path @param {() => Promise<T>} release @param {() => Promise<void>} end @returns {Promise<T>}
   */
  later(path, release, end) {
    const answer = release();
    const all = Promise.allSettled([this.releases.get(path), answer]);
    this.releases.set(path, all);
    void all.then(() => {
      if (this.releases.get(path) === all) this.releases.delete(path);
    });
    const done = answer.finally(end);
    const settled = done.catch(() => {}).finally(() => this.unwaited.delete(settled));
    this.unwaited.add(settled);
    return done;
  }

  /** Waits for all releases under way. */
  async flush() {
    await Promise.all(this.unwaited);
  }

  /** Waits for the releases under way at this address. @param {string} path @param {number} until @param {AbortSignal} [signal] */
  async behind(path, until, signal) {
    const released = this.releases.get(path);
    if (!released || signal?.aborted) return;
    const over = new AbortController();
    const stop = () => over.abort();
    signal?.addEventListener("abort", stop);
    void released.then(stop);
    await pause(until - now(), over.signal);
    signal?.removeEventListener("abort", stop);
  }

  /** The part of the time that is left which one node may use up: others are to be asked, too. @param {number} left */
  share(left) {
    return left / this.nodes.length;
  }

  /**
   * Asks one node after another until one answers. The request must be one that may be repeated.
   *
   * What `wants` does not take is no answer: a proxy may have made it.
   * Rejects with `TimedOut` after `until`, with `Refused` for all refusals but 404 and where something that is no node
   * answers in their place for `STRANGE_MAX`, and with the reason of `signal`.
   * @param {string} method @param {string} path @param {object | string | undefined} body A string or bytes: as they are.
   * @param {number} until A moment of `now`: nothing is sent after it.
   * @param {{ each?: number, signal?: AbortSignal, wants?: (said: Answer) => boolean, headers?: Record<string, string> }}
   *   [bounds] `each` bounds one node's answer, in milliseconds.
   * @returns {Promise<Answer>}
   */
  async call(method, path, body, until, { each, signal, wants = () => true, headers } = {}) {
    const most = each ?? Math.min(ANSWER_MAX, this.share(until - now()));
    /** @type {string | undefined} */
    let failed;
    let strangeSince = Infinity;
    for (let tried = 1; ; tried++) {
      signal?.throwIfAborted();
      const left = until - now();
      if (left <= 0) throw new TimedOut(`no node has answered in time; the last one: ${failed ?? "no node was asked"}`);
      const at = this.at;
      try {
        const found = await this.once(method, path, body, Math.min(left, most), signal, headers);
        const { status, answer, strange } = found;
        strangeSince = strange === undefined ? Infinity : Math.min(strangeSince, now());
        if (isRefusal(found) || now() - STRANGE_MAX > strangeSince) throw refusal(found);
        if (status < 500 && strange === undefined && wants(found)) return { status, answer };
        failed = `${status} ${strange ?? answer.detail ?? "not an answer of this API"}`;
      } catch (error) {
        if (error instanceof Refused) throw error;
        signal?.throwIfAborted();
        strangeSince = Infinity;
        // At the end of the caller's time the node is not to blame: the failure before says more.
        const isOver = error instanceof TimedOut && left <= most;
        if (!isOver || failed === undefined) failed = said(error);
        if (isOver) continue;
      }
      this.next(at);
      if (tried % this.nodes.length === 0) await pause(Math.min(PAUSE, until - now()), signal);
    }
  }

  /** Goes on to the next node, unless another request has done so. @param {number} at */
  next(at) {
    if (this.at === at) this.at = (at + 1) % this.nodes.length;
  }

  /** Goes to the leader that a node names, if it is one of these nodes. @param {string | null} leader */
  follow(leader) {
    if (leader === null || now() < this.staysUntil) return;
    this.staysUntil = now() + STAY;
    const at = this.nodes.map(hostAndPort).indexOf(leader.toLowerCase());
    if (at >= 0) this.at = at;
  }

  /**
   * One request to the present node. The caller ends the bounds of the answer.
   * @param {string} method @param {string} path @param {object | string | undefined} body @param {AbortSignal} signal
   * @param {Record<string, string>} [more] Further headers.
   */
  send(method, path, body, signal, more = {}) {
    /** @type {Record<string, string>} */
    const headers = { ...more };
    const isData = typeof body === "string" || body instanceof Uint8Array;
    if (body !== undefined) headers["Content-Type"] = isData ? "application/octet-stream" : "application/json";
    if (this.token !== undefined) headers.Authorization = `Bearer ${this.token}`;
    if (this.nodes.length > 1 && now() >= this.staysUntil) headers.Prefer = "leader";
    // `fetch` takes bytes of any buffer, and its types only those of some.
    const text = body === undefined || isData ? /** @type {any} */ (body) : JSON.stringify(body);
    return this.fetch(this.nodes[this.at] + path, {
      method, headers, body: text, signal, redirect: "error", cache: "no-store", credentials: "omit",
    });
  }

  /**
   * @param {string} method @param {string} path @param {object | string | undefined} body @param {number} timeout
   * @param {AbortSignal} [signal] @param {Record<string, string>} [headers]
   * @returns {Promise<Answer>}
   */
  async once(method, path, body, timeout, signal, headers) {
    const bound = new AbortController();
    const stop = () => bound.abort(signal?.reason);
    const timer = setTimeout(() => bound.abort(new TimedOut("the node has not answered in time")), timeout);
    signal?.addEventListener("abort", stop);
    try {
      const response = await this.send(method, path, body, bound.signal, headers);
      this.follow(response.headers.get("rowlock-leader"));
      return document(response.status, await read(response, bound));
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    }
  }
}

/**
 * Reader of a body that ends when `signal` is aborted. Node's `fetch` stops following its signal once the request is
 * collected as garbage.
 * @param {ReadableStream<Uint8Array>} body @param {AbortSignal} signal
 */
export function readerOf(body, signal) {
  const reader = body.getReader();
  const cancel = () => void reader.cancel().catch(() => {});
  if (signal.aborted) cancel();
  else signal.addEventListener("abort", cancel, { once: true });
  return reader;
}

/** The text of an answer, as far as it has a decent size. @param {Response} response @param {AbortController} bound */
export async function read(response, bound) {
  let text = "";
  if (!response.body) return text;
  const [reader, decoder] = [readerOf(response.body, bound.signal), new TextDecoder()];
  for (;;) {
    const { done, value } = await reader.read();
    bound.signal.throwIfAborted();
    if (done) return text + decoder.decode();
    text += decoder.decode(value, { stream: true });
    if (text.length > BODY_MAX) {
      bound.abort();
      throw new SyntaxError("the answer is too large");
    }
  }
}

/**
 * Reads a body. Errors of the API have documents, so an empty one with such a status is strange.
 * @param {number} status @param {string} text @returns {Answer}
 */
export function document(status, text) {
  try {
    const answer = text === "" && status < 400 ? {} : JSON.parse(text);
    const isObject = answer !== null && typeof answer === "object" && !Array.isArray(answer);
    if (isObject && !isDeep(answer)) return { status, answer };
  } catch {
    // It is strange.
  }
  const lines = text.slice(0, LOOKED_AT).replace(/<[^>]*>/g, " ").split(/\r?\n/);
  const line = lines.map((one) => one.replace(/[^ -~]/g, " ").trim()).find((one) => one !== "");
  return { status, answer: {}, strange: (line ?? "an empty answer").slice(0, LINE_MAX) };
}

/** @param {object} answer */
function isDeep(answer) {
  let level = [answer];
  for (let depth = 0; depth < DEPTH_MAX && level.length > 0; depth++) {
    level = level.flatMap((one) => Object.values(one).filter((each) => each !== null && typeof each === "object"));
  }
  return level.length > 0;
}

/**
 * Whether another try makes no sense. A 404 is for the caller to understand; a strange 408 or 429 is a gateway's, which
 * will let later requests through. @param {Answer} found
 */
export function isRefusal({ status, strange }) {
  const isLater = strange !== undefined && (status === 408 || status === 429);
  return status >= 400 && status < 500 && status !== 404 && !isLater;
}

/** @param {Answer} found */
export function refusal({ status, answer, strange }) {
  return new Refused(status, strange === undefined ? answer : { detail: strange });
}

/** Host and port of a node. @param {string} origin */
export function hostAndPort(origin) {
  const { hostname, port, protocol } = new URL(origin);
  return `${hostname}:${port || (protocol === "https:" ? 443 : 80)}`;
}

/** @param {unknown} error */
export function said(error) {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : "";
  return `${error instanceof Error ? error.message : error}${cause}`;
}

/** A name as a part of an address; `/` stays. @param {string} name */
export function address(name) {
  const parts = name.split("/");
  // `fetch` would leave them out of the address, and so ask for something else.
  if (parts.some((part) => part === "." || part === "..")) throw new TypeError(`not a name: ${name}`);
  return parts.map(encodeURIComponent).join("/");
}

/** Not `crypto.randomUUID`: pages that came without TLS do not have it. */
export function requestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
