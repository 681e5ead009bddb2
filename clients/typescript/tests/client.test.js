/** What the client does when nodes fail: against nodes of this file, which answer as they are told. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { Fence, LeaseOver, Refused, Rowlock, Stale, TimedOut, fenceHeader } from "rowlock";

import { now } from "../src/clock.js";
import { Transport, hostAndPort } from "../src/transport.js";

const LEASE = [201, { lease: "0x1", secret: "s", ttl_ms: 600 }];
const HELD = [200, { state: "held", token: "9007199254740993", valid_for_ms: 600 }];

/** Answers by `script(path, body, count)`, which gives a status and a document, or text of a stream, and headers. */
async function node(t, script) {
  const seen = [];
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    const isJson = request.headers["content-type"] === "application/json";
    const body = text && isJson ? JSON.parse(text) : text || undefined;
    seen.push({ method: request.method, path: request.url, headers: request.headers, body });
    const [status, document, headers] = await script(request.url, body, seen.length);
    response.writeHead(status, { "Content-Type": "application/json", ...headers });
    response.end(typeof document === "string" ? document : JSON.stringify(document));
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  t.after(close);
  return { url: `http://127.0.0.1:${server.address().port}`, seen, close };
}

/** What a proxy answers in the place of a node, or a node of something else. */
const STRANGE = [
  [200, {}], [200, ""], [200, "[]"], [200, "<html>ready</html>"], [204, ""], [302, {}], [502, "<html>bad</html>"],
  [200, { valid_for_ms: null, state: "held", token: null, released: "yes", held: 1, ttl_ms: "600" }],
  [200, '{"valid_for_ms": NaN, "state": "waiting", "position": "first"}'], [202, '{"valid_for_ms": 1e999}'],
  [201, { lease: "0x1", secret: "s", ttl_ms: -1, state: "free", valid_for_ms: -5 }],
];

const hangs = () => new Promise(() => {});

function works(path) {
  if (path === "/v1/leases") return LEASE;
  if (path.endsWith("/acquire") || path.endsWith("/campaign")) return HELD;
  if (path.endsWith("/keepalive")) return [200, { valid_for_ms: 600 }];
  return [200, { released: true }];
}

const but = (end, answer) => (path, body, count) => (path.endsWith(end) ? answer(body, count) : works(path));
const lost = (guard) => new Promise((done) => guard.signal.addEventListener("abort", done, { once: true }));

test("a release that is not waited for stays in front of the next request for its lock, and of no other", async (t) => {
  let letGo = () => {};
  const answered = new Promise((done) => (letGo = done));
  const slow = await node(t, but("/a/release", () => answered.then(() => [200, { released: true }])));
  const cluster = new Rowlock(slow.url);
  const released = (await cluster.lock("a")).release();
  const next = cluster.lock("a");
  await (await cluster.lock("b")).release();
  const asked = () => slow.seen.filter(({ path }) => path === "/v1/locks/a/acquire").length;
  assert.equal(asked(), 1);
  await assert.rejects(cluster.lock("a", { signal: AbortSignal.timeout(20) }));
  letGo();
  assert.deepEqual([await released, await (await next).release(), asked()], [true, true, 2]);
});

test("an attempt keeps its request id at the next node, and a token all its digits", async (t) => {
  const fails = await node(t, but("/acquire", () => [503, {}]));
  const good = await node(t, works);
  const cluster = new Rowlock([fails.url, good.url], { token: "secret" });
  const guard = await cluster.lock("a/b c");
  assert.deepEqual([guard.token, guard.lost], [9007199254740993n, false]);
  assert.equal(await guard.release(), true);
  assert.equal(await guard.release(), false);
  assert.ok(guard.lost && guard.signal.aborted && !(guard.signal.reason instanceof LeaseOver));
  const sent = [...fails.seen, ...good.seen].filter(({ path }) => path === "/v1/locks/a/b%20c/acquire");
  assert.equal(sent.length, 2);
  assert.equal(sent[0].body.request_id, sent[1].body.request_id);
  assert.equal(sent[1].headers.authorization, "Bearer secret");
  assert.ok(good.seen.some(({ method }) => method === "DELETE"));
});

