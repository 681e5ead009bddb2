// Who leads, who follows how closely, and how much may fail.

import { drawFacts, fact, h, href, keyed, many, moment, ms, number, say, spark, swap } from './dom.js';

// A certificate that ends so soon, in seconds, is red.
const SOON = 14 * 86400;
// A node that has not answered the leader for so long is shown as down.
const SILENT_MS = 2000;

export function cluster(el, { app }) {
  const verdict = h('p', { class: 'verdict' });
  const nodes = h('ul', { class: 'cards', 'aria-label': 'Nodes' });
  const facts = h('dl', { class: 'facts' });
  const past = h('ol', { class: 'past' });
  swap(el, h('h1', {}, 'Cluster'), verdict, nodes, h('h2', {}, 'This node'), facts,
    h('h2', {}, 'Leaders since the start of this node'), past);
  say(verdict, 'Asking the node…');
  const show = (status) => {
    const { raft } = status;
    const majority = Math.floor(raft.voters.length / 2) + 1;
    const spare = raft.voters.length - majority;
    say(verdict, (raft.leader === null ? `No leader is known in term ${raft.term}. `
      : `Node ${raft.leader} leads in term ${raft.term}. `)
      + `${majority} of ${many(raft.voters.length, 'voter')} must be up: the cluster tolerates the loss of ${spare}.`);
    drawNodes(nodes, status);
    drawState(facts, status, app.samples);
    swap(past, status.elections.length ? status.elections.map(drawElection) : h('li', { class: 'muted' }, 'None yet.'));
  };
  app.listeners.add(show);
  if (app.status) show(app.status);
}

function drawNodes(list, status) {
  const { raft } = status;
  const ids = [...raft.voters, ...raft.learners].sort((a, b) => a - b);
  const stored = new Map(raft.replicated.map(({ node, index }) => [node, index]));
  const silent = new Map(raft.silent.map(({ node, for_ms: time }) => [node, time]));
  Object.assign(list, { status, stored, silent });
  keyed(list, ids, (id) => id, (id) => {
    const here = id === status.node;
    const place = status.nodes.find((one) => one.node === id);
    const address = place && (place.api && status.may ? place.api : place.http);
    const [role, lag, bar] = [h('p', { class: 'role' }), h('p'), h('i')];
    const el = h('li', {}, h('h2', {}, `Node ${id}`, here && h('span', { class: 'tag' }, 'this one')), role, lag,
      h('p', { class: 'meter', 'aria-hidden': 'true' }, bar),
      address && (here ? h('p', { class: 'muted' }, address) : h('p', {}, h('a', { href: `${location.protocol}//${address}/ui/` }, address))));
    const update = () => {
      const { raft: now } = list.status;
      const is = here ? now.role : id === now.leader ? 'leader' : now.learners.includes(id) ? 'learner' : 'follower';
      const behind = here ? now.committed_index - now.applied_index : list.stored.has(id) ? Math.max(0, now.last_log_index - list.stored.get(id)) : null;
      const silent = list.silent.get(id) ?? 0;
      el.className = silent > SILENT_MS ? 'card down' : `card ${is}`;
      say(role, is);
      say(lag, silent > SILENT_MS ? `no answer for ${ms(silent)}` : behind === null ? 'its lag: ask the leader' : behind === 0 ? 'up to date' : `${many(behind, 'entry', 'entries')} behind`);
      bar.className = behind === null ? 'unknown' : behind > 1000 ? 'far' : 'near';
      bar.style.width = behind === null ? '100%' : `${Math.max(4, 100 - Math.min(96, 20 * Math.log10(1 + behind)))}%`;
    };
    return { el, update };
  });
}

// How long it led: until the next one, which is the one before it in the list.
function drawElection({ term, leader, at_ms: at }, n, all) {
  const lasts = n === 0 ? 'until now' : `for ${ms(all[n - 1].at_ms - at)}`;
  return h('li', {}, h('time', {}, moment(at)), h('b', { class: leader === null ? 'lost' : 'granted' },
    leader === null ? 'no leader is known' : `node ${leader} leads`), ` in term ${term}, ${lasts}`);
}

function drawState(list, status, samples) {
  const { raft, state, latency, certificates } = status;
  const line = (of) => spark(samples.map(of));
  const rates = samples.map(({ applied, at }, n) => (n === 0 ? null
    : 1000 * (applied - samples[n - 1].applied) / Math.max(1, at - samples[n - 1].at)));
  const rate = rates.at(-1);
  drawFacts(list,
    fact('Log', rate === null || rate === undefined ? '–' : `${number(Math.round(rate))} /s`, `entry ${number(raft.applied_index)} applied; snapshot at ${number(raft.snapshot_index)}`, spark(rates)),
    fact('Flush, p99', ms(latency.flush_p99_ms), 'to disk, since its start', line(({ flush }) => flush)),
    fact('Commit, p99', ms(latency.commit_p99_ms), raft.role === 'leader' ? 'as the leader' : 'while it led'),
    fact('Sessions', h('a', { href: href('sessions', {}) }, number(state.sessions)), 'of the cluster', line(({ sessions }) => sessions)),
    fact('Connections', number(status.connections), 'at this node', line(({ connections }) => connections)),
    fact('Znodes', number(state.znodes), `${number(state.ephemerals)} ephemeral`),
    fact('Release', status.version), fact('Up for', ms(status.uptime_ms)),
    certificates.length ? certificates.map(({ listener, expires_in_s: left }) => fact(`Certificate, ${listener}`,
      h('span', { class: left < SOON ? 'lost' : '' }, left < 0 ? 'has expired' : ms(left * 1000)), left < 0 ? '' : 'until it expires'))
      : fact('Certificates', 'none', 'no listener of this node has TLS'));
}
