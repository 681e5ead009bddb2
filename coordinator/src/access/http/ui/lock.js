// One lock: its holders and waiters, its history, asking for it, and releasing it by force.

import { ask, clock, drawFacts, fact, h, href, isNews, keyed, many, ms, name, nameOf, quantile, say, since, swap, visible } from './dom.js';
import { healthOf } from './health.js';
import { makeLanes } from './lanes.js';
import { call, events, get } from './net.js';
import { waitsOf } from './waits.js';

const PAST = 200;

export function lock(el, { app, query, signal, live }) {
  const path = query.get('path') ?? '';
  const note = h('p', { class: 'verdict', role: 'status' }, 'Loading…');
  const holders = h('ol', { class: 'line holders', 'aria-label': 'Holders' });
  const waiters = h('ol', { class: 'line waiters', 'aria-label': 'Waiters, in order', tabindex: 0 });
  const facts = h('dl', { class: 'facts' });
  const lanes = makeLanes();
  const chain = h('div', {});
  const log = h('ol', { class: 'past', tabindex: 0, 'aria-label': 'History, newest first' });
  const pulse = h('span', { class: 'tag' });
  swap(el, h('p', { class: 'crumb' }, h('a', { href: '#/locks' }, 'Locks'), ' · ', h('a', { href: href('contention', { lock: path }) }, 'Waits of this lock')),
    h('h1', {}, h('bdi', {}, name(path)), ' ', pulse), note,
    h('div', { class: 'sides' }, h('section', {}, holders, waiters), h('section', {}, h('h2', {}, 'History'), facts, log)),
    lanes.el, chain);
  document.title = `${name(path)} · Rowlock`;

  // A page is live while its stream is open and its node answers and has a quorum.
  let streams = false;
  const beat = () => {
    const state = app.down || (app.status && healthOf(app.status).lost) ? 'out of date' : streams ? 'live' : 'polling';
    say(pulse, state);
    pulse.className = state === 'live' ? 'tag held' : 'tag';
  };
  app.listeners.add(beat);
  beat();

  const asked = new URLSearchParams({ lock: path }).toString().replaceAll('+', '%20');
  const act = { release: (place) => forceRelease(path, place, note).then(() => hurry()), ask: () => askHolder(path, app.status?.may, note).then(() => hurry()) };
  const hurryHistory = live(async (stop) => {
    const document_ = await get(`/v1/history?${asked}&limit=${PAST}`, stop);
    drawPast(document_.entries, { facts, lanes, log });
  }, 5000, (problem) => { if (problem.status) swap(log, h('li', { class: 'muted' }, `No history: ${problem.message}.`)); });
  live(async (stop) => waitsOf(path, chain, stop), 4000);
  const hurry = live(async (stop) => {
    const queue = await get(`/v1/queue?${asked}&limit=1000`, stop);
    const may = (path.startsWith('/locks/') && app.status?.may) || {};
    say(note, sentence(queue));
    // A row that was made before the status came has no buttons.
    keyed(holders, queue.holders, (place) => `${may.lock} ${may.operate} ${place.path}`, () => makeHolder(may, act));
    keyed(waiters, queue.waiters, (place) => place.path, () => makeWaiter());
    waiters.hidden = !queue.waiters.length;
  }, 1000, (problem) => {
    if (!problem.status) return;
    say(note, problem.status === 404 ? 'No client holds this lock, and none waits.' : `The node says: ${problem.message}.`);
    if (problem.status === 404) for (const list of [holders, waiters]) keyed(list, [], () => 0, () => null);
    if (problem.status === 404) waiters.hidden = true;
  });
  // A change is shown when it is told. Without a stream the node is asked every second.
  let due = 0;
  events(`/v1/watch?${asked}`, () => {
    clearTimeout(due);
    due = setTimeout(() => { hurry(); hurryHistory(); }, 60);
  }, (open) => { streams = open; beat(); }, signal);
}

function sentence({ holder_count: held, waiter_count: wait, limit, delayed_until_ms: delayed, time_ms: now, more }) {
  const first = delayed ? `Its holder expired: the lock is not granted for another ${ms(delayed - now)}. `
    : held === 0 ? 'Free. ' : `${many(held, 'holder')}${limit ? ` of ${many(limit, 'permit')}` : ''}. `;
  return first + (wait === 0 ? 'No waiters.' : `${many(wait, 'waiter')} in the queue.`) + (more ? ' Only the first are shown.' : '');
}

