// The frame of the page: addresses, the state of the node, the token. Pages are in files of their own.

import { ask, h, say, swap, tick, clock } from './dom.js';
import { healthOf } from './health.js';
import { Problem, get, poll, token } from './net.js';
import { cluster } from './cluster.js';
import { contention } from './contention.js';
import { locks } from './locks.js';
import { lock } from './lock.js';
import { session, sessions } from './sessions.js';
import { simulator } from './sim.js';
import { tree } from './tree.js';
import { tryIt } from './try.js';

const PAGES = { '': ['Cluster', cluster], locks: ['Locks', locks], lock: ['Lock', lock],
  contention: ['Waits', contention], sessions: ['Sessions', sessions], session: ['Session', session], tree: ['Tree', tree], sim: ['Simulator', simulator], try: ['Try it', tryIt] };
const NAV = ['', 'locks', 'contention', 'sessions', 'tree', 'sim', 'try'];
const THEMES = ['light dark', 'dark', 'light'];
const PARENT = { lock: 'locks', session: 'sessions' };

const main = document.getElementById('main');
const banner = document.getElementById('banner');
const node = document.getElementById('node');
const tokenButton = document.getElementById('token');
const themeButton = document.getElementById('theme');

const SAMPLES_MAX = 60;

// What all pages know. `status`: the last one of the node; `down`: the node has not answered since. `samples`: of
// all that came, the oldest first. Listeners get each status, and null when the node stops answering.
const app = { status: null, statusAt: 0, down: false, samples: [], listeners: new Set(), refused: null };
app.unknown = () => (app.statusAt ? `Unknown: this node has not answered since ${clock(app.statusAt)}.` : 'Unknown: this node does not answer.');
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

function sample({ raft, state, connections, latency, locks: { held, waiting, grants, waits } }) {
  app.samples.push({ at: performance.now(), applied: raft.applied_index, sessions: state.sessions, connections, flush: latency.flush_p99_ms,
    locks: { held, waiting, grants, waits } });
  if (app.samples.length > SAMPLES_MAX) app.samples.shift();
}

const hear = (status) => { for (const listener of app.listeners) listener(status); };

function tell(status) {
  Object.assign(app, { status, statusAt: Date.now(), down: false, refused: null });
  main.classList.remove('stale');
  sample(status);
  const { bad, banner: text } = healthOf(status);
  say(node, `Node ${status.node}, ${status.raft.role}`);
  node.className = bad ? 'bad' : 'good';
  if (bad) warn('bad', text, ' Other nodes:', ...elsewhere().flat()); else warn('');
  hear(status);
  // A node that does not lead has the leader's word at the second question.
  if (app.samples.length === 1 && status.raft.silent === null) setTimeout(hurry, 700);
}

const hurry = poll(async (signal) => {
  try {
    tell(await get('/v1/status', signal, 2500));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 0) {
      app.down = true;
      node.className = 'bad';
      say(node, 'No answer');
      const seen = app.statusAt ? ` What you see is from ${clock(app.statusAt)}.` : '';
      warn('bad', `This node does not answer; the page keeps asking.${seen}`,
        ...(app.status ? [' The same page elsewhere:', ...elsewhere().flat()] : []));
      main.classList.add('stale');
      hear(null);
    } else {
      Object.assign(app, { refused: error, down: false });
      main.classList.remove('stale');
      node.className = '';
      say(node, token.get() ? 'Token refused' : 'Token needed');
      if (error.status === 401) warn('ask', token.get() ? `The token is refused: ${error.message}.`
        : 'This node answers only with a token.', ' ', h('button', { type: 'button', onclick: askToken }, 'Enter a token'));
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
    h('p', {}, 'It stays in this tab until you close it, and goes to this node only. An empty field forgets it. ',
      'Make one with ', h('span', { class: 'code' }, 'rowlock token new NAME --role operator'), '.'),
    h('label', {}, 'Token', field)], { button: 'Use it' });
  if (!form) return;
  token.set(field.value.trim());
  location.reload();
}

tokenButton.addEventListener('click', askToken);
say(tokenButton, token.get() ? 'Token: set' : 'Token');
// The look: as the system has it, dark, light.
function look(name) {
  document.documentElement.style.colorScheme = name;
  const text = { 'light dark': 'Auto', dark: 'Dark', light: 'Light' }[name];
  say(themeButton, text);
  themeButton.setAttribute('aria-label', `Theme: ${text.toLowerCase()}`);
}
let theme = THEMES.includes(localStorage.getItem('rowlock-theme')) ? localStorage.getItem('rowlock-theme') : THEMES[0];
look(theme);
themeButton.addEventListener('click', () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem('rowlock-theme', theme);
  look(theme);
});

// The key / goes to the search, from any page.
addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || event.target.matches('input, select, textarea') || document.querySelector('dialog[open]')) return;
  event.preventDefault();
  const field = document.getElementById('search');
  app.searches = !field;
  if (field) field.focus(); else location.hash = '#/locks';
});

addEventListener('hashchange', show);
setInterval(() => { if (!app.down) tick(); }, 500);
show();

