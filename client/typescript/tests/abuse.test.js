/** Gateways that answer with pages, documents that are none, names that are no text, callbacks that throw. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { Refused, Rowlock, TimedOut } from "rowlock";

import { now } from "../src/clock.js";
import { STRANGE_MAX, Transport, document } from "../src/transport.js";

const TTL = 60_000;
const SHORT = 9_000;
const page = (title) => `<html>\r\n<head><title>${title}</title></head>\r\n<body></body></html>`;

/** Answers by `script(path, response)`, which gives a status and a text, or nothing if it has answered by itself. */
async function node(t, script) {
  const seen = [];
  const server = createServer(async (request, response) => {
    seen.push(`${request.method} ${request.url}`);
    for await (const _ of request);
    const said = await script(request.url, response);
    if (said) response.writeHead(said[0], { "Content-Type": "text/html" }).end(said[1]);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  t.after(() => (server.closeAllConnections(), server.close()));
  return { url: `http://127.0.0.1:${server.address().port}`, seen };
}

const worksFor = (ttl) => (path) => {
  if (path === "/v1/leases") return [201, JSON.stringify({ lease: "0x1", secret: "s", ttl_ms: ttl })];
  if (path.endsWith("/acquire")) return [200, JSON.stringify({ state: "held", token: "7", valid_for_ms: ttl })];
  if (path === "/v1/leases/0x1") return [204, ""];
  if (path.endsWith("/keepalive")) return [200, JSON.stringify({ valid_for_ms: ttl })];
  return [200, JSON.stringify({ released: true })];
};
const works = worksFor(TTL);
const waits = (path) =>
  path.endsWith("/acquire") ? [202, JSON.stringify({ state: "waiting", position: 1 })] : works(path);
const client = (...nodes) => new Rowlock(nodes.map(({ url }) => url), { ttlMs: TTL });
const deletes = ({ seen }) => seen.filter((one) => one.startsWith("DELETE")).length;

test("a gateway's page is an error with its status and first line, and a final one ends the attempt", async (t) => {
  for (const [status, title] of [[400, "Plain HTTP to an HTTPS port"], [401, "Sign in"], [403, "No entry"]]) {
    const gateway = await node(t, () => [status, page(title)]);
    await assert.rejects(client(gateway).lock("a"), (error) =>
      error instanceof Refused && error.status === status && error.message === `${status}: ${title}`);
    assert.equal(gateway.seen.length, 1);
  }
  await Promise.all([404, 429, 502, 503].map(async (status) => {
    const gateway = await node(t, () => [status, page("Not now")]);
    await assert.rejects(new Transport(gateway.url).call("POST", "/", {}, now() + 500), (error) =>
      error instanceof TimedOut && error.message.includes(`${status} Not now`));
    const began = now();
    await assert.rejects(client(gateway).lock("a"), (error) => error instanceof Refused && error.status === status);
    assert.ok(now() - began >= STRANGE_MAX);
  }));
});

test("a node that trickles is not waited for", async (t) => {
  const slow = await node(t, async (_, response) => {
    response.writeHead(200, { "Content-Length": 100_000 });
    for (; response.socket && !response.socket.destroyed; await sleep(100)) response.write(" ");
  });
  const began = now();
  await assert.rejects(new Rowlock(slow.url, { ttlMs: SHORT }).lock("a", { timeoutMs: 500 }), TimedOut);
  assert.ok(now() - began < SHORT);
  const guard = await new Rowlock([slow.url, (await node(t, worksFor(SHORT))).url], { ttlMs: SHORT }).lock("a");
  assert.equal(await guard.release(), true);
});

test("a deadline ends a body and a stream whose request was collected as garbage", { timeout: 20_000 }, async (t) => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const slow = await node(t, async (_, response) => {
    response.writeHead(200, { "Content-Length": 100_000 });
    for (; response.socket && !response.socket.destroyed; await sleep(50)) response.write(" ");
  });
  const timer = setInterval(collect, 20);
  t.after(() => clearInterval(timer));
  await assert.rejects(new Transport(slow.url).call("POST", "/", {}, now() + 500), TimedOut);
  const signal = AbortSignal.timeout(500);
  for await (const event of new Rowlock(slow.url).watch({ prefix: "a", signal })) assert.fail(`${event}`);
  assert.ok(signal.aborted);
});

test("a document with many levels, or of another shape, is no answer", async (t) => {
  const deep = `{"state":"busy","holder":${"[".repeat(50_000)}${"]".repeat(50_000)}}`;
  for (const text of [deep, "[".repeat(100_000), '{"a":'.repeat(100_000), "null", '"held"', '{"lease":{},"secret":[]}',
    '{"state":["held"]}', '{"state":"held","token":7}', `{"state":"held","token":"${"9".repeat(40)}"}`]) {
    const bad = await node(t, (path) => [path === "/v1/leases" ? 201 : 200, text]);
    const bad404 = await node(t, () => [404, ""]);
    const guard = await client(bad, bad404, await node(t, works)).lock("a");
    assert.equal(await guard.release(), true);
  }
  assert.equal(document(200, '{"a":[{"b":[{"c":1}]}]}').strange, undefined);
  assert.equal(document(502, "").strange, "an empty answer");
});

test("the path of a URL stands before that of each request", async (t) => {
  const gateway = await node(t, (path) => (path.startsWith("/gw/v1/") ? works(path.slice(3)) : [404, "elsewhere"]));
  for (const url of [`${gateway.url}/gw`, `${gateway.url.replace("http", "HTTP")}/gw//`]) {
    assert.equal(await (await new Rowlock(url, { ttlMs: TTL }).lock("a")).release(), true);
  }
});

test("names that are no text and times that are none are refused", async (t) => {
  const good = await node(t, works);
  for (const name of ["a\ud800", "\udc00/b"]) await assert.rejects(client(good).lock(name), URIError);
  for (const ttlMs of [0, -1, NaN, Infinity]) assert.throws(() => new Rowlock(good.url, { ttlMs }), RangeError);
  for (const url of ["ftp://h", "http://", "h:1", "http://u:p@h", "http://h?a=b", "http://h/#a"]) {
    assert.throws(() => new Rowlock(url), TypeError);
  }
  void new Rowlock("http://a_b:1");
  assert.deepEqual(good.seen, []);
});

test("whatever a callback throws and a signal from outside give the place back", async (t) => {
  for (const thrown of [new Error("no"), null, undefined, 7]) {
    const busy = await node(t, waits);
    const onWaiting = () => {
      throw thrown;
    };
    await assert.rejects(client(busy).lock("a", { onWaiting }), (error) => error === thrown);
    assert.equal(deletes(busy), 1);
  }
  const busy = await node(t, waits);
  await assert.rejects(client(busy).lock("a", { signal: AbortSignal.timeout(300) }));
  assert.equal(deletes(busy), 1);
});
