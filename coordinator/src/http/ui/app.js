// The frame of the page: addresses, the state of the node, the token. Pages are in files of their own.

import { ask, h, say, swap, tick, clock } from './dom.js';
import { Problem, get, poll, token } from './net.js';
import { cluster } from './cluster.js';
import { locks } from './locks.js';
import { lock } from './lock.js';
import { session, sessions } from './sessions.js';
import { simulator } from './sim.js';
import { tree } from './tree.js';
import { tryIt } from './try.js';

const PAGES = { '': ['Cluster', cluster], locks: ['Locks', locks], lock: ['Lock', lock],
  sessions: ['Sessions', sessions], session: ['Session', session], tree: ['Tree', tree], sim: ['Simulator', simulator], try: ['Try it', tryIt] };
const NAV = ['', 'locks', 'sessions', 'tree', 'sim', 'try'];
const PARENT = { lock: 'locks', session: 'sessions' };

const main = document.getElementById('main');
const banner = document.getElementById('banner');
const node = document.getElementById('node');
const tokenButton = document.getElementById('token');

const SAMPLES_MAX = 60;

// What all pages know. `status`: the last one of the node. `samples`: of all that came, the oldest first.
const app = { status: null, statusAt: 0, samples: [], listeners: new Set(), refused: null };
let page = null;

document.querySelector('nav').append(...NAV.map((id) => h('a', { href: `#/${id}`, 'data-page': id }, PAGES[id][0])));

function show() {
  const [id, query] = location.hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  if (location.hash === '#main') { main.focus(); return; }
  const [title, make] = PAGES[id] ?? PAGES[''];
  page?.stop.abort();
  app.listeners.clear();
  const stop = new AbortController();
  page = { id, stop };
  const el = h('div', { class: `page ${id || 'cluster'}` });
  swap(main, el);
  document.title = `${title} · Rowlock`;
  make(el, { app, query: new URLSearchParams(query ?? ''), signal: stop.signal, live: live(stop.signal) });
  for (const link of document.querySelectorAll('nav a')) {
    const here = link.dataset.page === (PARENT[id] ?? (PAGES[id] ? id : ''));
    if (here) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  scrollTo(0, 0);
}

// What a page looks at again and again; what is refused stands in its place.
const live = (signal) => (look, every, failed = () => {}) => poll(async (stop) => {
  try {
    await look(stop);
  } catch (error) {
    if (!signal.aborted && error instanceof Problem) failed(error);
    throw error;
  }
}, every, signal);

// A line above the page: what is wrong, and what helps.
function warn(kind, ...words) {
  const text = words.map((word) => word?.textContent ?? word).join('');
  if (banner.dataset.text === text && !banner.hidden) return;
  banner.dataset.text = text;
  banner.className = kind;
  banner.hidden = !words.length;
  swap(banner, h('p', {}, words));
}

function elsewhere() {
  const nodes = app.status?.nodes ?? [];
  const own = nodes.find((one) => one.node === app.status.node);
  const kind = own?.api === location.host ? 'api' : 'http';
  const others = nodes.filter((one) => one !== own && one[kind]);
  return others.map((one) => [' ', h('a', { href: `${location.protocol}//${one[kind]}/ui/${location.hash}` },
    `Node ${one.node}`)]);
}

function sample({ raft, state, connections, latency }) {
  const { applied_index: applied, committed_index: committed } = raft;
  app.samples.push({ at: performance.now(), applied, lag: committed - applied, sessions: state.sessions, connections, flush: latency.flush_p99_ms });
  if (app.samples.length > SAMPLES_MAX) app.samples.shift();
}

function tell(status) {
  app.status = status;
  app.statusAt = Date.now();
  app.refused = null;
  sample(status);
  const { role, leader } = status.raft;
  say(node, `Node ${status.node}, ${role}`);
  node.className = status.serving ? 'good' : 'bad';
  if (status.serving) warn('');
  else if (leader === null) {
    warn('bad', `Node ${status.node} knows no leader: locks cannot change hands through it. `,
      'What this page shows may be old. Other nodes:', ...elsewhere().flat());
  } else warn('bad', `Node ${status.node} serves no clients now; node ${leader} leads.`, ...elsewhere().flat());
  for (const listener of app.listeners) listener(status);
}

poll(async (signal) => {
  try {
    tell(await get('/v1/status', signal, 4000));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 0) {
      node.className = 'bad';
      say(node, 'No answer');
      const seen = app.statusAt ? ` What you see is from ${clock(app.statusAt)}.` : '';
      warn('bad', `This node does not answer; it is asked again and again.${seen}`,
        ...(app.status ? [' The same page elsewhere:', ...elsewhere().flat()] : []));
    } else {
      app.refused = error;
      node.className = '';
      say(node, token.get() ? 'Token refused' : 'Token needed');
      if (error.status === 401) warn('ask', token.get() ? `The token is refused: ${error.message}.`
        : 'This node tells only those who show a token.', ' ', h('button', { type: 'button', onclick: askToken }, 'Enter a token'));
      else if (error.status === 403) { say(node, 'Limited token'); warn('ask', 'This token sees only some locks.'); }
      else warn('ask', `The node says: ${error.message}.`);
      if (error.status === 401 && !token.get() && !app.asked) { app.asked = true; askToken(); }
    }
    throw error;
  }
}, 2000, new AbortController().signal);

async function askToken() {
  const field = h('input', { type: 'password', name: 'token', autocomplete: 'off', spellcheck: 'false', value: token.get() ?? '' });
  const form = await ask('Token', [
    h('p', {}, 'It is kept in this tab until you close it, and sent to this node only. ',
      'An empty field forgets it.'),
    h('label', {}, 'Token', field)], { button: 'Use it' });
  if (!form) return;
  token.set(field.value.trim());
  location.reload();
}

tokenButton.addEventListener('click', askToken);
say(tokenButton, token.get() ? 'Token: set' : 'Token');
addEventListener('hashchange', show);
setInterval(tick, 500);
show();

