// Who leads, which nodes answer, how many may fail, and how fast locks change hands.

import { drawFacts, fact, h, href, keyed, many, moment, ms, number, say, spark, swap } from './dom.js';
import { healthOf } from './health.js';

// A certificate that ends within this many seconds is red.
const SOON = 14 * 86400;

export function cluster(el, { app }) {
  const verdict = h('p', { class: 'verdict', role: 'status' }, 'Loading…');
  const nodes = h('ul', { class: 'cards', 'aria-label': 'Nodes' });
  const [locks, facts, past] = [h('dl', { class: 'facts' }), h('dl', { class: 'facts' }), h('ol', { class: 'past' })];
  const replaced = h('p', { class: 'muted' });
  swap(el, h('h1', {}, 'Cluster'), verdict, nodes, h('h2', {}, 'Locks'), locks, h('h2', {}, 'This node'), facts,
    h('h2', {}, 'Leaders since this node started'), replaced, past);
  const show = (status) => {
    if (!status) { say(verdict, app.unknown()); return; }
    const health = healthOf(status);
    say(verdict, health.headline);
    drawNodes(nodes, status, health);
    drawLocks(locks, status, app.samples);
    drawState(facts, status, app.samples);
    const silent = status.silent_leaders;
    say(replaced, silent ? `This node replaced ${many(silent, 'leader')} that fell silent. If the number rises, the election timeouts are too short for these machines: run rowlock check perf.` : '');
    swap(past, status.elections.length ? status.elections.map(drawElection) : h('li', { class: 'muted' }, 'None yet.'));
  };
  app.listeners.add(show);
  if (app.status) show(app.down ? null : app.status);
}

function drawNodes(list, status, health) {
  const { raft } = status;
  const ids = [...raft.voters, ...raft.learners].sort((a, b) => a - b);
  Object.assign(list, { status, health, stored: new Map(raft.replicated?.map(({ node, index }) => [node, index])) });
  keyed(list, ids, (id) => id, (id) => {
    const here = id === status.node;
    const place = status.nodes.find((one) => one.node === id);
    const address = place && (place.api && status.may ? place.api : place.http);
    const [role, lag, bar] = [h('p', { class: 'role' }), h('p'), h('i')];
    const el = h('li', {}, h('h2', {}, `Node ${id}`, here && h('span', { class: 'tag' }, 'this one')), role, lag,
      h('p', { class: 'meter', 'aria-hidden': 'true' }, bar),
      address && (here ? h('p', { class: 'muted' }, address) : h('p', {}, h('a', { href: `${location.protocol}//${address}/ui/` }, address))));
    const update = () => {
      const { status: { raft: now }, health: { down, lost }, stored } = list;
      const silent = down?.get(id);
      const leads = id === now.leader && !lost;
      // Without the leader's word only this node and a leader with a quorum are known to be up.
      const known = here || leads || down;
      say(role, silent ? 'down' : !known ? 'unknown' : here ? `${now.role}${lost && now.role === 'leader' ? ' without a quorum' : ''}`
        : leads ? 'leader' : now.learners.includes(id) ? 'learner' : 'follower');
      el.className = `card ${silent ? 'down' : !known ? 'unknown' : leads ? 'leader' : ''}`;
      const behind = here && lost ? null : here ? now.committed_index - now.applied_index : stored.has(id) && !lost ? Math.max(...stored.values()) - stored.get(id) : null;
      say(lag, silent ? `no answer for ${ms(silent)}` : !known ? lost ? 'cannot be seen from here' : `ask node ${now.leader}`
        : here && lost ? 'cut off: newer writes are unknown' : behind === null ? 'answers' : behind === 0 ? 'up to date' : `${many(behind, 'entry', 'entries')} behind`);
      bar.className = silent || behind === null ? 'unknown' : behind > 1000 ? 'far' : 'near';
      bar.style.width = behind === null ? '100%' : `${Math.max(4, 100 - Math.min(96, 20 * Math.log10(1 + behind)))}%`;
    };
    return { el, update };
  });
}

