// Swim lanes: a row for each session, thin while it waits, thick while it holds. The keys + and - zoom.

import { clock, h, href, isNews, many, s, say, swap, visible } from './dom.js';

const ROW = 22;
const ROWS = 24;
const ZOOM_MAX = 64;

export function makeLanes() {
  let zoom = 1;
  let last = [];
  const names = h('ul', { class: 'lane-names' });
  const sheet = h('div', {});
  const view = h('div', { class: 'lane-view', tabindex: 0, role: 'region', 'aria-label': 'Sessions over time' }, sheet);
  const scale = h('span', { class: 'num' }, '1×');
  const button = (text, label, factor) => h('button', { type: 'button', 'aria-label': label, onclick: () => turn(factor) }, text);
  const el = h('figure', { class: 'lanes', hidden: true },
    h('div', { class: 'row' }, button('−', 'Show more time', 0.5), scale, button('+', 'Show less time', 2),
      h('span', { class: 'muted' }, 'thin: waits, thick: holds, red: lost')),
    h('div', { class: 'lane-box' }, names, view));
  view.addEventListener('keydown', ({ key }) => { if (key === '+' || key === '-') turn(key === '+' ? 2 : 0.5); });

  // What is in the middle stays there.
  function turn(factor) {
    const middle = (view.scrollLeft + view.clientWidth / 2) / view.scrollWidth;
    zoom = Math.min(ZOOM_MAX, Math.max(1, zoom * factor));
    say(scale, `${zoom}×`);
    draw(last);
    view.scrollLeft = middle * view.scrollWidth - view.clientWidth / 2;
  }

  function draw(entries) {
    last = entries;
    const places = placesOf(entries);
    const sessions = [...new Set(places.map((place) => place.session))].slice(-ROWS);
    const shown = places.filter((place) => sessions.includes(place.session));
    el.hidden = !shown.length;
    if (el.hidden) return;
    const start = Math.min(...shown.map((place) => place.from));
    const end = Math.max(entries.at(-1).time_ms, Date.now());
    const x = (time) => 100 * (time - start) / Math.max(1, end - start);
    const line = (y, from, to, kind) => s('line', { x1: `${x(from)}%`, x2: `${Math.max(x(to), x(from) + 0.3 / zoom)}%`, y1: y, y2: y, class: kind });
    const rows = sessions.map((session, at) => {
      const y = at * ROW + ROW / 2;
      return s('g', {}, s('line', { x1: 0, x2: '100%', y1: y, y2: y, class: 'lane' }), shown.filter((place) => place.session === session).map((place) => {
        const [until, held] = [place.end ?? end, place.held ?? place.end ?? end];
        return s('g', {}, s('title', {}, `${visible(place.label)}, ${clock(place.from)}`), line(y, place.from, held, 'wait'),
          place.held !== undefined && line(y, held, until, place.lost ? 'hold lost' : 'hold'));
      }));
    });
    const count = Math.max(1, Math.floor(view.clientWidth * zoom / 110));
    const ticks = Array.from({ length: count }, (_, at) => s('text', { x: `${100 * at / count}%`, y: sessions.length * ROW + 14 }, clock(start + (end - start) * at / count)));
    const follows = view.scrollLeft + view.clientWidth >= view.scrollWidth - 4;
    sheet.style.width = `${100 * zoom}%`;
    swap(sheet, s('svg', { width: '100%', height: sessions.length * ROW + 20, role: 'img', 'aria-label': `${many(sessions.length, 'session')} over time` }, rows, ticks));
    const labels = sessions.map((session) => shown.findLast((place) => place.session === session).label);
    if (isNews(names, sessions, labels)) swap(names, sessions.map((session, at) => h('li', {}, h('a', { href: href('session', { id: session }) },
      h('bdi', {}, visible(labels[at]))))));
    if (follows) view.scrollLeft = view.scrollWidth;
  }
  return { el, draw };
}

function placesOf(entries) {
  const places = new Map();
  for (const one of entries) {
    if (!one.path || !one.session) continue;
    const place = places.get(one.path) ?? { session: one.session, label: one.label || one.address || one.session };
    if (one.event === 'requested') place.from = one.time_ms;
    else if (one.event === 'granted') Object.assign(place, { held: one.time_ms, from: place.from ?? one.time_ms - one.waited_ms });
    else if (one.event !== 'converted') {
      Object.assign(place, { end: one.time_ms, lost: one.event === 'lost' });
      if (typeof one.held_ms === 'number') place.held ??= one.time_ms - one.held_ms;
      place.from ??= (place.held ?? one.time_ms) - (one.waited_ms ?? 0);
    }
    places.set(one.path, place);
  }
  return [...places.values()].filter((place) => place.from !== undefined);
}
