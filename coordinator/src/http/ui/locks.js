// The list of locks, the most contended first. Only the rows that can be seen exist, so 10,000 are no burden.

import { h, href, isNews, many, ms, name, number, pathOf, quantile, say, since, spark, swap } from './dom.js';
import { get } from './net.js';

const ROW = 56;
const FEW = 200;
const ALL = 10000;
// Of so many records of the history the times of waiting and holding are made, and the lines of the last minute.
const PAST = 2000;
const MINUTE = 60000;
const STEPS = 30;

export function locks(el, { query, signal, live }) {
  const note = h('p', { class: 'muted', role: 'status' }, 'Asking the node…');
  const field = h('input', { type: 'search', id: 'prefix', value: query.get('prefix') ?? '', placeholder: 'ci/',
    autocomplete: 'off', spellcheck: 'false' });
  const list = h('ul', { class: 'locks', 'aria-label': 'Locks' });
  const more = h('button', { type: 'button', hidden: true }, `Show up to ${number(ALL)}`);
  swap(el, h('h1', {}, 'Locks'),
    h('div', { class: 'row' }, h('label', { for: 'prefix' }, 'Name begins with'), field), note, list, more);
  let limit = Number(query.get('limit')) || FEW;
  let items = [];
  let past = new Map();
  const rows = new Map();

  const prefix = () => {
    const text = field.value.trim();
    return text && pathOf(text);
  };
  const draw = () => {
    list.style.height = `${items.length * ROW}px`;
    const top = list.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / ROW) - 8);
    const last = Math.min(items.length, Math.ceil((innerHeight - top) / ROW) + 8);
    const focus = rows.get(document.activeElement?.closest('li')?.path);
    const wanted = new Set();
    for (let at = first; at < last; at += 1) wanted.add(at);
    const keep = focus && items.findIndex((lock) => lock.lock === focus.el.path);
    if (focus && keep >= 0) wanted.add(keep);
    const seen = new Set();
    for (const at of [...wanted].sort((a, b) => a - b)) {
      const lock = items[at];
      seen.add(lock.lock);
      let row = rows.get(lock.lock);
      if (!row) rows.set(lock.lock, row = makeRow(lock));
      row.update(lock, at, items.length, past.get(lock.lock));
      if (row.el.parentNode !== list) list.append(row.el);
    }
    for (const [path, row] of rows) if (!seen.has(path)) { row.el.remove(); rows.delete(path); }
    // In the order of the list, so that the tab key goes down.
    const sorted = [...list.children].sort((a, b) => a.at - b.at);
    sorted.forEach((child, at) => { if (list.children[at] !== child) list.insertBefore(child, list.children[at]); });
  };
  const go = (at) => {
    if (at < 0 || at >= items.length) return;
    scrollTo(0, Math.min(scrollY, scrollY + list.getBoundingClientRect().top + at * ROW - 80));
    const bottom = list.getBoundingClientRect().top + (at + 1) * ROW - innerHeight;
    if (bottom > 0) scrollBy(0, bottom + 24);
    draw();
    rows.get(items[at].lock)?.el.firstElementChild.focus({ preventScroll: true });
  };
  list.addEventListener('keydown', (event) => {
    const at = event.target.closest('li')?.at;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (to === undefined || at === undefined) return;
    event.preventDefault();
    go(to);
  });
  addEventListener('scroll', draw, { passive: true, signal });
  addEventListener('resize', draw, { signal });

  const hurry = live(async (stop) => {
    const asked = prefix();
    const parameters = new URLSearchParams({ limit, ...(asked && { prefix: asked }) });
    const document_ = await get(`/v1/locks?${String(parameters).replaceAll('+', '%20')}`, stop);
    if (asked !== prefix()) return;
    items = document_.locks;
    const waiting = items.reduce((sum, lock) => sum + lock.waiters, 0);
    say(note, items.length === 0 ? (asked ? 'No lock begins so.' : 'No lock is held, and nobody waits.')
      : `${document_.more ? 'The first ' : ''}${many(items.length, 'lock')}, ${many(waiting, 'waiter')}. The most contended come first.`
      + (document_.more && limit === ALL ? ' There are more: filter to see them.' : ''));
    more.hidden = !document_.more || limit === ALL;
    draw();
  }, limit === ALL ? 4000 : 1500, (problem) => { if (problem.status) say(note, `The node says: ${problem.message}.`); });
  live(async (stop) => {
    const asked = prefix();
    const { entries } = await get(`/v1/history?limit=${PAST}`, stop);
    const now = entries.at(-1)?.time_ms ?? 0;
    past = new Map();
    for (const one of entries) {
      if (!one.lock || (asked && !one.lock.startsWith(asked))) continue;
      if (!past.has(one.lock)) past.set(one.lock, { now, entries: [] });
      past.get(one.lock).entries.push(one);
    }
    draw();
  }, 5000);
  more.addEventListener('click', () => { limit = ALL; hurry(); });
  let typing = 0;
  field.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      history.replaceState(null, '', href('locks', field.value ? { prefix: field.value } : {}));
      hurry();
    }, 150);
  });
}