test("a client goes to a leader that it knows, and only now and then", async (t) => {
  let named = "";
  const first = await node(t, (path) => [...works(path), { "Rowlock-Leader": named }]);
  const [other, leader, stranger] = [await node(t, works), await node(t, works), await node(t, works)];
  /** Whether each request to the first node has asked for the leader. */
  const cycle = async (cluster) => {
    const asked = first.seen.length;
    assert.equal(await (await cluster.lock("a")).release(), true);
    assert.deepEqual([other.seen, stranger.seen], [[], []]);
    return first.seen.slice(asked).map(({ headers }) => headers.prefer === "leader");
  };
  named = new URL(leader.url).host;
  const urls = [first.url, other.url, leader.url];
  const cluster = new Rowlock(urls);
  assert.deepEqual([await cycle(cluster), await cycle(cluster)], [[true], []]);
  assert.ok(leader.seen.length >= 7);
  // It dies, and is named again: at first that counts for nothing.
  leader.close();
  assert.deepEqual([...new Set(await cycle(cluster))], [false]);

  named = new URL(stranger.url).host;
  assert.deepEqual((await cycle(new Rowlock([first.url, other.url]))).slice(0, 2), [true, false]);
  assert.deepEqual([...new Set(await cycle(new Rowlock(first.url)))], [false]);
  const transport = new Transport(["HTTPS://Db1.Example", "http://[::1]:8481/"]);
  assert.deepEqual(transport.nodes.map(hostAndPort), ["db1.example:443", "[::1]:8481"]);
  transport.follow("[::1]:8481");
  transport.follow("db1.example:443");
  assert.equal(transport.at, 1);
  transport.staysUntil = 0;
  transport.follow("DB1.example:443");
  assert.equal(transport.at, 0);
});

test("the end of the caller's time is no failure of the node", async (t) => {
  const [hanging, good] = [await node(t, hangs), await node(t, works)];
  const transport = new Transport([hanging.url, good.url]);
  await assert.rejects(transport.call("POST", "/v1/leases", {}, now() + 100, { each: 5000 }), TimedOut);
  const { status } = await transport.call("POST", "/v1/leases", {}, now() + 5000, { each: 100 });
  assert.equal(status, 201);
  // Clocks may have left a moment for one more.
  assert.ok(hanging.seen.length >= 2 && good.seen.length === 1);
});

test("a lock is lost when no node answers keep-alive", async (t) => {
  const { url } = await node(t, but("/keepalive", () => [503, {}]));
  const guard = await new Rowlock(url).lock("a");
  assert.equal(guard.lost, false);
  await lost(guard);
  assert.ok(guard.lost && guard.signal.reason instanceof LeaseOver);
});

test("a lock is lost when the lease is not known", async (t) => {
  const { url } = await node(t, but("/keepalive", () => [404, {}]));
  await lost(await new Rowlock(url).lock("a"));
});

test("a lock is kept while keep-alive is answered, and known to be lost after a loop that was blocked", async (t) => {
  const { url, seen } = await node(t, works);
  const guard = await new Rowlock(url).lock("a");
  await new Promise((done) => setTimeout(done, 1500));
  assert.equal(guard.lost, false);
  assert.ok(seen.filter(({ path }) => path.endsWith("/keepalive")).length >= 3);
  const until = performance.now() + 700;
  while (performance.now() < until);
  assert.equal(guard.lost, true);
  assert.equal(await guard.release(), false);
});

test("a refusal is not repeated and ends the lease", async (t) => {
  const { url, seen } = await node(t, but("/acquire", () => [422, { title: "no", detail: "the lock has 3 permits" }]));
  await assert.rejects(new Rowlock(url).lock("a"), (error) => error instanceof Refused && /3 permits/.test(error.message));
  assert.equal(seen.filter(({ path }) => path.endsWith("/acquire")).length, 1);
  assert.ok(seen.some(({ method }) => method === "DELETE"));
});

test("a place that was taken away is an error, and a candidacy that made way is made again", async (t) => {
  const { url } = await node(t, but("/acquire", () => [200, { state: "gone" }]));
  await assert.rejects(new Rowlock(url).lock("a"), LeaseOver);
  const ids = [];
  const gone = (body) => (ids.push(body.request_id) === 1 ? [200, { state: "gone" }] : HELD);
  const other = await node(t, but("/campaign", gone));
  const guard = await new Rowlock(other.url).election("a/b").campaign({ value: "v" });
  assert.equal(new Set(ids).size, 2);
  assert.equal(await guard.release(), true);
  const paths = other.seen.map(({ path }) => path);
  assert.ok(paths.includes("/v1/elections/a%2Fb/campaign") && paths.includes("/v1/elections/a%2Fb/resign"));
});

test("an attempt that is aborted ends its lease before it rejects", async (t) => {
  const { url, seen } = await node(t, but("/acquire", () => [202, { state: "waiting", position: 1 }]));
  const ending = new AbortController();
  const reason = new Error("enough");
  const asked = new Rowlock(url).lock("a", { signal: ending.signal, onWaiting: () => ending.abort(reason) });
  await assert.rejects(asked, (error) => error === reason);
  assert.equal(seen.at(-1).method, "DELETE");
});

