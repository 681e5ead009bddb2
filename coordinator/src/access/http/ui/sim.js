// A run of the simulator: its page (`sim run --html`) or its case file. The file stays in this browser, and
// nothing of it is run: the page's data are read, and drawn anew.

import { h, many, ms, s, say, swap, visible } from './dom.js';

const STORY_MAX = 2000;
const ROW = 26;

export function simulator(el) {
  const field = h('input', { type: 'file', id: 'run', accept: '.html,.txt,.case,text/*' });
  const note = h('p', { class: 'verdict', role: 'status' }, 'Open a file of rowlock-sim: a page written by --html, or a case.');
  const run = h('div', {});
  swap(el, h('h1', {}, 'Simulator'), h('label', { for: 'run' }, 'Open a run', field), note, run);
  field.addEventListener('change', async () => {
    const [file] = field.files;
    if (!file) return;
    try {
      const text = await file.text();
      const page = text.trimStart().startsWith('<') ? new DOMParser().parseFromString(text, 'text/html') : null;
      swap(run, page ? drawn(page, note) : told(text, note));
    } catch {
      say(note, 'This file is neither a page nor a case of rowlock-sim.');
      swap(run);
    }
  });
}

const command = (text) => h('pre', { tabindex: 0 }, visible(text));

function told(text, note) {
  const [head, faults] = text.split(/^faults$/m);
  const seed = /^seed (\d+)$/m.exec(head)[1];
  const found = [...head.matchAll(/^# found: (.*)$/gm)].map(([, line]) => line);
  say(note, found.length ? visible(found.join(' ')) : `The run of seed ${seed}.`);
  const settings = [...head.matchAll(/^(\w+) (.+)$/gm)].map(([, key, value]) => h('div', { class: 'fact' }, h('dt', {}, key), h('dd', {}, visible(value))));
  return [h('dl', { class: 'facts' }, settings), h('h2', {}, 'Faults'),
    h('ol', { class: 'past' }, (faults ?? '').split('\n').filter((line) => line.trim()).map((line) => h('li', {}, visible(line)))),
    h('h2', {}, 'Repeat it'), command('rowlock sim replay THIS_FILE')];
}

function drawn(page, note) {
  const { lanes, locks, spells, story, end, violations } = JSON.parse(page.getElementById('data').textContent);
  say(note, [page.querySelector('h1'), page.querySelector('.verdict')].map((part) => visible(part.textContent)).join(': '));
  note.classList.toggle('circle', violations.length > 0);
  const last = Math.max(1, ...story.map(([at]) => at).filter((at) => at < end));
  const x = (at) => `${100 * Math.min(1, at / last)}%`;
  const bars = spells.filter(([, from]) => from <= last).map(([lane, from, to, what, more]) => s('g', {},
    s('title', {}, visible(`${what} ${['waits', 'holds'].includes(what) ? locks[more]?.[0] ?? locks[more] ?? more : more ?? ''}`)),
    s('line', { x1: x(from), x2: x(to), y1: lane * ROW + ROW / 2, y2: lane * ROW + ROW / 2, class: { waits: 'wait', holds: 'hold', down: 'hold lost', leads: 'lead' }[what] ?? 'lane' })));
  return [h('div', { class: 'lane-box' },
    h('ul', { class: 'lane-names sim' }, lanes.map(([lane]) => h('li', {}, visible(lane)))),
    h('div', { class: 'lane-view' }, s('svg', { width: '100%', height: lanes.length * ROW, role: 'img', 'aria-label': `${many(lanes.length, 'computer')} over ${ms(last / 1000)}` }, bars))),
  h('p', { class: 'muted' }, 'thin: waits, thick: holds, broad: leads, red: down'),
  command(page.querySelector('.reproduce code')?.textContent ?? ''),
  h('h2', {}, 'Story'), h('ol', { class: 'past' }, story.slice(0, STORY_MAX).map(([at, , text]) => h('li', {}, h('time', {}, `${(at / 1e6).toFixed(3)} s`), ' ', visible(text))))];
}