// How many waited in the last minute, step by step, from what has happened since: the last number is the one of now.
function waitersOf({ now, entries }, waiters) {
  const steps = Array(STEPS).fill(0);
  let [count, at] = [waiters, entries.length - 1];
  for (let step = STEPS - 1; step >= 0; step -= 1) {
    const from = now - MINUTE * (STEPS - step) / STEPS;
    steps[step] = Math.max(0, count);
    for (; at >= 0 && entries[at].time_ms >= from; at -= 1) {
      const { event, held_ms: held } = entries[at];
      if (event === 'requested') count -= 1;
      else if (event === 'granted' || (event !== 'gap' && (held === undefined || held === null))) count += 1;
      steps[step] = Math.max(steps[step], count);
    }
  }
  return steps;
}

function times(entries) {
  const both = (values) => (Math.max(0, ...values) > 0 ? `${ms(quantile(values, 0.5))} (p99 ${ms(quantile(values, 0.99))})` : null);
  const waits = both(entries.filter(({ event }) => event === 'granted').map((one) => one.waited_ms));
  const holds = both(entries.filter((one) => typeof one.held_ms === 'number').map((one) => one.held_ms));
  return [waits && `wait ${waits}`, holds && `hold ${holds}`].filter(Boolean).join(', ');
}

function makeRow(lock) {
  const line = h('span', { class: 'past-line' });
  const took = h('span', { class: 'took', title: 'Half of those in the history took no longer' });
  const facts = h('span', { class: 'lock-facts' });
  const el = h('li', {}, h('a', { href: href('lock', { path: lock.lock }) },
    h('bdi', { class: 'lock-name' }, name(lock.lock)), took, line, facts));
  el.path = lock.lock;
  let last = '';
  const update = (now, at, size, before) => {
    el.at = at;
    el.style.top = `${at * ROW}px`;
    el.setAttribute('aria-posinset', at + 1);
    el.setAttribute('aria-setsize', size);
    if (isNews(line, before?.now, now.waiters)) {
      const steps = before ? waitersOf(before, now.waiters) : [];
      swap(line, steps.some((count) => count > 0) && spark(steps));
      say(took, before ? times(before.entries) : '');
    }
    const { holders, waiters, limit, delayed_until_ms: delayed, oldest_wait_ms: oldest = null } = now;
    const key = `${holders} ${waiters} ${limit} ${delayed} ${oldest === null ? '' : Math.round(oldest / 5000)}`;
    if (key === last) return;
    last = key;
    const held = delayed ? 'delayed' : limit ? `${holders} of ${limit} hold` : holders > 1 ? `${holders} hold` : holders ? 'held' : 'free';
    const dots = h('span', { class: 'dots', 'aria-hidden': 'true' });
    for (let i = 0; i < Math.min(waiters, 12); i += 1) dots.append(h('i', {}));
    swap(facts, h('span', { class: holders ? 'tag held' : 'tag' }, held), dots,
      h('span', { class: waiters ? 'waits' : 'muted' }, waiters ? [`${number(waiters)} wait`, waiters === 1 ? 's' : '', oldest !== null && [', ', since(oldest)]] : 'nobody waits'));
  };
  return { el, update };
}