test("without nodes the time runs out", async (t) => {
  const { url, close } = await node(t, works);
  close();
  await assert.rejects(new Rowlock(url).lock("a", { timeoutMs: 300 }), TimedOut);
});

test("a lock is given back when its work fails", async (t) => {
  const { url, seen } = await node(t, works);
  const failed = new Rowlock(url).withLock("a", {}, () => { throw new Error("work"); });
  await assert.rejects(failed, /work/);
  assert.ok(seen.some(({ path }) => path.endsWith("/release")));
});

test("names and addresses that would ask for something else are refused", async () => {
  assert.throws(() => new Rowlock("ftp://a"), TypeError);
  assert.throws(() => new Rowlock([]), TypeError);
  const cluster = new Rowlock("http://127.0.0.1:9");
  await assert.rejects(cluster.lock("../leases"), TypeError);
  assert.throws(() => cluster.election(".."), TypeError);
});

test("a watch resumes at the next node behind the last id, and skips comments", async (t) => {
  const text = ": hello\n\nevent: requested\r\ndata: {\"lock\":\r\ndata: \"/locks/a\"}\r\n\r\nid: 41\nevent: granted\ndata: {}\n\nid: 42\n\n";
  const ends = await node(t, () => [200, text]);
  const more = await node(t, () => [200, "event: released\ndata: {}\n\n"]);
  const found = [];
  for await (const event of new Rowlock([ends.url, more.url]).watch({ lock: "/locks/a" })) {
    found.push(event);
    if (event.event === "released") break;
  }
  assert.deepEqual(found, [
    { id: undefined, event: "requested", data: { lock: "/locks/a" } },
    { id: "41", event: "granted", data: {} },
    { id: undefined, event: "released", data: {} },
  ]);
  assert.deepEqual([ends.seen[0].path, ends.seen[0].headers["last-event-id"]], ["/v1/watch?lock=%2Flocks%2Fa", undefined]);
  assert.equal(more.seen[0].headers["last-event-id"], "42");
  const refuses = await node(t, () => [401, { title: "no token" }]);
  await assert.rejects(new Rowlock(refuses.url).watch().next(), Refused);
});

test("what is no answer of this API is asked again at the next node", async (t) => {
  const good = await node(t, works);
  for (const answer of STRANGE) {
    const strange = await node(t, () => answer);
    const guard = await new Rowlock([strange.url, good.url]).lock("a", { timeoutMs: 5000 });
    assert.deepEqual([guard.token, guard.lost, strange.seen.length > 0], [9007199254740993n, false, true], answer);
    assert.equal(await guard.release(), true, answer);
  }
});

test("a lock is lost at its deadline when keep-alive is answered by something else", async (t) => {
  for (const answer of STRANGE) {
    const { url } = await node(t, but("/keepalive", () => answer));
    const [guard, began] = [await new Rowlock(url).lock("a"), performance.now()];
    await lost(guard);
    assert.ok(guard.lost && performance.now() - began < 2000, answer);
    assert.equal(await guard.release(), false, answer);
  }
});

test("a promise of more than the lease's time counts for that time", async (t) => {
  const { url } = await node(t, but("/keepalive", () => [200, { valid_for_ms: 1e9 }]));
  const guard = await new Rowlock(url).lock("a");
  await new Promise((done) => setTimeout(done, 700));
  assert.equal(guard.lost, false);
  guard.silence();
  await lost(guard);
});

test("timeouts and aborts wait for no node that hangs", async (t) => {
  const opens = (path) => (path === "/v1/leases" ? LEASE : hangs());
  for (const script of [hangs, opens]) {
    const { url } = await node(t, script);
    let began = performance.now();
    await assert.rejects(new Rowlock(url).lock("a", { timeoutMs: 500 }), TimedOut);
    assert.ok(performance.now() - began < 2000);
    const ending = new AbortController();
    const reason = new Error("enough");
    setTimeout(() => ending.abort(reason), 300);
    began = performance.now();
    await assert.rejects(new Rowlock(url).lock("a", { signal: ending.signal }), (error) => error === reason);
    assert.ok(performance.now() - began < 2000);
  }
});

test("a node that hangs leaves time for the others", async (t) => {
  const long = [201, { lease: "0x1", secret: "s", ttl_ms: 10_000 }];
  const [hanging, good] = [await node(t, hangs), await node(t, (path) => (path === "/v1/leases" ? long : works(path)))];
  const guard = await new Rowlock([hanging.url, good.url]).lock("a", { timeoutMs: 2000 });
  assert.equal(guard.lost, false);
  await guard.release();
});

