// Elements and texts. Names, labels and data come from strangers: they only ever become text nodes and
// attributes that no browser runs.

const SVG = 'http://www.w3.org/2000/svg';

function fill(el, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) el.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked') el[name] = value;
    else el.setAttribute(name, value === true ? '' : value);
  }
  el.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return el;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// Writes only what has changed, so that a screen reader hears no more than that.
export function say(el, text) {
  if (el.textContent !== text) el.textContent = text;
  return el;
}

export function swap(el, ...children) {
  el.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return el;
}

// Makes the children of `parent` those of `items`, in order. What stays is kept, so focus and selection stay.
export function keyed(parent, items, key, make) {
  const old = parent.rows ?? new Map();
  const rows = new Map();
  let at = parent.firstElementChild;
  for (const item of items) {
    const id = key(item);
    const row = old.get(id) ?? make(item);
    old.delete(id);
    rows.set(id, row);
    if (row.el === at) at = at.nextElementSibling;
    else parent.insertBefore(row.el, at);
    row.update(item);
  }
  for (const row of old.values()) row.el.remove();
  parent.rows = rows;
}

// Control characters and those that turn the direction of writing are shown by their numbers.
const HIDDEN = /[\p{Cc}\p{Zl}\p{Zp}\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu;
export const visible = (text) => String(text).replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

// The rule of names (core/proto/src/name.rs): levels are separated by slashes, other characters encoded in each of them.
const level = (text) => encodeURIComponent(text).replaceAll('%40', '@').replace(/[!'()*~]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
export const pathOf = (text) => (text.startsWith('/') ? text : `/locks/${text.split('/').map(level).join('/')}`);
// What commands and HTTP call the lock at a path: its name, or the path where that is no name's.
export function nameOf(path) {
  try {
    const text = path.startsWith('/locks/') ? path.slice(7).split('/').map(decodeURIComponent).join('/') : path;
    return pathOf(text) === path ? text : path;
  } catch { return path; }
}
export const name = (path) => visible(nameOf(path));

export function ms(time) {
  if (time === null || time === undefined) return '–';
  if (time <= 0) return '0 ms';
  if (time < 1) return `${time.toFixed(2)} ms`;
  if (time < 1000) return `${time < 10 ? time.toFixed(1) : Math.round(time)} ms`;
  const seconds = Math.floor(time / 1000);
  if (seconds < 10) return `${(time / 1000).toFixed(1)} s`;
  if (seconds < 60) return `${seconds} s`;
  const [d, hr, min] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (d) return `${d} d ${hr} h`;
  return hr ? `${hr} h ${min} min` : `${min} min ${seconds % 60} s`;
}

export const number = (n) => (n === null || n === undefined ? '–' : n.toLocaleString('en'));
export const many = (n, one, more = `${one}s`) => `${number(n)} ${n === 1 ? one : more}`;
export const clock = (time) => new Date(time).toLocaleTimeString('en-GB');
export const moment = (time) => `${new Date(time).toLocaleDateString('en-GB', { day: 'numeric', month: 'short', year: 'numeric' })}, ${clock(time)}`;
export const href = (page, query) => `#/${page}?${new URLSearchParams(query)}`;
export const quantile = (values, q) => {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : null;
};

// A line of numbers over time, the newest at the right; from 0, so that a small change looks small. What it
// shows stands beside it in words.
export function spark(values, width = 96, height = 22) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return null;
  const top = Math.max(...known, 1e-9);
  const step = (width - 4) / (values.length - 1);
  const at = (value, n) => [2 + n * step, height - 3 - (height - 6) * value / top].map((place) => place.toFixed(1)).join();
  const points = values.flatMap((value, n) => (value === null ? [] : [at(value, n)]));
  const [first] = points[0].split(',');
  const [x, y] = points.at(-1).split(',');
  return s('svg', { class: 'spark', width, height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' },
    s('polygon', { points: `${first},${height} ${points.join(' ')} ${x},${height}` }), s('polyline', { points: points.join(' ') }), s('circle', { cx: x, cy: y, r: 2 }));
}

// Whether `el` shows something else than `key`, and is to be made anew: what has a focus stays while it is the same.
export function isNews(el, ...key) {
  const text = JSON.stringify(key);
  if (el.shows === text) return false;
  el.shows = text;
  return true;
}

// A fact: its name, its value, what else is to be said, and its line over time.
export const fact = (label, value, note = '', line = null) => ({ label, value, note, line });
export function drawFacts(list, ...facts) {
  keyed(list, facts.flat().filter(Boolean), ({ label }) => label, ({ label }) => {
    const [value, note, line] = [h('span'), h('small'), h('span')];
    const update = (now) => {
      const text = [now.value].flat().map((part) => [part.textContent ?? part, part.className]);
      if (isNews(value, text)) swap(value, now.value);
      say(note, now.note);
      swap(line, now.line);
    };
    return { el: h('div', { class: 'fact' }, h('dt', {}, label), h('dd', {}, value, line, note)), update };
  });
}

// A text that counts on by itself: `at` milliseconds when it was told.
const told = performance.now.bind(performance);
export function since(at, shape = ms) {
  const el = h('span', { class: 'num' });
  el.since = { at, from: told(), shape };
  el.classList.add('ticks');
  el.textContent = at === null || at === undefined ? '–' : shape(at);
  return el;
}
export function tick() {
  for (const el of document.querySelectorAll('.ticks')) {
    const { at, from, shape } = el.since;
    if (at !== null && at !== undefined) say(el, shape(at + told() - from));
  }
}

// Asks; gives what is typed, or null. The dialog keeps the focus until then, and gives it back.
export function ask(title, content, { button, danger, check = () => true }) {
  const dialog = document.getElementById('dialog');
  return new Promise((done) => {
    const go = h('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, button);
    const form = h('form', { method: 'dialog' }, h('h2', { id: 'dialog-title' }, title), content,
      h('div', { class: 'row end' }, h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'), go));
    let result = null;
    const look = () => { go.disabled = !check(form); };
    form.addEventListener('input', look);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      if (!check(form)) return;
      result = form;
      dialog.close();
    });
    dialog.addEventListener('close', () => done(result), { once: true });
    swap(dialog, form);
    look();
    dialog.showModal();
  });
}
