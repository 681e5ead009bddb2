// Where the waiting went: which locks clients waited for, how long, and behind which holders. The node computes the
// sums; this page draws them.

import { clock, h, href, isNews, many, moment, ms, name, number, s, say, swap, visible } from './dom.js';
import { get } from './net.js';

const [FEW, ALL] = [100, 1000];
const TIMES = { 600: '10 minutes', 3600: 'hour', 21600: '6 hours', 86400: '24 hours', 604800: '7 days' };
const KEYS = { label: 'label', address: 'address', session: 'session' };
const HEIGHT = 72;
const CUTS = { trimmed: 'the history begins then', 'too-many': 'the time has too many records: choose a shorter one, or one lock' };

export function contention(el, { query, live }) {
  const lock = query.get('lock');
  const wanted = { since: TIMES[query.get('since')] ? query.get('since') : '3600', by: KEYS[query.get('by')] ? query.get('by') : 'label' };
  const note = h('p', { class: 'verdict', role: 'status' }, 'Loading…');
  const [unknown, picture, table] = [h('ul', { class: 'unknown' }), h('figure', { class: 'over-time', hidden: true }), h('div', { class: 'waited' })];
  const more = h('button', { type: 'button', hidden: true }, `Load up to ${number(ALL)}`);
  const address = (changed) => href('contention', Object.entries({ ...wanted, lock: lock ?? '', ...changed }).filter(([, value]) => value));
  const choice = (field, text, options) => h('label', {}, `${text} `, h('select', { name: field, onchange: ({ target }) => { location.hash = address({ [field]: target.value }); } },
    Object.entries(options).map(([value, title]) => h('option', { value, selected: value === wanted[field] }, title))));
  swap(el, lock && h('p', { class: 'crumb' }, h('a', { href: address({ lock: '' }) }, 'All locks'), ' · ', h('a', { href: href('lock', { path: lock }) }, 'Holders and waiters now')),
    h('h1', {}, lock ? [h('bdi', {}, name(lock)), ': waits'] : 'Where the waiting went'),
    h('div', { class: 'row' }, choice('since', 'The last', TIMES), choice('by', 'Clients by', KEYS)), note, unknown, picture, table, more);
  let limit = FEW;
  const hurry = live(async (stop) => {
    const asked = new URLSearchParams({ limit, by: wanted.by, since_ms: Date.now() - 1000 * wanted.since, ...(lock && { lock }) });
    const found = await get(`/v1/contention?${String(asked).replaceAll('+', '%20')}`, stop, 20000);
    say(note, sentence(found));
    const doubts = doubtsOf(found);
    if (isNews(unknown, doubts)) swap(unknown, doubts.map((text) => h('li', {}, text)));
    drawTime(picture, found);
    if (isNews(table, found.locks)) swap(table, found.locks.length > 0 && (lock ? pairsOf(found.locks[0]) : locksOf(found, (path) => address({ lock: path }))));
    more.hidden = !found.more || limit === ALL;
  }, 15000, (problem) => { if (problem.status) say(note, `The node says: ${problem.message}.`); });
  more.addEventListener('click', () => { limit = ALL; hurry(); });
}

function sentence({ from_ms: from, until_ms: until, waited_ms: waited, waits, requests, lock_count: count, locks, more }) {
  const since = (until - from > 86400000 ? moment : clock)(from);
  if (waits === 0 && waited === 0) return `Since ${since} no client waited for a lock.`;
  return `Since ${since} clients waited ${ms(waited)} in all, within ${ms(until - from)}: ${number(waits)} of ${many(requests, 'request')} waited, for ${many(count, 'lock')}.`
    + (more ? ` The ${number(locks.length)} with the longest times are shown.` : '');
}

// What the sums do not know.
function doubtsOf({ cut, from_ms: from, gaps, lost }) {
  const missing = gaps.reduce((sum, gap) => sum + gap.to_ms - gap.from_ms, 0);
  return [cut && `Only the time since ${moment(from)} is known: ${CUTS[cut] ?? 'the history could not be read further in time'}.`,
    gaps.length > 0 && `The history has ${many(gaps.length, 'gap')}, ${ms(missing)} in all: records of that time may be missing.`,
    lost.waits > 0 && `The sums lack ${many(lost.waits, 'wait')} without a recorded end, of ${ms(lost.at_least_ms)} to ${ms(lost.at_most_ms)}.`].filter(Boolean);
}

const percent = (part, all) => (all <= 0 ? '–' : part > 0 && 100 * part < all ? '<1 %' : `${Math.round(100 * part / all)} %`);
const whom = (one) => (one.holder !== null ? h('bdi', {}, visible(one.holder)) : h('span', { class: 'muted' }, one.unknown ? 'unknown holder' : 'no holder'));

