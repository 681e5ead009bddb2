/**
 * What the client does when nodes fail: against nodes of this file, which answer as they are told. Leases are long,
 * and what must happen is waited for, so that a slow machine is no failure.
 */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import os from "node:os";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Fence, LeaseOver, Refused, Rowlock, Stale, TimedOut, fenceHeader } from "rowlock";

import { now } from "../src/clock.js";
import { ANSWER_MAX, Transport, UNWAITED_MAX, hostAndPort } from "../src/transport.js";

const TTL = 60_000;
/** Of leases whose end is waited for: short, but seconds longer than a slow machine needs for a request. */
const SHORT = 9_000;
/** What a client counts on of it. */
const RELIABLE = 0.9 * SHORT;
/** For what must happen, on a machine of any speed. */
const PATIENCE = 60_000;

const lease = (ttl) => [201, { lease: "0x1", secret: "s", ttl_ms: ttl }];
const held = (ttl, more) => [200, { state: "held", token: "9007199254740993", valid_for_ms: ttl, ...more }];

/** Answers by `script(path, body, count)`, which gives a status and a document, or text of a stream, and headers. */
async function node(t, script) {
  const seen = [];
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    const isJson = request.headers["content-type"] === "application/json";
    const body = text && isJson ? JSON.parse(text) : text || undefined;
    const one = { method: request.method, path: request.url, headers: request.headers, body, isAnswered: false };
    seen.push(one);
    const [status, document, headers] = await script(request.url, body, seen.length);
    response.writeHead(status, { "Content-Type": "application/json", ...headers });
    response.end(typeof document === "string" ? document : JSON.stringify(document), () => (one.isAnswered = true));
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

const worksFor = (ttl) => (path) => {
  if (path === "/v1/leases") return lease(ttl);
  if (path.endsWith("/acquire") || path.endsWith("/campaign")) return held(ttl);
  if (path === "/v1/leases/0x1") return [204, ""];
  if (path.endsWith("/keepalive")) return [200, { valid_for_ms: ttl }];
  return [200, { released: true }];
};
const works = worksFor(TTL);

const but = (end, answer, ttl = TTL) => (path, body, count) =>
  path.endsWith(end) ? answer(body, count) : worksFor(ttl)(path);

// A node may take a third of the lease's time for an answer.
const client = (nodes, options) => new Rowlock([nodes].flat().map(({ url }) => url), { ttlMs: TTL, ...options });

async function waitFor(holds) {
  for (const until = now() + PATIENCE; !holds(); await sleep(20)) assert.ok(now() < until, `${holds}`);
}

const deletes = ({ seen }) => seen.filter(({ method }) => method === "DELETE").length;

/** For what has ended its lease since a moment of `performance`: it waits for the node, but for a second at most. */
async function ends({ seen }, began) {
  const last = () => seen.at(-1)?.method === "DELETE";
  // Timers may be a little early.
  if (performance.now() - began >= 900) await waitFor(last);
  assert.ok(last());
}

const lost = (guard) => waitFor(() => guard.signal.aborted);

/** Waits for a loss: at any look at this moment of `now` or later, the lock is lost. */
async function lostBy(guard, deadline, what) {
  for (;;) {
    const at = now();
    if (guard.lost) break;
    assert.ok(at < deadline, what);
    await sleep(50);
  }
  assert.ok(guard.signal.reason instanceof LeaseOver, what);
}

/** A node whose releases of the lock `a` wait until `letGo`. */
async function slowNode(t, ttl = TTL) {
  let letGo = () => {};
  const answered = new Promise((done) => (letGo = done));
  const slow = await node(t, but("/a/release", () => answered.then(() => [200, { released: true }]), ttl));
  return [slow, letGo];
}

const count = ({ seen }, end) => seen.filter(({ path }) => path.endsWith(end)).length;

test("the end of withLock, using and await using waits for no release", async (t) => {
  const [slow, letGo] = await slowNode(t);
  const unreleased = [];
  // Attempts of one client stand behind its releases.
  const clients = [0, 1, 2].map(() => client(slow, { onUnreleased: (...failed) => unreleased.push(failed) }));
  const guards = [await clients[0].withLock("a", {}, (guard) => guard)];
  for (const [at, end] of [[1, "Symbol.dispose"], [2, "Symbol.asyncDispose"]]) {
    guards.push(await clients[at].lock("a"));
    await guards[at][Symbol[end.slice(7)] ?? Symbol.for(end)]();
  }
  for (const guard of guards) assert.deepEqual([guard.lost, await guard.release()], [true, false]);
  await waitFor(() => count(slow, "/release") === 3);
  let flushed = 0;
  const flushing = clients.map((cluster) => cluster.flush().then(() => flushed++));
  await sleep(20);
  assert.deepEqual([flushed, deletes(slow)], [0, 0]);
  letGo();
  await Promise.all(flushing);
  assert.deepEqual([deletes(slow), unreleased], [3, []]);
});

test("an attempt opens its lease while the release of its lock is under way", async (t) => {
  const [slow, letGo] = await slowNode(t);
  const cluster = client(slow);
  await (await cluster.lock("a")).releaseLater();
  const next = cluster.lock("a");
  await waitFor(() => count(slow, "/v1/leases") === 2);
  assert.equal(count(slow, "/acquire"), 1);
  letGo();
  assert.equal(await (await next).release(), true);
});

test("an attempt does not wait for the end of the lease before", async (t) => {
  const slow = await node(t, but("/v1/leases/0x1", hangs));
  const cluster = client(slow);
  const began = performance.now();
  for (let cycle = 0; cycle < 9; cycle++) await cluster.withLock("a", {}, () => {});
  assert.ok(performance.now() - began < 8_000, "each has waited a second");
  assert.equal(count(slow, "/acquire"), 9);
});

test("an unwaited release is repeated, and its failure is reported", async (t) => {
  const report = async (answers, ...failed) => {
    const unreleased = [];
    const bad = await node(t, but("/release", () => answers.length > 1 ? answers.shift() : answers[0]));
    const cluster = client(bad, { onUnreleased: (lock, error) => unreleased.push(lock, error.message) });
    await cluster.withLock("a b", {}, () => {});
    await cluster.flush();
    assert.equal(unreleased.length, failed.length, `${unreleased}`);
    failed.forEach((says, at) => assert.ok(unreleased[at].startsWith(says), unreleased[at]));
    return count(bad, "/release");
  };
  assert.equal(await report([[503, {}], [200, {}], [200, { released: true }]]), 3);
  await report([[403, { title: "no" }]], "a b", "cannot release it; it is free when its lease ends: ");
  await report([[200, { released: false }]], "a b", "it was not held any more");
  await report([[404, {}]], "a b", "it was not held any more");
});

test("a release beyond the bound of unwaited ones is waited for, or left to the lease", async (t) => {
  // A release is repeated after a third of its lease's time: here never while this test runs.
  const ttl = 20 * PATIENCE;
  const [slow, letGo] = await slowNode(t, ttl);
  const unreleased = [];
  const cluster = client(slow, { ttlMs: ttl, onUnreleased: (lock) => unreleased.push(lock) });
  const guards = await Promise.all(Array.from({ length: UNWAITED_MAX + 2 }, () => cluster.lock("a")));
  const [waited, left, ...others] = guards;
  for (const guard of others) await guard.releaseLater();
  let isOver = false;
  const over = waited.releaseLater().then(() => (isOver = true));
  left[Symbol.dispose ?? Symbol.for("Symbol.dispose")]();
  await waitFor(() => count(slow, "/release") === UNWAITED_MAX + 1);
  assert.deepEqual([isOver, left.lost, unreleased], [false, true, ["a"]]);
  letGo();
  await over;
  await cluster.flush();
  assert.deepEqual([count(slow, "/release"), unreleased], [UNWAITED_MAX + 1, ["a"]]);
  // A client asks for the end of its leases as long as they live, which keeps this process running.
  const ended = () => slow.seen.filter(({ method, isAnswered }) => method === "DELETE" && isAnswered).length;
  await waitFor(() => ended() === UNWAITED_MAX + 1);
});

test("a release that is not waited for stays in front of the next request for its lock, and of no other", async (t) => {
  const [slow, letGo] = await slowNode(t);
  const cluster = client(slow);
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
  const cluster = client([fails, good], { token: "secret" });
  const guard = await cluster.lock("a/b c");
  assert.deepEqual([guard.token, guard.lost], [9007199254740993n, false]);
  const began = performance.now();
  assert.equal(await guard.release(), true);
  await ends(good, began);
  assert.equal(await guard.release(), false);
  assert.ok(guard.lost && guard.signal.aborted && !(guard.signal.reason instanceof LeaseOver));
  const sent = [...fails.seen, ...good.seen].filter(({ path }) => path === "/v1/locks/a/b%20c/acquire");
  assert.equal(sent.length, 2);
  assert.equal(sent[0].body.request_id, sent[1].body.request_id);
  assert.equal(sent[1].headers.authorization, "Bearer secret");
});

test("a client goes to a leader that it knows, and only now and then", async (t) => {
  let named = "";
  const first = await node(t, (path) => [...works(path), { "Rowlock-Leader": named }]);
  const [other, leader, stranger] = [await node(t, works), await node(t, works), await node(t, works)];
  /** Whether each request to the first node has asked for the leader. */
  const cycle = async (cluster) => {
    const [asked, ended] = [first.seen.length, deletes(first) + deletes(leader)];
    assert.equal(await (await cluster.lock("a")).release(), true);
    // Its last request may still be under way.
    await waitFor(() => deletes(first) + deletes(leader) > ended);
    assert.deepEqual([other.seen, stranger.seen], [[], []]);
    return first.seen.slice(asked).map(({ headers }) => headers.prefer === "leader");
  };
  named = new URL(leader.url).host;
  const cluster = client([first, other, leader]);
  assert.deepEqual([await cycle(cluster), await cycle(cluster)], [[true], []]);
  assert.ok(leader.seen.length >= 7);
  // It dies, and is named again: at first that counts for nothing.
  leader.close();
  assert.deepEqual([...new Set(await cycle(cluster))], [false]);

  named = new URL(stranger.url).host;
  assert.deepEqual((await cycle(client([first, other]))).slice(0, 2), [true, false]);
  assert.deepEqual([...new Set(await cycle(client(first)))], [false]);
  const transport = new Transport(["HTTPS://Db1.Example", "http://[::1]:8481/"]);
  assert.deepEqual(transport.nodes.map(hostAndPort), ["db1.example:443", "[::1]:8481"]);
  transport.follow("[::1]:8481");
  transport.follow("db1.example:443");
  assert.equal(transport.at, 1);
  transport.staysUntil = 0;
  transport.follow("DB1.example:443");
  assert.equal(transport.at, 0);
});

test("a lock is known to be lost at its deadline though nothing ran", async (t) => {
  const guard = await client(await node(t, works)).lock("a");
  /** Whether it is lost so much later. Which clock is asked depends on the version of Node. */
  const isLost = (later) => {
    const [uptime, steady] = [os.uptime(), performance.now()];
    const clocks = [
      t.mock.method(os, "uptime", () => uptime + later / 1000), t.mock.method(performance, "now", () => steady + later),
    ];
    const { lost } = guard;
    for (const { mock } of clocks) mock.restore();
    return lost;
  };
  assert.deepEqual([isLost(0.2 * TTL), isLost(0.9 * TTL)], [false, true]);
  assert.ok(guard.signal.reason instanceof LeaseOver);
  assert.equal(await guard.release(), false);
});

test("a refusal is not repeated and ends the lease", async (t) => {
  const one = await node(t, but("/acquire", () => [422, { title: "no", detail: "the lock has 3 permits" }]));
  const began = performance.now();
  await assert.rejects(client(one).lock("a"), (error) => error instanceof Refused && /3 permits/.test(error.message));
  await ends(one, began);
  assert.equal(one.seen.filter(({ path }) => path.endsWith("/acquire")).length, 1);
});

test("a place that was taken away is an error, and a candidacy that made way is made again", async (t) => {
  const one = await node(t, but("/acquire", () => [200, { state: "gone" }]));
  await assert.rejects(client(one).lock("a"), LeaseOver);
  const ids = [];
  const gone = (body) => (ids.push(body.request_id) === 1 ? [200, { state: "gone" }] : held(TTL));
  const other = await node(t, but("/campaign", gone));
  const guard = await client(other).election("a/b").campaign({ value: "v" });
  assert.equal(new Set(ids).size, 2);
  assert.equal(await guard.release(), true);
  const paths = other.seen.map(({ path }) => path);
  assert.ok(paths.includes("/v1/elections/a%2Fb/campaign") && paths.includes("/v1/elections/a%2Fb/resign"));
});

test("an attempt that is aborted ends its lease before it rejects", async (t) => {
  const one = await node(t, but("/acquire", () => [202, { state: "waiting", position: 1 }]));
  const ending = new AbortController();
  const reason = new Error("enough");
  const began = performance.now();
  const asked = client(one).lock("a", { signal: ending.signal, onWaiting: () => ending.abort(reason) });
  await assert.rejects(asked, (error) => error === reason);
  await ends(one, began);
});

test("without nodes the time runs out", async (t) => {
  const one = await node(t, works);
  one.close();
  await assert.rejects(client(one).lock("a", { timeoutMs: 300 }), TimedOut);
});

test("a lock is given back when its work fails", async (t) => {
  const one = await node(t, works);
  const failed = client(one).withLock("a", {}, () => { throw new Error("work"); });
  await assert.rejects(failed, /work/);
  await waitFor(() => count(one, "/release") === 1);
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
  const stops = await node(t, () => [200, text]);
  const more = await node(t, () => [200, "event: released\ndata: {}\n\n"]);
  const found = [];
  for await (const event of client([stops, more]).watch({ lock: "/locks/a" })) {
    found.push(event);
    if (event.event === "released") break;
  }
  assert.deepEqual(found, [
    { id: undefined, event: "requested", data: { lock: "/locks/a" } },
    { id: "41", event: "granted", data: {} },
    { id: undefined, event: "released", data: {} },
  ]);
  assert.deepEqual([stops.seen[0].path, stops.seen[0].headers["last-event-id"]], ["/v1/watch?lock=%2Flocks%2Fa", undefined]);
  assert.equal(more.seen[0].headers["last-event-id"], "42");
  const refuses = await node(t, () => [401, { title: "no token" }]);
  await assert.rejects(client(refuses).watch().next(), Refused);
});

test("what is no answer of this API is asked again at the next node", async (t) => {
  const good = await node(t, works);
  for (const answer of STRANGE) {
    const strange = await node(t, () => answer);
    const guard = await client([strange, good]).lock("a", { timeoutMs: PATIENCE });
    assert.deepEqual([guard.token, guard.lost, strange.seen.length > 0], [9007199254740993n, false, true], answer);
    assert.equal(await guard.release(), true, answer);
  }
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
    if (!path.startsWith("/v1/znodes/")) return works(path);
    count += 1;
    // A proxy, then a node without a quorum, then the answer.
    return [[200, {}], [503, {}], [200, { stat: { version: 3 } }], late, [412, { title: "Precondition Failed" }]][count - 1];
  });
  const guard = await client(one).lock("a b");
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

const asks = (reason, ago, more) =>
  ({ lock: "/locks/a", token: "9007199254740993", reason, by: "ops", asked_ms_ago: ago, ...more });

test("a question that came with the lock is heard", async (t) => {
  const other = await node(t, but("/acquire", () => held(TTL, { asked: [asks("waited for", 0)] })));
  const guard = await client(other).lock("a");
  assert.equal(guard.asked.reason.reason, "waited for");
  await guard.release();
});

test("holders are asked for the lock", async (t) => {
  const holder = { token: "7", place: "p", label: "l", since_ms: 5 };
  const answers = [[503, {}], [200, {}], [200, { asked: 1, holders: [holder] }], [200, { asked: 0, holders: [] }],
    [404, { title: "Not Found" }], [403, { title: "Forbidden" }]];
  const one = await node(t, () => answers.shift());
  const [cluster, { seen }] = [client(one), one];
  assert.deepEqual(await cluster.ask("ci/a b", "the next release", { withinMs: 1500, label: "me" }), 1);
  assert.deepEqual([seen[2].path, seen[2].body],
    ["/v1/locks/ci/a%20b/ask", { reason: "the next release", within_ms: 1500, label: "me" }]);
  assert.deepEqual(await cluster.ask("a", "why"), 0);
  assert.deepEqual(seen[3].body, { reason: "why" });
  for (const status of [404, 403]) {
    await assert.rejects(cluster.ask("a", "why"), (error) => error instanceof Refused && error.status === status);
  }
});

test("a client by the environment has nodes and token, and names the variable of Node that is missing", async (t) => {
  const one = await node(t, works);
  const { ROWLOCK_API, ROWLOCK_TOKEN, ROWLOCK_TLS_CA, NODE_EXTRA_CA_CERTS } = process.env;
  const set = (values) => Object.entries(values).forEach(([name, value]) => {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  });
  t.after(() => set({ ROWLOCK_API, ROWLOCK_TOKEN, ROWLOCK_TLS_CA, NODE_EXTRA_CA_CERTS }));
  set({ ROWLOCK_API: `${one.url},https://127.0.0.1:1`, ROWLOCK_TOKEN: "t", ROWLOCK_TLS_CA: undefined, NODE_EXTRA_CA_CERTS: undefined });
  await (await Rowlock.fromEnv({ ttlMs: TTL }).lock("a")).release();
  assert.equal(one.seen[0].headers.authorization, "Bearer t");
  set({ ROWLOCK_TLS_CA: "ca.pem" });
  assert.throws(() => Rowlock.fromEnv(), /set NODE_EXTRA_CA_CERTS=ca.pem/);
});

describe("tests that wait for most of their time, beside each other", { concurrency: true }, () => {
  test("the end of the caller's time is no failure of the node", async (t) => {
    const [hanging, good] = [await node(t, hangs), await node(t, works)];
    const transport = new Transport([hanging.url, good.url]);
    await assert.rejects(transport.call("POST", "/v1/leases", {}, now() + 100, { each: PATIENCE }), TimedOut);
    assert.deepEqual([transport.at, good.seen], [0, []], "it is the next to be asked");
    const { status } = await transport.call("POST", "/v1/leases", {}, now() + PATIENCE, { each: 1000 });
    assert.deepEqual([status, transport.at], [201, 1]);
  });

  test("a lock is lost when no node answers keep-alive", async (t) => {
    const one = await node(t, but("/keepalive", () => [503, {}], SHORT));
    const began = now();
    const guard = await client(one).lock("a");
    assert.equal(guard.lost, false);
    // Nobody looks at the clock.
    await lost(guard);
    const passed = now() - began;
    assert.ok(guard.lost && guard.signal.reason instanceof LeaseOver);
    assert.ok(passed >= RELIABLE && passed < 2 * SHORT, `${passed}`);
  });

  test("a lock is lost when the lease is not known", async (t) => {
    const guard = await client(await node(t, but("/keepalive", () => [404, {}], 2 * SHORT))).lock("a");
    const began = now();
    await lost(guard);
    // A third of its time has passed, and not nine tenths.
    assert.ok(now() - began < 1.5 * SHORT, `${now() - began}`);
  });

  test("a lock is kept while keep-alive is answered", async (t) => {
    const one = await node(t, worksFor(SHORT));
    const guard = await client(one).lock("a");
    await sleep((SHORT * 4) / 3);
    await waitFor(() => one.seen.filter(({ path }) => path.endsWith("/keepalive")).length >= 3);
    assert.equal(guard.lost, false);
    assert.equal(await guard.release(), true);
  });

  for (const [index, answer] of STRANGE.entries()) {
    test(`a lock is lost at its deadline when keep-alive is answered by something else: ${index}`, async (t) => {
      const one = await node(t, but("/keepalive", () => answer, SHORT));
      const began = now();
      const guard = await client(one).lock("a");
      // The deadline counts from a moment between these two.
      await lostBy(guard, now() + RELIABLE, answer);
      assert.ok(now() - began >= RELIABLE, answer);
      assert.equal(await guard.release(), false, answer);
    });
  }

  test("a promise of more than the lease's time counts for that time", async (t) => {
    const one = await node(t, but("/keepalive", () => [200, { valid_for_ms: 1e9, asked: "yes" }], SHORT));
    const guard = await client(one).lock("a");
    await sleep(SHORT);
    assert.deepEqual([guard.lost, guard.question], [false, null]);
    guard.silence();
    await lostBy(guard, now() + RELIABLE);
  });

  // The end of such a lease is tried until its deadline, which this process waits for.
  const opens = (path) => (path === "/v1/leases" ? lease(2 * SHORT) : hangs());
  for (const [what, script] of [["all", hangs], ["the lock", opens]]) {
    test(`timeouts wait for no node that hangs when it is asked for ${what}`, async (t) => {
      const [one, began] = [await node(t, script), now()];
      await assert.rejects(client(one).lock("a", { timeoutMs: 500 }), TimedOut);
      assert.ok(now() - began < ANSWER_MAX);
    });

    test(`aborts wait for no node that hangs when it is asked for ${what}`, async (t) => {
      const one = await node(t, script);
      const ending = new AbortController();
      const reason = new Error("enough");
      setTimeout(() => ending.abort(reason), 300);
      const began = now();
      await assert.rejects(client(one).lock("a", { signal: ending.signal }), (error) => error === reason);
      assert.ok(now() - began < ANSWER_MAX);
    });
  }

  test("a node that hangs leaves time for the others", async (t) => {
    const [hanging, good] = [await node(t, hangs), await node(t, works)];
    // Less than a third of the lease's time, and half of it for each node.
    const guard = await client([hanging, good]).lock("a", { timeoutMs: 0.3 * TTL });
    assert.equal(guard.lost, false);
    assert.ok(hanging.seen.length > 0);
    await guard.release();
  });

  test("a holder hears the questions about its token, and loses the lock at their deadline", async (t) => {
    // Of another holder, and of something else than a node.
    const strange = [asks("not you", 1, { token: "8" }), { token: "9007199254740993" }, null, 5, asks("bad", -1)];
    const left = 7000;
    const last = [asks("last", 5, { revoked_in_ms: left })];
    // What is said after which question: an answer may come too late.
    const said = { none: [...strange, asks("first", 10)], first: [asks("first", 300), asks("second", 20)] };
    let guard;
    const one = await node(t, (path) => {
      if (path.endsWith("/acquire")) return held(SHORT, { asked: strange });
      if (!path.endsWith("/keepalive")) return worksFor(SHORT)(path);
      return [200, { valid_for_ms: SHORT, asked: said[guard?.question?.reason ?? "none"] ?? last }];
    });
    const [began, wall] = [now(), Date.now()];
    guard = await client(one).lock("a");
    assert.deepEqual([guard.question, guard.asked.aborted], [null, false]);
    await waitFor(() => guard.asked.aborted);
    const { token, by, lock, reason, revokedMs } = guard.asked.reason;
    assert.deepEqual([token, by, lock, reason, revokedMs], [9007199254740993n, "ops", "/locks/a", "first", null]);
    await waitFor(() => guard.question.reason === "last");
    const until = guard.question.revokedMs;
    assert.ok(until >= wall + left && until <= Date.now() + left, `${until}`);
    await lostBy(guard, now() + left);
    // It has come with the third keep-alive.
    assert.ok(now() - began >= SHORT + left);
    assert.deepEqual([guard.question.reason, guard.asked.reason.reason], ["last", "first"]);
  });
});
