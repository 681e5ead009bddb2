// One lock: its holders and its line, what has happened, and taking it away by force.

import { ask, clock, drawFacts, fact, h, href, keyed, many, ms, name, nameOf, quantile, say, since, swap, visible } from './dom.js';
import { makeLanes } from './lanes.js';
import { call, events, get } from './net.js';
import { waitsOf } from './waits.js';

const PAST = 200;

export function lock(el, { app, query, signal, live }) {
  const path = query.get('path') ?? '';
  const note = h('p', { class: 'verdict', role: 'status' }, 'Asking the node…');
  const holders = h('ol', { class: 'line holders', 'aria-label': 'Holders' });
  const waiters = h('ol', { class: 'line waiters', 'aria-label': 'Waiters, in order' });
  const facts = h('dl', { class: 'facts' });
  const lanes = makeLanes();
  const chain = h('div', {});
  const log = h('ol', { class: 'past' });
  const pulse = h('span', { class: 'tag' }, 'polling');
  swap(el, h('p', { class: 'crumb' }, h('a', { href: '#/locks' }, 'Locks')),
    h('h1', {}, h('bdi', {}, name(path)), ' ', pulse), note, holders, waiters,
    chain, h('h2', {}, 'What happened'), facts, lanes.el, log);
  document.title = `${name(path)} · Rowlock`;

  const asked = new URLSearchParams({ lock: path }).toString().replaceAll('+', '%20');
  const force = (place) => forceRelease(path, place, note).then(() => hurry());
  const hurryHistory = live(async (stop) => {
    const document_ = await get(`/v1/history?${asked}&limit=${PAST}`, stop);
    drawPast(document_.entries, { facts, lanes, log });
  }, 5000, (problem) => { if (problem.status) swap(log, h('li', { class: 'muted' }, `No history: ${problem.message}.`)); });
  live(async (stop) => waitsOf(path, chain, stop), 4000);
  const hurry = live(async (stop) => {
    const queue = await get(`/v1/queue?${asked}&limit=1000`, stop);
    const may = app.status?.may?.operate && path.startsWith('/locks/');
    say(note, sentence(queue));
    const longest = Math.max(1, ...queue.waiters.map((place) => place.waited_ms ?? 0));
    const key = (place) => place.path;
    keyed(holders, queue.holders, key, (place) => makePlace(place, may && (() => force(place))));
    keyed(waiters, queue.waiters, key, (place) => makePlace(place, null, longest));
    waiters.hidden = !queue.waiters.length;
  }, 1000, (problem) => {
    if (!problem.status) return;
    say(note, problem.status === 404 ? 'Nobody holds this lock, and nobody waits.' : `The node says: ${problem.message}.`);
    if (problem.status === 404) for (const list of [holders, waiters]) keyed(list, [], () => 0, () => null);
  });
  // A change is shown when it is told. Without a stream the node is asked every second.
  let due = 0;
  events(`/v1/watch?${asked}`, () => {
    clearTimeout(due);
    due = setTimeout(() => { hurry(); hurryHistory(); }, 60);
  }, (open) => { say(pulse, open ? 'live' : 'polling'); pulse.className = open ? 'tag held' : 'tag'; }, signal);
}

function sentence({ holder_count: held, waiter_count: wait, limit, delayed_until_ms: delayed, time_ms: now, more }) {
  const of = limit ? ` of ${limit} permits` : '';
  const first = delayed ? `Nobody gets it for another ${ms(delayed - now)}: its holder expired. `
    : held === 0 ? 'Nobody holds it. ' : limit ? `${many(held, 'holder')}${of}. ` : held === 1 ? 'One holds it. ' : `${held} hold it together. `;
  return first + (wait === 0 ? 'Nobody waits.' : `${many(wait, 'waits', 'wait')} in line.`) + (more ? ' Only the first are shown.' : '');
}

