// Who leads, who follows how closely, and how much may fail.

import { clock, fact, h, href, many, ms, number, say, swap } from './dom.js';

export function cluster(el, { app }) {
  const verdict = h('p', { class: 'verdict' });
  const nodes = h('ul', { class: 'cards', 'aria-label': 'Nodes' });
  const facts = h('dl', { class: 'facts' });
  const past = h('ol', { class: 'past' });
  swap(el, h('h1', {}, 'Cluster'), verdict, nodes, h('h2', {}, 'This node'), facts,
    h('h2', {}, 'Elections seen by this page'), past);
  say(verdict, 'Asking the node…');
  const show = (status) => {
    const { raft } = status;
    const majority = Math.floor(raft.voters.length / 2) + 1;
    const spare = raft.voters.length - majority;
    say(verdict, (raft.leader === null ? `No leader is known in term ${raft.term}. `
      : `Node ${raft.leader} leads in term ${raft.term}. `)
      + `${majority} of ${many(raft.voters.length, 'voter')} must be up: the cluster tolerates the loss of ${spare}.`);
    drawNodes(nodes, status);
    drawFacts(facts, status);
    swap(past, app.elections.map(({ term, leader, at }) =>
      h('li', {}, h('time', {}, clock(at)), ` term ${term}: `, leader === null ? 'no leader' : `node ${leader} leads`)));
  };
  app.listeners.add(show);
  if (app.status) show(app.status);
}

function drawNodes(list, status) {
  const { raft } = status;
  const ids = [...raft.voters, ...raft.learners].sort((a, b) => a - b);
  const stored = new Map(raft.replicated.map(({ node, index }) => [node, index]));
  const scheme = location.protocol;
  swap(list, ids.map((id) => {
    const here = id === status.node;
    const role = here ? raft.role : id === raft.leader ? 'leader' : raft.learners.includes(id) ? 'learner' : 'follower';
    const lag = here ? raft.committed_index - raft.applied_index
      : stored.has(id) ? Math.max(0, raft.last_log_index - stored.get(id)) : null;
    const place = status.nodes.find((one) => one.node === id);
    const address = place && (place.api && status.may ? place.api : place.http);
    return h('li', { class: `card ${role}` },
      h('h2', {}, `Node ${id}`, here && h('span', { class: 'tag' }, 'this one')),
      h('p', { class: 'role' }, role),
      h('p', {}, lag !== null ? [h('b', {}, lag === 0 ? 'up to date' : many(lag, 'entry', 'entries')), lag ? ' behind' : '']
        : 'its lag: ask the leader'),
      h('p', { class: 'meter', 'aria-hidden': 'true' }, bar(lag)),
      address && (here ? h('p', { class: 'muted' }, address)
        : h('p', {}, h('a', { href: `${scheme}//${address}/ui/` }, address))));
  }));
}

function bar(lag) {
  const el = h('i', { class: lag === null ? 'unknown' : lag > 1000 ? 'far' : 'near' });
  el.style.width = lag === null ? '100%' : `${Math.max(4, 100 - Math.min(96, 20 * Math.log10(1 + lag)))}%`;
  return el;
}

function drawFacts(list, status) {
  const { raft, state, latency } = status;
  swap(list,
    fact('Flush, p99', ms(latency.flush_p99_ms), 'to disk, since its start'),
    fact('Commit, p99', ms(latency.commit_p99_ms), raft.role === 'leader' ? 'as the leader' : 'while it led'),
    fact('Release', status.version),
    fact('Up for', ms(status.uptime_ms)),
    fact('Sessions', h('a', { href: href('sessions', {}) }, number(state.sessions))),
    fact('Connections', number(status.connections), 'at this node'),
    fact('Znodes', number(state.znodes), `${number(state.ephemerals)} ephemeral`),
    fact('Log', number(raft.applied_index), `applied; snapshot at ${number(raft.snapshot_index)}`));
}
