/** Runs conformance.json, elections, watching and the README's examples: conformance.js URL[,URL..] */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { Busy, Fence, LeaseOver, Refused, Rowlock, Stale, TimedOut } from "rowlock";

const HERE = new URL(".", import.meta.url);
/** Milliseconds of a lease: short, but longer than the pauses of a busy machine. */
const TTL = 6000;
/** Milliseconds for a step that must come true. */
const PATIENCE = 60_000;
const VERSION = 5;
/** Where a gateway answers as the first level of the path says; without it, the scenarios that need it are left out. */
const GATEWAY = process.env.ROWLOCK_GATEWAY;
const THROWN = Symbol("thrown");

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Waits for `promise`, but not for ever. */
async function soon(promise, what) {
  let timer;
  const late = new Promise((_, fail) => (timer = setTimeout(() => fail(new Error(`not in time: ${what}`)), PATIENCE)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** The URLs of the client of an attempt. */
function clientsUrls(urls, { through, before }) {
  if (through) return [`${GATEWAY}/${through}`];
  return before ? [`${GATEWAY}/${before}`, ...urls] : urls;
}

function nameOf(prefix, { lock, path, units }) {
  if (units) return `${prefix}/${String.fromCharCode(...units)}`;
  return lock === undefined ? `/locks/${prefix}/${path}` : `${prefix}/${lock}`;
}

class Attempt {
  constructor(urls, prefix, step, before) {
    // What its observer has got.
    this.seen = { waiting: 0 };
    const observer = {
      waiting: () => this.seen.waiting++,
      waited: (wait) => (this.seen.waiting--, (this.seen.wait = wait)),
      held: (hold) => (this.seen.hold = hold),
    };
    const client = before ?? new Rowlock(clientsUrls(urls, step), { ttlMs: TTL, observer });
    this.client = client;
    this.outcome = undefined;
    this.began = performance.now();
    this.abort = new AbortController();
    const { timeout_ms: timeoutMs, mode, permits, limit, throws, outside_ms: outsideMs } = step;
    const signal = outsideMs === undefined ? this.abort.signal : AbortSignal.timeout(outsideMs);
    this.waits = new Promise((waits) => {
      const onWaiting = (position) => {
        waits(position);
        if (throws) throw THROWN;
      };
      const options = { timeoutMs, mode, permits, limit, onWaiting, signal };
      this.ended = this.run(client, nameOf(prefix, step), options);
    });
  }

  async run(client, name, options) {
    try {
      this.guard = await client.lock(name, options);
      this.outcome = "held";
    } catch (error) {
      this.error = error;
      if (error instanceof Busy) this.outcome = "busy";
      else if (error === THROWN) this.outcome = "thrown";
      else if (error instanceof TimedOut) this.outcome = "timeout";
      else if (error instanceof Refused && error.status === 422) this.outcome = "refused";
      else if (error instanceof TypeError || error instanceof URIError) this.outcome = "invalid";
      else if (error instanceof Refused) this.outcome = error.status === 400 ? "invalid" : `refused ${error.status}`;
      else this.outcome = error === options.signal.reason ? "aborted" : `${error.stack}`;
    }
    this.took = performance.now() - this.began;
    return this.outcome;
  }

  async finish({ says, within_ms: within }) {
    await soon(this.ended, "the end of an attempt");
    if (says !== undefined) assert.ok(`${this.error?.message}`.includes(says), `${this.error}`);
    if (within !== undefined) assert.ok(this.took < within, `${this.took} ms`);
    return this.outcome;
  }
}

const STEPS = {
  acquire: (one, step) => one.finish(step),
  start: () => undefined,
  finish: (one, step) => one.finish(step),
  waiting: (one) => soon(one.waits, "a place in the queue").then(() => undefined),
  pending: (one) => assert.equal(one.outcome, undefined),
  abort: (one) => one.abort.abort(),
  verify: (one) => one.guard.verify(),
  release: (one) => one.guard.release(),
  post: (one) => one.guard.releaseLater(),
  silence: (one) => one.guard.silence(),
  lost: async ({ guard: { signal }, guard }) => {
    await soon(new Promise((done) => signal.aborted ? done() : signal.addEventListener("abort", done)), "the loss");
    assert.ok(guard.lost && signal.reason instanceof LeaseOver);
  },
  fence: (one, step, { fences }) => {
    fences[step.resource] ??= new Fence();
    return fences[step.resource].check("token" in step ? BigInt(step.token) : one.guard.token);
  },
  write: async ({ guard }, _, { znode }) => {
    try {
      await guard.create(znode, "1").catch((error) => {
        if (!(error instanceof Refused) || error.status !== 409) throw error;
        return guard.set(znode, "2");
      });
      return "written";
    } catch (error) {
      if (error instanceof Stale) return "stale";
      throw error;
    }
  },
  ask: (_, { lock, reason, within_ms: withinMs }, { urls, prefix }) =>
    new Rowlock(urls).ask(`${prefix}/${lock}`, reason, { withinMs }),
  asked: async ({ guard }) => {
    const { asked } = guard;
    await soon(new Promise((done) => (asked.aborted ? done() : asked.addEventListener("abort", done))), "a question");
    assert.equal(asked.reason.token, guard.token);
    return asked.reason.reason;
  },
  unasked: ({ guard }) => assert.deepEqual([guard.question, guard.asked.aborted], [null, false]),
  pause: (_, step) => pause(step.ms ?? step.leases * TTL),
  observed: ({ seen: { waiting, wait, hold }, began }, { observed: { waited_ms: waited = 0, held_ms: held = 0, ...expected } }) => {
    const found = { waiting, wait: wait?.outcome, contended: wait?.contended, hold: hold?.outcome };
    for (const [field, value] of Object.entries(expected)) assert.equal(found[field], value, field);
    for (const [least, event] of [[waited, wait], [held, hold]]) {
      const ms = event ? event.seconds * 1000 : 0;
      assert.ok(least <= ms && ms <= performance.now() - began, JSON.stringify(event));
    }
  },
  tokens_rise: (_, step, { attempts }) => {
    const tokens = step.of.map((name) => attempts[name].guard.token);
    assert.ok(tokens.every((token, at) => at === 0 || tokens[at - 1] < token), `${tokens}`);
  },
};

async function run(urls, scenario, prefix) {
  const [attempts, fences, znode] = [{}, {}, `/${prefix.replace("/", "-")}`];
  for (const step of scenario.steps) {
    const what = `${scenario.name}: ${JSON.stringify(step)}`;
    assert.ok(step.do in STEPS, `unknown step ${step.do}: this runner is older than the scenarios`);
    if (step.do === "acquire" || step.do === "start") {
      attempts[step.as] = new Attempt(urls, prefix, step, attempts[step.client]?.client);
    }
    try {
      const found = await STEPS[step.do](attempts[step.as], step, { attempts, fences, znode, urls, prefix });
      if ("expect" in step) assert.equal(found, step.expect);
    } catch (error) {
      throw new Error(`${what}: ${error.message}; ${attempts[step.as]?.outcome}`);
    }
  }
}

async function leadersFollowEachOther(urls, name) {
  const client = new Rowlock(urls, { ttlMs: TTL });
  const election = client.election(`${name}/b`);
  assert.equal(await election.leader(), null);
  const first = await election.campaign({ value: "first", timeoutMs: PATIENCE });
  assert.equal(await first.verify(), true);
  const watching = new AbortController();
  const leaders = election.leaders({ signal: watching.signal });
  assert.deepEqual((await leaders.next()).value, { ...(await election.leader()), value: "first", token: first.token });
  let waits;
  const waiting = new Promise((done) => (waits = done));
  const second = election.lead({ value: "second", timeoutMs: PATIENCE, onWaiting: waits }, async (guard) => {
    for (;;) {
      const { value } = await soon(leaders.next(), "the second leader");
      if (value?.value === "second") return [value.token, guard.token];
    }
  });
  await soon(waiting, "a candidate");
  assert.equal(await first.release(), true);
  const [seen, token] = await second;
  assert.equal(seen, token);
  watching.abort();
  assert.equal((await leaders.next()).done, true);
}

async function aWatchGoesOnWhereItEnded(urls, name) {
  const client = new Rowlock(urls, { ttlMs: TTL });
  const lock = `/locks/${name}`;
  const seen = async (after, cycles) => {
    const ending = new AbortController();
    const events = client.watch({ lock, after, signal: ending.signal });
    const [found, work] = [[], cycles()];
    for await (const { id, event, data } of events) {
      // Nobody knows what was before the beginning of the history.
      if (event === "gap" && after === "0") continue;
      assert.equal(data.lock, lock, event);
      found.push([event, data.token]);
      after = id ?? after;
      if (event === "released") ending.abort();
    }
    await work;
    return [found, after];
  };
  // The stream is open before the lock is asked for: from 0 it tells everything that there was.
  const cycle = () => client.withLock(name, {}, (guard) => guard.token);
  const first = await cycle();
  const [found, after] = await seen("0", async () => {});
  assert.deepEqual(found.map(([event]) => event).slice(-3), ["requested", "granted", "released"]);
  assert.equal(BigInt(found.at(-1)[1]), first);
  const token = await cycle();
  const [more] = await seen(after, async () => {});
  // What was told before its id may be told again.
  assert.equal(BigInt(more.at(-1)[1]) >= first, true);
  assert.ok(token > first);
}

/** One behind the other, as a program of its own, which has to end by itself. */
function theReadmesExamplesRun(urls) {
  const folder = fileURLToPath(new URL("..", HERE));
  const readme = readFileSync(`${folder}/README.md`, "utf8");
  const examples = readme.split("```ts\n").slice(1).map((text) => text.split("```")[0]);
  assert.equal(examples.length, 2);
  // As a program that has installed the package.
  const place = mkdtempSync(join(tmpdir(), "rowlock-example-"));
  try {
    mkdirSync(`${place}/node_modules`);
    symlinkSync(folder, `${place}/node_modules/rowlock`);
    writeFileSync(`${place}/example.mjs`, examples.join("\n"));
    const env = { ...process.env, ROWLOCK_API: urls.join(",") };
    const said = spawnSync(process.execPath, [`${place}/example.mjs`], { env, encoding: "utf8", timeout: PATIENCE });
    assert.equal(said.status, 0, said.stdout + said.stderr);
    assert.match(said.stdout, /^token \d+\n[^]*^leads with \d+\nleader .*\n[^]*^released \/locks\/.* \d+\n$/m);
  } finally {
    rmSync(place, { recursive: true });
  }
}

const urls = process.argv[2].split(",");
const document = JSON.parse(readFileSync(new URL("../../conformance.json", HERE), "utf8"));
assert.equal(document.version, VERSION, "the scenarios are of another version");
const prefix = `conformance/${randomUUID().slice(0, 8)}`;
for (const scenario of document.scenarios) {
  if (!GATEWAY && scenario.steps.some(({ through, before }) => through ?? before)) {
    console.log("left out", scenario.name);
    continue;
  }
  await run(urls, scenario, prefix);
  console.log("ok", scenario.name);
}
await leadersFollowEachOther(urls, `election-${prefix.split("/")[1]}`);
console.log("ok leaders follow each other");
await aWatchGoesOnWhereItEnded(urls, `${prefix}/watched`);
console.log("ok a watch goes on where it ended");
theReadmesExamplesRun(urls);
console.log(`${document.scenarios.length} scenarios`);
