// The table of locks. Only the rows that can be seen exist, so 10,000 are no burden.

import { h, href, many, name, number, pathOf, say, since, swap, visible } from './dom.js';
import { get } from './net.js';

const FEW = 1000;
const ALL = 10000;
const text = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
// Title, what is compared, whether the greatest comes first.
const COLUMNS = {
  name: ['Name', (a, b) => text(a.lock, b.lock)],
  holder: ['Holder', (a, b) => text(a.holder ?? '\uffff', b.holder ?? '\uffff')],
  held: ['Held for', (a, b) => (a.held_ms ?? -1) - (b.held_ms ?? -1), true],
  waiters: ['Waiters', (a, b) => a.waiters - b.waiters, true],
  wait: ['Longest wait', (a, b) => (a.oldest_wait_ms ?? -1) - (b.oldest_wait_ms ?? -1), true],
};

export function locks(el, { app, query, signal, live }) {
  const note = h('p', { class: 'muted', role: 'status' }, 'Loading…');
  const field = h('input', { type: 'search', id: 'search', value: query.get('q') ?? '', placeholder: 'Part of a name, or /a/path (press /)',
    autocomplete: 'off', spellcheck: 'false', 'aria-label': 'Search locks' });
  const only = h('input', { type: 'checkbox', id: 'contended', checked: query.has('contended') });
  const list = h('div', { class: 'rows-seen', role: 'rowgroup' });
  let sort = COLUMNS[query.get('sort')] ? query.get('sort') : 'waiters';
  let turned = query.has('turned');
  const heads = Object.entries(COLUMNS).map(([id, [title]]) => {
    const button = h('button', { type: 'button', onclick: () => { turned = sort === id && !turned; sort = id; remember(); draw(true); } }, title);
    return Object.assign(h('span', { role: 'columnheader', class: `c-${id}` }, button), { column: id });
  });
  const table = h('div', { class: 'lock-table', role: 'table', 'aria-label': 'Locks' }, h('div', { role: 'rowgroup' }, h('div', { role: 'row', class: 'lock-row head', 'aria-rowindex': 1 }, heads)), list);
  const more = h('button', { type: 'button', hidden: true }, `Load up to ${number(ALL)}`);
  swap(el, h('h1', {}, 'Locks'), h('div', { class: 'row' }, field, h('label', { class: 'check', for: 'contended' }, only, 'contended only')), note, table, more);
  if (app.searches) field.focus();
  app.searches = false;
  let limit = Number(query.get('limit')) || FEW;
  let [all, items, told] = [[], [], null];
  const rows = new Map();
  const remember = () => history.replaceState(null, '', href('locks', Object.entries({ q: field.value, contended: only.checked ? 1 : '', sort: sort === 'waiters' ? '' : sort, turned: turned ? 1 : '', limit: limit === FEW ? '' : limit }).filter(([, value]) => value)));

  const draw = (anew) => {
    if (anew) {
      const [, compare, greatest] = COLUMNS[sort];
      const way = (greatest ? -1 : 1) * (turned ? -1 : 1);
      items = all.filter((lock) => !only.checked || lock.waiters > 0).sort((a, b) => way * compare(a, b) || text(a.lock, b.lock));
      for (const head of heads) {
        if (head.column === sort) head.setAttribute('aria-sort', (way > 0) ? 'ascending' : 'descending'); else head.removeAttribute('aria-sort');
      }
      table.setAttribute('aria-rowcount', items.length + 1);
      if (told) say(note, told());
    }
    const height = parseFloat(getComputedStyle(table).getPropertyValue('--row'));
    list.style.height = `${items.length * height}px`;
    const top = list.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - 8);
    const last = Math.min(items.length, Math.ceil((innerHeight - top) / height) + 8);
    const wanted = new Set();
    for (let at = first; at < last; at += 1) wanted.add(at);
    // The row with the focus stays.
    const focus = document.activeElement?.closest('.lock-row')?.path;
    const keep = focus === undefined ? -1 : items.findIndex((lock) => lock.lock === focus);
    if (keep >= 0) wanted.add(keep);
    const seen = new Set();
    for (const at of [...wanted].sort((a, b) => a - b)) {
      const lock = items[at];
      seen.add(lock.lock);
      let row = rows.get(lock.lock);
      if (!row) rows.set(lock.lock, row = makeRow(lock));
      row.update(lock, at, height);
      if (row.el.parentNode !== list) list.append(row.el);
    }
    for (const [path, row] of rows) if (!seen.has(path)) { row.el.remove(); rows.delete(path); }
    // In the order of the list, so that the tab key goes down.
    const sorted = [...list.children].sort((a, b) => a.at - b.at);
    sorted.forEach((child, at) => { if (list.children[at] !== child) list.insertBefore(child, list.children[at]); });
  };
  list.addEventListener('keydown', (event) => {
    const at = event.target.closest('.lock-row')?.at;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (at === undefined || !(to >= 0 && to < items.length)) return;
    event.preventDefault();
    const height = list.clientHeight / items.length;
    const y = list.getBoundingClientRect().top + to * height;
    if (y < 100) scrollBy(0, y - 100); else if (y + height > innerHeight) scrollBy(0, y + 2 * height - innerHeight);
    draw();
    rows.get(items[to].lock)?.el.querySelector('a').focus({ preventScroll: true });
  });
  addEventListener('scroll', () => draw(), { passive: true, signal });
  addEventListener('resize', () => draw(), { signal });

  const question = () => {
    const typed = field.value.trim();
    // A token for some locks may ask for the beginning of their path only.
    const isPath = typed.startsWith('/') || app.refused?.status === 403;
    const wanted = new URLSearchParams({ limit, holders: true, ...(typed && (isPath ? { prefix: pathOf(typed) } : { contains: pathOf(typed).slice('/locks/'.length) })) });
    return `/v1/locks?${String(wanted).replaceAll('+', '%20')}`;
  };
  const hurry = live(async (stop) => {
    const asked = question();
    const document_ = await get(asked, stop);
    if (asked !== question()) return;
    all = document_.locks.map((lock) => ({ ...lock, granted: document_.time_ms - lock.held_ms, asked: document_.time_ms - lock.oldest_wait_ms }));
    told = () => {
      const waiting = items.reduce((sum, lock) => sum + lock.waiters, 0);
      if (items.length === 0) return field.value || only.checked ? 'No such lock is held or waited for.' : 'No lock is held or waited for.';
      return `${many(items.length, 'lock')}, ${many(waiting, 'waiter')}${document_.more ? `: the ${number(all.length)} most contended, of more. Search to see others` : ''}.`;
    };
    more.hidden = !document_.more || limit === ALL;
    draw(true);
  }, limit === ALL ? 4000 : 1500, (problem) => { if (problem.status) say(note, `The node says: ${problem.message}.`); });
  more.addEventListener('click', () => { limit = ALL; remember(); hurry(); });
  only.addEventListener('change', () => { remember(); draw(true); });
  let typing = 0;
  field.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(() => { remember(); hurry(); }, 150);
  });
}