test("a fence refuses a smaller token, and a header names the lock and the token", () => {
  const fence = new Fence(7n);
  assert.deepEqual([6n, 7n, 7n, 2n ** 63n, 2n ** 63n - 1n].map((token) => fence.check(token)), [false, true, true, true, false]);
  assert.equal(fence.seen, 2n ** 63n);
  assert.equal(fenceHeader("a;b's/é", 9007199254740993n), "a%3Bb%27s/%C3%A9;9007199254740993");
});

test("a fenced write is repeated with its key, and a late one is stale", async (t) => {
  const late = [412, { title: "Precondition Failed", stale: true }];
  let count = 0;
  const one = await node(t, (path) => {
    if (path === "/v1/leases") return LEASE;
    if (path.endsWith("/acquire")) return HELD;
    if (!path.startsWith("/v1/znodes/")) return [200, { valid_for_ms: 600, released: true }];
    count += 1;
    // A proxy, then a node without a quorum, then the answer.
    return [[200, {}], [503, {}], [200, { stat: { version: 3 } }], late, [412, { title: "Precondition Failed" }]][count - 1];
  });
  const guard = await new Rowlock(one.url).lock("a b");
  assert.equal(await guard.set("/x y", "data", 2), 3);
  const sent = one.seen.filter(({ path }) => path === "/v1/znodes/x%20y");
  assert.equal(sent.length, 3);
  const { headers, body } = sent[2];
  assert.deepEqual([body, headers["if-match"], headers["rowlock-lease"]], ["data", '"2"', "s"]);
  assert.equal(headers["rowlock-fence"], "a%20b;9007199254740993");
  assert.equal(new Set(sent.map((request) => request.headers["idempotency-key"])).size, 1);
  await assert.rejects(guard.set("/x y", "data"), Stale);
  await assert.rejects(guard.delete("/x y", 1), (error) => error instanceof Refused && error.status === 412);
  await guard.release();
});

const asks = (reason, ago, more) => ({ lock: "/locks/a", token: "9007199254740993", reason, by: "ops", asked_ms_ago: ago, ...more });

test("a holder hears the questions about its token, and loses the lock at their deadline", async (t) => {
  const said = [
    // Of another holder, and of something else than a node.
    [asks("not you", 1, { token: "8" })], [{ token: "9007199254740993" }, null, 5], "yes", [asks("bad", -1)],
    [asks("first", 10)], [asks("first", 300), asks("second", 20)],
  ];
  const last = [asks("last", 5, { revoked_in_ms: 500 })];
  const asked = () => [200, { valid_for_ms: 600, asked: said.shift() ?? last }];
  const { url } = await node(t, but("/keepalive", asked));
  const guard = await new Rowlock(url).lock("a");
  assert.deepEqual([guard.question, guard.asked.aborted], [null, false]);
  await new Promise((done) => guard.asked.addEventListener("abort", done));
  const { token, by, lock, reason, revokedMs } = guard.asked.reason;
  assert.deepEqual([token, by, lock, reason, revokedMs], [9007199254740993n, "ops", "/locks/a", "first", null]);
  await lost(guard);
  assert.deepEqual([guard.question.reason, guard.asked.reason.reason, said.length], ["last", "first", 0]);
  assert.ok(Math.abs(guard.question.revokedMs - Date.now()) < 1000);
  const held = [200, { ...HELD[1], asked: [asks("waited for", 0)] }];
  const other = await new Rowlock((await node(t, but("/acquire", () => held))).url).lock("a");
  assert.equal(other.asked.reason.reason, "waited for");
  await other.release();
});

test("holders are asked for the lock", async (t) => {
  const holder = { token: "7", place: "p", label: "l", since_ms: 5 };
  const answers = [[503, {}], [200, {}], [200, { asked: 1, holders: [holder] }], [200, { asked: 0, holders: [] }],
    [404, { title: "Not Found" }], [403, { title: "Forbidden" }]];
  const { url, seen } = await node(t, () => answers.shift());
  const cluster = new Rowlock(url);
  assert.deepEqual(await cluster.ask("ci/a b", "the next release", { withinMs: 1500, label: "me" }), 1);
  assert.deepEqual([seen[2].path, seen[2].body],
    ["/v1/locks/ci/a%20b/ask", { reason: "the next release", within_ms: 1500, label: "me" }]);
  assert.deepEqual(await cluster.ask("a", "why"), 0);
  assert.deepEqual(seen[3].body, { reason: "why" });
  for (const status of [404, 403]) {
    await assert.rejects(cluster.ask("a", "why"), (error) => error instanceof Refused && error.status === status);
  }
});