// Each one lasts until the next, which stands above it.
function drawElection({ term, leader, at_ms: at }, n, all) {
  const lasts = n === 0 ? 'until now' : `for ${ms(all[n - 1].at_ms - at)}`;
  return h('li', {}, h('time', {}, moment(at)), h('b', { class: leader === null ? 'lost' : 'granted' },
    leader === null ? 'no leader with a quorum' : `node ${leader} leads`), leader === null ? `, ${lasts}` : ` in term ${term}, ${lasts}`);
}

const ratesOf = (samples, of) => samples.map((one, n) => (n === 0 ? null
  : 1000 * Math.max(0, of(one) - of(samples[n - 1])) / Math.max(1, one.at - samples[n - 1].at)));

function drawLocks(list, { locks }, samples) {
  const grants = ratesOf(samples, (one) => one.locks.grants);
  const [from, to] = [samples[0], samples.at(-1)];
  // What the page has seen by itself; before that, all since the start of the node.
  const is = to.at - from.at > 10000;
  const wait = (q) => ms(quantileOf(locks, is ? from.locks : null, q));
  drawFacts(list,
    fact('Grants', grants.length < 2 ? '–' : `${number(Math.round(10 * grants.at(-1)) / 10)} /s`, `${number(locks.grants)} since this node started`, spark(grants)),
    fact('Wait', wait(0.5), `p99 ${wait(0.99)}, ${is ? `the last ${ms(to.at - from.at)}` : 'since this node started'}`),
    fact('Held', h('a', { href: '#/locks' }, number(locks.held)), 'places that hold a lock', spark(samples.map((one) => one.locks.held))),
    fact('Waiting', h('a', { href: href('locks', { contended: 1 }) }, number(locks.waiting)), 'places in a queue', spark(samples.map((one) => one.locks.waiting))),
    fact('Acknowledged', locks.acknowledge, locks.acknowledge === 'flushed' ? 'when a quorum’s disks have a grant' : `${many(locks.unflushed, 'command')} of this node unflushed, the oldest for ${ms(locks.unflushed_ms)}`));
}

// Linear inside its bucket, of the waits that ended after `before`; null without any.
function quantileOf({ wait_bounds_ms: bounds, waits }, before, q) {
  const seen = waits.map((count, at) => count - (before ? before.waits[at] : 0));
  if (!seen.at(-1)) return null;
  const rank = Math.max(1, q * seen.at(-1));
  const at = seen.findIndex((count) => count >= rank);
  const [low, below] = at === 0 ? [0, 0] : [bounds[at - 1], seen[at - 1]];
  return at === bounds.length ? low : low + (bounds[at] - low) * (rank - below) / (seen[at] - below);
}

function drawState(list, status, samples) {
  const { raft, state, latency, certificates } = status;
  const line = (of) => spark(samples.map(of));
  const rates = ratesOf(samples, (one) => one.applied);
  const first = certificates.toSorted((a, b) => a.expires_in_s - b.expires_in_s)[0];
  drawFacts(list,
    fact('Log', rates.length < 2 ? '–' : `${number(Math.round(rates.at(-1)))} /s`, `entry ${number(raft.applied_index)} applied; snapshot at ${number(raft.snapshot_index)}`, spark(rates)),
    fact('Flush, p99', ms(latency.flush_p99_ms), 'to disk, since its start', line(({ flush }) => flush)),
    fact('Commit, p99', ms(latency.commit_p99_ms), raft.role === 'leader' ? 'as the leader' : 'while it led'),
    fact('Sessions', h('a', { href: href('sessions', {}) }, number(state.sessions)), 'of the cluster', line(({ sessions }) => sessions)),
    fact('Connections', number(status.connections), 'at this node', line(({ connections }) => connections)),
    fact('Znodes', number(state.znodes), `${number(state.ephemerals)} ephemeral`),
    fact('Release', status.version, `up for ${ms(status.uptime_ms)}`),
    first ? fact('Certificates', h('span', { class: first.expires_in_s < SOON ? 'lost' : '' }, first.expires_in_s < 0 ? 'expired' : ms(first.expires_in_s * 1000)),
      `${first.expires_in_s < 0 ? '' : 'until the first expires: '}${certificates.filter((one) => one.expires_in_s < first.expires_in_s + 3600).map((one) => one.listener).join(', ')}`)
      : fact('Certificates', 'none', 'no listener of this node has TLS'));
}