function makeRow(lock) {
  const cells = Object.fromEntries(Object.keys(COLUMNS).slice(1).map((id) => [id, h('span', { role: 'cell', class: `c-${id}` })]));
  const el = h('div', { role: 'row', class: 'lock-row' }, h('span', { role: 'cell', class: 'c-name' },
    h('a', { href: href('lock', { path: lock.lock }), title: name(lock.lock) }, h('bdi', {}, name(lock.lock)))), Object.values(cells));
  el.path = lock.lock;
  let last = '';
  const update = (now, at, height) => {
    el.at = at;
    el.style.top = `${at * height}px`;
    el.setAttribute('aria-rowindex', at + 2);
    const { holders, holder, held_ms: held, granted, waiters, limit, delayed_until_ms: delayed, oldest_wait_ms: oldest, asked } = now;
    const key = JSON.stringify([holders, holder, granted, waiters, limit, delayed, asked]);
    if (key === last) return;
    last = key;
    const others = limit ? ` ${holders} of ${limit}` : holders > 1 ? ` +${number(holders - 1)}` : '';
    swap(cells.holder, delayed ? h('span', { class: 'tag waits' }, 'lock delay') : !holders ? h('span', { class: 'muted' }, 'free')
      : [h('bdi', { title: holder && visible(holder) }, holder === undefined ? 'not shown to you' : visible(holder)), others && h('span', { class: 'tag' }, others)]);
    swap(cells.held, held !== undefined && since(held));
    swap(cells.waiters, waiters ? h('b', {}, number(waiters)) : '–');
    swap(cells.wait, oldest !== undefined && since(oldest));
  };
  return { el, update };
}