// A client in the queue: what it calls itself or where it is from, then its session.
function makePlace(parts) {
  const [seat, who, time, details] = [h('span', { class: 'seat', 'aria-hidden': 'true' }), h('bdi', { class: 'who' }), h('span', { class: 'time' }), h('span', { class: 'details' })];
  const el = h('li', {}, seat, who, details, time, parts);
  const update = (place, extra) => {
    say(seat, String(place.position));
    const hidden = place.session === null;
    say(who, hidden ? 'not shown to you' : visible(place.label || place.address || 'no label'));
    who.title = [place.label, place.address, place.token && `token ${place.token}`].filter(Boolean).map(visible).join(', ');
    const at = place.held_ms ?? place.waited_ms;
    const key = [place.mode, place.permits, place.token, place.session, place.since_ms, place.revoke_at_ms, place.asked?.reason, place.asked?.by];
    if (!isNews(details, key)) return;
    swap(time, hidden ? '' : [extra && h('span', { class: 'verb' }, 'holds for '), since(at)]);
    swap(details, hidden ? h('bdi', {}, visible(place.path)) : [
      place.mode !== 'exclusive' && h('span', { class: 'tag' }, place.mode === 'permits' ? many(place.permits, 'permit') : place.mode), extra && extra(place),
      h('a', { class: 'code', href: href('session', { id: place.session }), title: 'session' }, place.session)]);
  };
  return { el, update };
}

const makeWaiter = () => makePlace(null);

function makeHolder(may, act) {
  let now = null;
  const row = makePlace((may.lock || may.operate) && h('span', { class: 'acts' },
    may.lock && h('button', { type: 'button', class: 'quiet ask', onclick: () => act.ask() }, 'Ask the holder…'),
    may.operate && h('button', { type: 'button', class: 'danger quiet', onclick: () => act.release(now) }, 'Release by force…')));
  const facts = (place) => [part('token', place.token), part('from', visible(place.address ?? 'unknown')), part('since', clock(place.since_ms)), place.revoke_at_ms && part('revoked at', clock(place.revoke_at_ms)),
    place.asked && h('span', { class: 'asked' }, 'Asked ', since(place.asked.asked_ms_ago), ' ago by ', h('b', {}, visible(place.asked.by)), ': ', h('bdi', {}, visible(place.asked.reason)))];
  return { el: row.el, update: (place) => { now = place; row.update(place, facts); } };
}

const part = (label, value) => h('span', {}, `${label} `, h('b', {}, String(value)));

async function askHolder(path, may, note) {
  const reason = h('input', { name: 'reason', maxlength: 256, autocomplete: 'off' });
  const within = h('input', { name: 'within', type: 'number', min: 1, max: 3600, step: 1 });
  const isFit = () => reason.value.trim() !== '' && new TextEncoder().encode(reason.value).length <= 256 && within.validity.valid;
  const form = await ask('Ask the holder', [
    h('p', {}, 'All holders of ', h('b', {}, name(path)), ' learn that the lock is wanted, with the reason, if their clients listen. They keep it until they give it back', may?.operate ? ', or until the deadline.' : '.'),
    h('label', {}, 'Reason', reason),
    may?.operate && h('label', {}, 'Take it away after this many seconds (empty: never)', within)].filter(Boolean),
  { button: 'Ask', check: isFit });
  if (!form) return;
  try {
    const body = { reason: reason.value.trim(), within_ms: within.value ? 1000 * Number(within.value) : undefined };
    const { status, document: answer } = await call('POST', `/v1/locks/${encodeURIComponent(path)}/ask`, body);
    say(note, status !== 200 ? `The node says: ${answer?.detail ?? status}.` : answer.asked ? `${many(answer.asked, 'holder was', 'holders were')} asked.` : 'No client holds the lock now.');
  } catch {
    say(note, 'No answer: the holder may have been asked.');
  }
}

async function forceRelease(path, place, note) {
  const short = nameOf(path);
  const field = h('input', { name: 'confirm', autocomplete: 'off', spellcheck: 'false' });
  const form = await ask('Release the lock by force', [
    h('p', {}, 'The next waiter gets the lock at once. ', h('b', {}, visible(place.label || place.address || place.session)),
      ' learns of it only if it asks or watches, and may go on writing: the systems it writes to must check fencing tokens. ',
      'This is recorded in the log of this node, and in its audit log if there is one.'),
    h('label', {}, 'Type the lock’s name: ', h('bdi', { class: 'code' }, visible(short)), field)],
  { button: 'Release', danger: true, check: () => field.value === short });
  if (!form) return;
  try {
    const { status, document: answer } = await call('DELETE', `/v1/locks/${encodeURIComponent(path)}/holders/${place.token}`);
    say(note, status !== 200 ? `The node says: ${answer?.detail ?? status}.` : answer.released ? 'The lock was released.' : 'This token no longer held the lock.');
  } catch {
    say(note, 'No answer: check who holds the lock.');
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
  swap(log, entries.length ? entries.slice(-100).reverse().map((one) => h('li', {}, h('time', {}, clock(one.time_ms)), ' ',
    h('b', { class: one.event }, one.event), ' ', one.event === 'gap' ? visible(one.reason) : one.event === 'asked' ? [h('bdi', {}, visible(one.question)), `, token ${one.token}`]
      : [h('bdi', {}, visible(one.label || one.address || one.session)), `, token ${one.token}`, ending(one)])) : h('li', { class: 'muted' }, 'Nothing yet.'));
}

const ending = (one) => (one.event === 'granted' ? `, after ${ms(one.waited_ms)}`
  : one.held_ms !== undefined && one.held_ms !== null ? `, held for ${ms(one.held_ms)}${one.event === 'lost' ? ` (${visible(one.reason)})` : ''}` : '');