function makePlace(first, force, longest) {
  const label = h('bdi', { class: 'who' });
  const time = h('span', { class: 'time' });
  const bar = h('i', {});
  const details = h('p', { class: 'details' });
  const head = h('p', { class: 'head' }, label, time);
  const el = h('li', {}, h('span', { class: 'seat', 'aria-hidden': 'true' }), h('div', { class: 'place' }, head,
    longest && h('p', { class: 'meter', 'aria-hidden': 'true' }, bar), details,
    force && h('button', { type: 'button', class: 'danger quiet', onclick: force }, 'Take it away…')));
  const update = (place) => {
    say(el.firstElementChild, String(place.position));
    const hidden = place.session === null;
    say(label, hidden ? 'not shown to you' : visible(place.label || place.address || 'no label'));
    const holds = 'held_ms' in place;
    const at = holds ? place.held_ms : place.waited_ms;
    swap(time, hidden ? '' : [holds ? 'holds for ' : 'waits ', since(at)]);
    if (longest) bar.style.width = `${Math.max(2, 100 * Math.min(1, (place.waited_ms ?? 0) / longest))}%`;
    const key = JSON.stringify([place.mode, place.token, place.session]);
    if (details.dataset.key === key) return;
    details.dataset.key = key;
    swap(details, hidden ? h('bdi', {}, visible(place.path)) : [
      h('span', { class: 'tag' }, place.mode === 'permits' ? many(place.permits, 'permit') : place.mode),
      part('token', place.token), part('from', visible(place.address ?? 'unknown')),
      part('since', clock(place.since_ms)),
      h('span', {}, 'session ', h('a', { href: href('session', { id: place.session }) }, place.session)),
      place.revoke_at_ms && part('taken back at', clock(place.revoke_at_ms))]);
  };
  return { el, update };
}

const part = (label, value) => h('span', {}, `${label} `, h('b', {}, String(value)));

async function forceRelease(path, place, note) {
  const short = nameOf(path);
  const field = h('input', { name: 'confirm', autocomplete: 'off', spellcheck: 'false' });
  const form = await ask('Take the lock away', [
    h('p', {}, 'The next in line gets it at once. ', h('b', {}, visible(place.label || place.address || place.session)),
      ' is told only if it asks or watches, and may go on working: what it writes to must look at tokens. ',
      'This stands in the audit log.'),
    h('label', {}, 'Type the lock’s name: ', h('bdi', { class: 'code' }, visible(short)), field)],
  { button: 'Take it away', danger: true, check: () => field.value === short });
  if (!form) return;
  try {
    const { status, document: answer } = await call('DELETE', `/v1/locks/${encodeURIComponent(path)}/holders/${place.token}`);
    say(note, status !== 200 ? `The node says: ${answer?.detail ?? status}.` : answer.released ? 'It was taken away.' : 'This token did not hold it any more.');
  } catch {
    say(note, 'There was no answer: look who holds it.');
  }
}

function drawPast(entries, { facts, lanes, log }) {
  const waits = entries.filter((one) => one.event === 'granted').map((one) => one.waited_ms);
  const holds = entries.filter((one) => typeof one.held_ms === 'number').map((one) => one.held_ms);
  const lost = entries.filter((one) => one.event === 'lost').length;
  drawFacts(facts, fact('Wait', ms(quantile(waits, 0.5)), `p99 ${ms(quantile(waits, 0.99))}`),
    fact('Hold', ms(quantile(holds, 0.5)), `p99 ${ms(quantile(holds, 0.99))}`),
    fact('Grants', String(waits.length), `in the last ${entries.length} records`),
    fact('Lost', String(lost), 'expired, forced or deleted'));
  lanes.draw(entries);
  swap(log, entries.length ? entries.slice(-40).reverse().map((one) => h('li', {}, h('time', {}, clock(one.time_ms)), ' ',
    h('b', { class: one.event }, one.event), ' ', one.event === 'gap' ? visible(one.reason)
      : [h('bdi', {}, visible(one.label || one.address || one.session)), `, token ${one.token}`, ending(one)])) : h('li', { class: 'muted' }, 'Nothing yet.'));
}

const ending = (one) => (one.event === 'granted' ? `, after ${ms(one.waited_ms)}`
  : one.held_ms !== undefined && one.held_ms !== null ? `, held for ${ms(one.held_ms)} (${visible(one.reason)})` : '');
