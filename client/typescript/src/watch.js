/** The stream of what happens to locks, which goes on at another node when one fails. */

import { pause } from "./clock.js";
import { Refused, RowlockError } from "./errors.js";
import { BODY_MAX, PAUSE, document, isRefusal, read, readerOf, refusal } from "./transport.js";

/** Milliseconds after which a stream that says nothing counts as dead: nodes say something every 15 s. */
const SILENCE = 40_000;
/** Milliseconds between two rounds through all nodes, at most. */
const PAUSE_MAX = 5_000;

/**
 * @param {import("./transport.js").Transport} transport @param {import("./index.js").WatchOptions} options
 * @returns {AsyncGenerator<import("./index.js").WatchEvent, void, void>}
 */
export async function* watch(transport, { lock, prefix, after, signal }) {
  const asked = new URLSearchParams();
  if (lock !== undefined) asked.set("lock", lock);
  if (prefix !== undefined) asked.set("prefix", prefix);
  const path = `/v1/watch?${asked}`;
  for (let failed = 0; !signal?.aborted; failed++) {
    const at = transport.at;
    const stream = new Stream(signal);
    try {
      for await (const event of stream.events(transport, path, after)) {
        failed = 0;
        if (event.id !== undefined) after = event.id;
        if (event.event !== undefined) yield event;
      }
    } catch (error) {
      if (error instanceof Refused) throw error;
    } finally {
      stream.close();
    }
    transport.next(at);
    if (failed % transport.nodes.length === 0) await pause(Math.min(PAUSE * 2 ** failed, PAUSE_MAX), signal);
  }
}

/** One answer of one node. */
class Stream {
  #bound = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #outer;
  #stop = () => this.close();

  /** @param {AbortSignal} [signal] */
  constructor(signal) {
    this.#outer = signal;
    signal?.addEventListener("abort", this.#stop);
  }

  close() {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.#stop);
    this.#bound.abort();
  }

  #heard() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#bound.abort(), SILENCE);
  }

  /**
   * @param {import("./transport.js").Transport} transport @param {string} path @param {string} [after]
   * @returns {AsyncGenerator<any, void, void>}
   */
  async *events(transport, path, after) {
    this.#heard();
    /** @type {Record<string, string>} */
    const headers = { Accept: "text/event-stream" };
    if (after !== undefined) headers["Last-Event-ID"] = after;
    const response = await transport.send("GET", path, undefined, this.#bound.signal, headers);
    if (response.status !== 200 || !response.body) {
      const found = document(response.status, await read(response, this.#bound));
      if (isRefusal(found) || (found.status === 404 && found.strange === undefined)) throw refusal(found);
      throw new RowlockError(`${found.status} ${found.strange}`);
    }
    const [reader, decoder, parser] = [readerOf(response.body, this.#bound.signal), new TextDecoder(), new Parser()];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.#heard();
      yield* parser.take(decoder.decode(value, { stream: true }));
    }
  }
}

/** Server-sent events from pieces of text. Lines end with LF or CR LF. */
export class Parser {
  #rest = "";
  /** @type {{ id?: string, event?: string, data: string[] }} */
  #now = { data: [] };

  /** @param {string} piece */
  *take(piece) {
    const lines = (this.#rest + piece).split("\n");
    this.#rest = lines.pop() ?? "";
    if (this.#rest.length > BODY_MAX) throw new RowlockError("a line of the stream is too long");
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") yield* this.#end();
      else this.#field(line);
    }
  }

  /** @param {string} line */
  #field(line) {
    const at = line.indexOf(":");
    const name = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (name === "data") this.#now.data.push(value);
    else if (name === "id" || name === "event") this.#now[name] = value;
  }

  *#end() {
    const { id, event, data } = this.#now;
    this.#now = { data: [] };
    if (data.length > 0) yield { id, event: event ?? "message", data: JSON.parse(data.join("\n")) };
    else if (id !== undefined) yield { id };
  }
}