// Clients that wait, on average, in each part of the time; gray where records may be missing.
function drawTime(el, { since_ms: since, until_ms: until, from_ms: from, slices: { step_ms: step, waited_ms: waited }, gaps }) {
  const most = Math.max(...waited.map((part) => (part ?? 0) / step), 0);
  el.hidden = !waited.length || (most === 0 && !gaps.length && from === since);
  if (el.hidden) return;
  const x = (time) => 100 * (time - since) / (until - since);
  const blind = [...(from > since ? [{ from_ms: since, to_ms: from }] : []), ...gaps].map(({ from_ms: a, to_ms: b }) => s('rect', { class: 'blind', x: `${x(a)}%`, y: 0, width: `${Math.max(0.3, x(b) - x(a))}%`, height: HEIGHT },
    s('title', {}, 'records may be missing')));
  const bars = waited.map((part, at) => part > 0 && s('rect', { class: 'part', x: `${x(since + at * step)}%`, width: `${Math.max(0.1, x(step + since) - 0.25)}%`, y: HEIGHT - Math.max(1, (HEIGHT - 4) * part / step / most), height: Math.max(1, (HEIGHT - 4) * part / step / most) },
    s('title', {}, `${clock(since + at * step)}: ${(part / step).toFixed(1)} waiting`)));
  const shape = until - since > 86400000 ? moment : clock;
  const text = `Waiting clients over time, at most ${most.toFixed(1)} on average of ${ms(step)}`;
  swap(el, s('svg', { width: '100%', height: HEIGHT + 16, role: 'img', 'aria-label': text }, blind, bars.filter(Boolean), s('line', { class: 'lane', x1: 0, x2: '100%', y1: HEIGHT, y2: HEIGHT }),
    s('text', { x: 0, y: HEIGHT + 14 }, shape(since)), s('text', { x: '100%', y: HEIGHT + 14, 'text-anchor': 'end' }, shape(until))),
  h('figcaption', { class: 'muted' }, `${text}.`, blind.length > 0 && ' Gray: records may be missing.'));
}

// The parts of a lock's waiting time by holder, the longest first.
function bar(parts, all, most) {
  let at = 0;
  const rect = (ms_, kind, title) => {
    const [x, width] = [at, 100 * ms_ / most];
    at += width;
    return s('rect', { class: kind, x: `${x}%`, width: `${width}%`, height: 12 }, s('title', {}, `${title}: ${ms(ms_)}`));
  };
  const known = parts.map((one, n) => rect(one.waited_ms, one.holder !== null ? `p${Math.min(n, 2)}` : one.unknown ? 'blind' : 'none', visible(one.holder ?? (one.unknown ? 'unknown holder' : 'no holder'))));
  const rest = all - parts.reduce((sum, one) => sum + one.waited_ms, 0);
  return s('svg', { class: 'share', width: '100%', height: 12, 'aria-hidden': 'true' }, known, rest > 0 && rect(rest, 'p2', 'other holders'));
}

const cell = (kind, ...content) => h('td', { class: kind }, content);
function tableOf(label, heads, rows) {
  return h('table', {}, h('caption', { class: 'muted' }, label), h('thead', {}, h('tr', {}, heads.map(([kind, text]) => h('th', { scope: 'col', class: kind }, text)))), h('tbody', {}, rows));
}

function locksOf({ locks, waited_ms: all }, address) {
  return tableOf('Bars: parts behind each holder, the longest first; light gray: no holder, that is a hand-over or a lock-delay', [['w-name', 'Lock'], ['w-time', 'Waited'], ['w-bar', 'Share'], ['w-count', 'Waits'], ['w-long', 'Longest'], ['w-who', 'Mostly behind'], ['w-who', 'Mostly waiting']],
    locks.map((lock) => h('tr', {}, h('th', { scope: 'row', class: 'w-name' }, h('a', { href: address(lock.lock), title: name(lock.lock) }, h('bdi', {}, name(lock.lock)))),
      cell('w-time', ms(lock.waited_ms)), cell('w-bar', bar(lock.behind, lock.waited_ms, locks[0].waited_ms || 1), h('small', {}, percent(lock.waited_ms, all))),
      cell('w-count', `${number(lock.waits)} of ${number(lock.requests)}`, lock.gave_up > 0 && h('small', {}, `, ${number(lock.gave_up)} gave up`)), cell('w-long', ms(lock.longest_ms)),
      cell('w-who', lock.behind[0] && [whom(lock.behind[0]), h('small', {}, ` ${percent(lock.behind[0].waited_ms, lock.waited_ms)}`)]),
      cell('w-who', lock.waiting[0] && [h('bdi', {}, visible(lock.waiting[0].waiter)), h('small', {}, ` ${percent(lock.waiting[0].waited_ms, lock.waited_ms)}`)]))));
}

function pairsOf({ pairs, waited_ms: all }) {
  return tableOf('Who waited behind whom', [['w-who', 'Waiting'], ['w-who', 'Behind'], ['w-time', 'Waited'], ['w-bar', 'Share']],
    pairs.map((pair) => h('tr', {}, h('th', { scope: 'row', class: 'w-who' }, h('bdi', {}, visible(pair.waiter))), cell('w-who', whom(pair)), cell('w-time', ms(pair.waited_ms)),
      cell('w-bar', bar([pair], pair.waited_ms, pairs[0].waited_ms), h('small', {}, percent(pair.waited_ms, all))))));
}
