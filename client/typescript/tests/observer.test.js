/** What an observer gets, and locks that the program keeps by itself: against nodes that answer as they are told. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Busy, LeaseOver, Refused, Rowlock, TimedOut } from "rowlock";
import { otelObserver } from "rowlock/otel";

import { now } from "../src/clock.js";
import { NAMES_MAX } from "../src/observer.js";

/** Milliseconds of a lease, and of one whose end is waited for. */
const [TTL, SHORT] = [60_000, 9_000];
/** What a client counts on of it. */
const RELIABLE = 0.9 * SHORT;

const held = (more) => [200, { state: "held", token: "7", ...more }];
const waiting = [202, { state: "waiting", position: 2 }];

/** A node that answers acquires by `acquire`; counts its requests by the end of their address. */
async function node(t, acquire = () => held(), ttl = TTL) {
  const counts = { acquire: 0, keepalive: 0, release: 0 };
  const server = createServer(async (request, response) => {
    for await (const _ of request);
    const end = request.url.split("/").at(-1);
    if (end in counts) counts[end]++;
    const [status, document] =
      end === "leases" ? [201, { lease: "0x1", secret: "s", ttl_ms: ttl }]
      : end === "acquire" ? await acquire()
      : end === "keepalive" ? [200, { valid_for_ms: ttl }]
      : [200, { released: true }];
    response.writeHead(request.method === "DELETE" ? 204 : status, { "Content-Type": "application/json" });
    response.end(request.method === "DELETE" ? "" : JSON.stringify(document));
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const clients = [];
  t.after(async () => {
    // Unwaited releases need the node.
    await Promise.all(clients.map((cluster) => cluster.flush()));
    server.closeAllConnections();
    server.close();
  });
  const client = (options) => {
    clients.push(new Rowlock(url, { ttlMs: TTL, ...options }));
    return clients.at(-1);
  };
  const url = `http://127.0.0.1:${server.address().port}`;
  return { client, counts };
}

function observed({ client }) {
  const seen = { inProgress: 0, names: [], waits: [], holds: [] };
  const observer = {
    waiting: (name) => (seen.inProgress++, seen.names.push(name)),
    waited: (wait) => (seen.inProgress--, seen.waits.push(wait)),
    held: (hold) => seen.holds.push(hold),
  };
  return [client({ observer }), seen];
}

describe("beside each other", { concurrency: true }, () => {
  test("a wait ends at the grant, and a hold at the release", async (t) => {
    const [cluster, seen] = observed(await node(t, () => sleep(500).then(() => held({ contended: true }))));
    const began = now();
    const guard = await cluster.lock("a/1", { metricsName: "a" });
    const granted = now();
    assert.deepEqual([seen.inProgress, seen.holds], [0, []]);
    await sleep(400);
    const released = now();
    await guard.release();
    const ended = now();
    const [[{ seconds: waited, ...wait }], [{ seconds: holds, ...hold }]] = [seen.waits, seen.holds];
    assert.deepEqual(wait, { name: "a", lock: "a/1", contended: true, outcome: "granted" });
    // A timer may be a little early; `now` has steps of 10 ms.
    assert.ok(waited >= 0.498 && waited * 1000 <= granted - began + 10, `${waited}`);
    assert.deepEqual(hold, { name: "a", lock: "a/1", outcome: "released" });
    assert.ok(holds * 1000 >= released - granted - 10, `${holds}`);
    assert.ok((waited + holds) * 1000 <= ended - began + 20, "the wait and the hold share no moment");
  });

  test("a position in the queue is contention, and a grant at once is none", async (t) => {
    const answers = [waiting, waiting, held(), held()];
    const [cluster, seen] = observed(await node(t, () => answers.shift()));
    for (let round = 0; round < 2; round++) await cluster.withLock("a", {}, () => assert.equal(seen.inProgress, 0));
    assert.deepEqual(seen.waits.map(({ name, contended }) => [name, contended]), [["default", true], ["default", false]]);
  });

  test("each acquire has one outcome and leaves the waiting", async (t) => {
    const all = [];
    const abort = new AbortController();
    for (const [answer, options, error] of [
      [[200, { state: "busy", holder: null }], { timeoutMs: 0 }, Busy],
      [waiting, { timeoutMs: 3000 }, TimedOut],
      [[404, {}], {}, LeaseOver],
      [[422, { title: "no" }], {}, Refused],
      [waiting, { onWaiting: () => { throw new RangeError("stop"); } }, RangeError],
      [waiting, { signal: abort.signal, onWaiting: () => abort.abort(new EvalError("enough")) }, EvalError],
    ]) {
      const [cluster, seen] = observed(await node(t, () => sleep(100, answer)));
      await assert.rejects(cluster.lock("a", options), error);
      assert.deepEqual([seen.inProgress, seen.waits.length, seen.holds], [0, 1, []]);
      all.push(...seen.waits);
    }
    assert.deepEqual(all.map(({ outcome, contended }) => [outcome, contended]), [
      ["busy", true], ["timed_out", true], ["lost", false], ["refused", false], ["failed", true], ["canceled", true]]);
    assert.ok(all[1].seconds >= 2.9 && all[1].seconds < 9, `${all[1].seconds}`);
  });

  test("the end of an attempt's lease is no part of its wait", async (t) => {
    // Nothing answers the end of the lease.
    const server = createServer((request, response) => {
      if (request.method === "DELETE") return;
      const [status, document] = request.url.endsWith("/acquire")
        ? [200, { state: "busy", holder: null }] : [201, { lease: "0x1", secret: "s", ttl_ms: 5000 }];
      response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(document));
    });
    await new Promise((done) => server.listen(0, "127.0.0.1", done));
    t.after(() => (server.closeAllConnections(), server.close()));
    const [cluster, seen] = observed({
      client: (options) => new Rowlock(`http://127.0.0.1:${server.address().port}`, { ...options, ttlMs: 5000 }),
    });
    const began = now();
    await assert.rejects(cluster.lock("a", { timeoutMs: 0 }), Busy);
    assert.ok(now() - began >= 900 && seen.waits[0].seconds < 0.9 * (now() - began) / 1000, `${seen.waits[0].seconds}`);
  });

  test("a lost hold ends at the deadline, also when the program notices it late", async (t) => {
    const nodes = await node(t, () => held(), SHORT);
    const [[kept, first], [byHand, second]] = [observed(nodes), observed(nodes)];
    const guards = [await kept.lock("a"), await byHand.lock("b", { keepAlive: false })];
    guards[0].silence();
    await sleep(SHORT + 1000);
    assert.deepEqual([first.holds.length, second.holds.length], [1, 0], "nothing has looked at the second");
    assert.ok(guards.every((guard) => guard.lost));
    for (const { outcome, seconds } of [first.holds[0], second.holds[0]]) {
      assert.equal(outcome, "lost");
      assert.ok(seconds * 1000 > RELIABLE - 3000 && seconds * 1000 <= RELIABLE + 20, `${seconds}`);
    }
    for (const guard of guards) await guard.release();
    assert.deepEqual([first.holds.length, second.holds.length], [1, 1]);
  });

  test("names beyond the bound count as one", async (t) => {
    const [cluster, seen] = observed(await node(t));
    const wanted = Array.from({ length: NAMES_MAX + 2 }, (_, at) => `job-${at}`);
    for (const metricsName of [...wanted, "job-0", undefined]) await cluster.withLock("a", { metricsName }, () => {});
    assert.deepEqual(seen.names.slice(NAMES_MAX - 1), [wanted[NAMES_MAX - 1], "other", "other", "job-0", "default"]);
  });

  test("a lock without a timer lives by the program's own keep-alive", async (t) => {
    const nodes = await node(t, () => held(), SHORT);
    const guard = await nodes.client({ ttlMs: SHORT }).lock("a", { keepAlive: false });
    const asked = nodes.counts.keepalive;
    let calls = 0;
    for (const began = now(); now() < began + 1.5 * SHORT; await sleep(SHORT / 3)) {
      assert.ok((await guard.keepAlive()) && !guard.lost);
      calls++;
    }
    assert.equal(nodes.counts.keepalive, asked + calls, "a timer asks as well");
    const last = now();
    assert.equal(await guard.keepAlive(), true);
    while (!guard.lost) await sleep(50);
    assert.ok(now() - last >= RELIABLE && guard.signal.reason instanceof LeaseOver);
    assert.equal(await guard.keepAlive(), false, "a lock that was lost comes back");
  });

  test("a wait without a timer keeps its lease by its own requests", async (t) => {
    const answers = Array.from({ length: 6 }, () => sleep.bind(null, SHORT / 3, waiting));
    const nodes = await node(t, () => (answers.shift() ?? held)(), SHORT);
    const guard = await nodes.client({ ttlMs: SHORT }).lock("a", { keepAlive: false });
    assert.ok(!guard.lost && nodes.counts.keepalive >= 6, `${nodes.counts.keepalive}`);
    await guard.release();
  });
});

test("an observer that throws takes no lock away, and a leader is measured", async (t) => {
  t.mock.method(console, "warn", () => {});
  const throws = () => { throw new Error("no"); };
  const cluster = (await node(t)).client({ observer: { waiting: throws, waited: throws, held: throws } });
  await cluster.withLock("a", {}, (guard) => assert.equal(guard.lost, false));
  assert.equal(console.warn.mock.callCount(), 3);
  const campaign = await node(t);
  const [election, seen] = observed(campaign);
  await assert.rejects(election.election("e").lead({ timeoutMs: 300 }, () => {}));
  assert.deepEqual(seen.waits.map(({ lock, outcome }) => [lock, outcome]), [["@elections/e", "timed_out"]]);
});

test("OpenTelemetry gets metrics with few attributes, and a span with the lock", () => {
  const seen = [];
  const instrument = (name, { unit }) => {
    const record = (value, attributes) => seen.push([name, unit, value, attributes]);
    return { record, add: record };
  };
  const spans = [];
  const startSpan = (...began) => ({ end: (at) => spans.push([...began, at]) });
  const meter = { createHistogram: instrument, createUpDownCounter: instrument };
  const observer = otelObserver({ meter, tracer: { startSpan } });
  observer.waiting("job", "job/1");
  observer.waited({ name: "job", lock: "job/1", contended: true, outcome: "granted", seconds: 2.5 });
  observer.held({ name: "job", lock: "job/1", outcome: "lost", seconds: 0.5 });
  const name = { "rowlock.lock.name": "job" };
  const outcome = { ...name, "rowlock.lock.contended": true, "rowlock.lock.outcome": "granted" };
  assert.deepEqual(seen, [
    ["rowlock.client.lock.waiting", "{acquire}", 1, name],
    ["rowlock.client.lock.waiting", "{acquire}", -1, name],
    ["rowlock.client.lock.wait", "s", 2.5, outcome],
    ["rowlock.client.lock.hold", "s", 0.5, { ...name, "rowlock.lock.outcome": "lost" }],
  ]);
  const [[span, { startTime, attributes }, end]] = spans;
  assert.deepEqual([span, attributes, end - startTime], ["rowlock.acquire", { ...outcome, "rowlock.lock.path": "job/1" }, 2500]);
  assert.ok(Math.abs(Date.now() - end) < 5000);
});
