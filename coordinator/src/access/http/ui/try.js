// The requests of docs/rest.md by hand: a lease, a lock, its end. The secret stays in this page's memory.

import { h, ms, say, swap } from './dom.js';
import { call } from './net.js';

let lease = null;
let held = null;

export function tryIt(el, { app }) {
  const input = (id, label, value, more) => {
    const field = h('input', { id, value, autocomplete: 'off', spellcheck: 'false', ...more });
    return { field, el: h('label', { for: id }, label, field) };
  };
  const lock = input('t-lock', 'Lock', 'playground');
  const label = input('t-label', 'Label', 'a person at the console');
  const wait = input('t-wait', 'Wait, ms', '5000', { type: 'number', min: 0, max: 60000 });
  const ttl = input('t-ttl', 'Lease, ms', '20000', { type: 'number', min: 1000, max: 600000 });
  const mode = h('select', { id: 't-mode' }, h('option', {}, 'exclusive'), h('option', {}, 'shared'));
  const state = h('p', { class: 'verdict', role: 'status' }, 'No lease yet.');
  const log = h('ol', { class: 'exchanges', 'aria-label': 'Requests and answers, newest first' });
  const path = (verb) => `/v1/locks/${lock.field.value.split('/').map(encodeURIComponent).join('/')}/${verb}`;
  const buttons = [];
  const draw = () => {
    for (const { el: button, needs } of buttons) button.disabled = (needs === 'lease' && !lease) || (needs === 'held' && !held);
    say(state, !lease ? 'No lease yet.' : `Lease ${lease.lease}${held ? `, holding with token ${held}.` : '.'} It ends ${ms(lease.ttl_ms)} after the last request for it.`);
  };
  const send = async (method, url, body) => {
    const hidden = body && JSON.stringify(body, (key, value) => (key === 'secret' ? 'SECRET' : value));
    const answer = h('pre', { tabindex: 0 }, '…');
    log.prepend(h('li', {}, h('pre', { tabindex: 0 }, `curl${method === 'POST' ? '' : ` -X ${method}`}${hidden ? ` -d '${hidden.replaceAll("'", "'\\''")}'` : ''} ${location.origin}${url}`), answer));
    while (log.children.length > 20) log.lastElementChild.remove();
    try {
      const got = await call(method, url, body);
      const text = JSON.stringify(got.document, (key, value) => (key === 'secret' ? 'SECRET' : value), 1);
      say(answer, `${got.status} ${got.document === null ? '' : text}`);
      return got;
    } catch (problem) {
      say(answer, problem.message);
      return { status: 0, document: null };
    }
  };
  const button = (text, needs, work, kind) => {
    const one = h('button', { type: 'button', class: kind, onclick: async () => { one.disabled = true; await work(); draw(); } }, text);
    buttons.push({ el: one, needs });
    return one;
  };
  const row = h('div', { class: 'row' },
    button('New lease', '', async () => {
      const { status, document: got } = await send('POST', '/v1/leases', { ttl_ms: Number(ttl.field.value) });
      if (status === 201) [lease, held] = [got, null];
    }),
    button('Acquire', 'lease', async () => {
      const request = { secret: lease.secret, request_id: crypto.getRandomValues(new Uint32Array(2)).join('-'), mode: mode.value, wait_ms: Number(wait.field.value), label: label.field.value };
      const { document: got } = await send('POST', path('acquire'), request);
      if (got?.state === 'held') held = got.token;
    }, 'primary'),
    button('Keep alive', 'lease', async () => {
      const { status } = await send('POST', `/v1/leases/${lease.lease}/keepalive`, { secret: lease.secret });
      if (status === 404) [lease, held] = [null, null];
    }),
    button('Verify', 'held', () => send('POST', path('verify'), { token: held })),
    button('Release', 'held', async () => {
      const { status } = await send('POST', path('release'), { secret: lease.secret, token: held });
      if (status === 200) held = null;
    }),
    button('End the lease', 'lease', async () => {
      const { status } = await send('DELETE', `/v1/leases/${lease.lease}`, { secret: lease.secret });
      if ([204, 404].includes(status)) [lease, held] = [null, null];
    }));
  const show = (status) => {
    if (!status || status.may) return;
    const other = status.nodes.find((one) => one.node === status.node)?.api;
    swap(el, h('h1', {}, 'Try it'), h('p', { class: 'verdict' }, 'This listener is read-only. ', other
      ? h('a', { href: `${location.protocol}//${other}/ui/#/try` }, 'Use the api listener to take locks.') : 'The node has no listener for locks: set `api` in cluster.toml.'));
  };
  swap(el, h('h1', {}, 'Try it'), h('p', {}, 'These are the requests that any program can send. They take a real lock.'),
    h('div', { class: 'form' }, lock.el, label.el, ttl.el, wait.el, h('label', { for: 't-mode' }, 'Mode', mode)), row, state, log);
  app.listeners.add(show);
  draw();
  if (app.status) show(app.status);
}
