// What the holders of a lock wait for: from session to session, over other locks. A deadlock is red. The graph has
// only the queues that the reader may see, of the most contended locks.

import { h, href, isNews, name, s, swap, visible } from './dom.js';
import { Problem, get } from './net.js';

const LOCKS_MAX = 24;
const [WIDTH, HEIGHT, X, Y] = [168, 34, 268, 58];

export async function waitsOf(path, el, stop) {
  try {
    const graph = await explore(path, stop);
    if (isNews(el, [...graph.nodes], graph.edges)) swap(el, graph.edges.length > 0 && [h('h2', {}, 'What its holders wait for'), drawn(graph)]);
  } catch (error) {
    if (!(error instanceof Problem) || error.status === 0) throw error;
    swap(el);
  }
}

async function explore(path, stop) {
  const known = (await get(`/v1/locks?limit=${LOCKS_MAX}`, stop)).locks.filter((lock) => lock.waiters > 0 && lock.lock !== path);
  const queues = await Promise.all([path, ...known.map((lock) => lock.lock)].map((lock) => get(`/v1/queue?lock=${encodeURIComponent(lock)}&limit=50`, stop)
    .then((queue) => ({ ...queue, lock }), () => ({ lock, holders: [], waiters: [] }))));
  const nodes = new Map();
  const edges = [];
  const meet = (place, depth) => {
    if (place.session === null || nodes.has(place.session)) return;
    nodes.set(place.session, { label: place.label || place.address || place.session, depth });
  };
  queues[0].holders.forEach((place) => meet(place, 0));
  // A session that is met is behind those that are left to do.
  for (const [from, { depth }] of nodes) {
    for (const { lock, holders, waiters } of queues) {
      if (!waiters.some((place) => place.session === from)) continue;
      for (const place of holders) {
        meet(place, depth + 1);
        if (nodes.has(place.session)) edges.push({ from, to: place.session, lock });
      }
    }
  }
  const reaches = (from, to, seen = new Set()) => edges.some((edge) => edge.from === from && (edge.to === to
    || (!seen.has(edge.to) && reaches(edge.to, to, seen.add(edge.to)))));
  for (const edge of edges) edge.circle = reaches(edge.to, edge.from) || edge.to === edge.from;
  return { nodes, edges };
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function drawn({ nodes, edges }) {
  const rows = [];
  for (const node of nodes.values()) {
    const row = rows[node.depth] ?? 0;
    rows[node.depth] = row + 1;
    Object.assign(node, { x: 4 + node.depth * X, y: 6 + row * Y });
  }
  const turnsBack = edges.some(({ from, to }) => nodes.get(to).depth <= nodes.get(from).depth);
  const [width, height] = [rows.length * X, Math.max(...rows) * Y + (turnsBack ? 60 : 0)];
  // One arrow between two sessions, whatever they wait for.
  const arrows = [...Map.groupBy(edges, ({ from, to }) => `${from} ${to}`).values()];
  const lines = arrows.map(([{ from, to, lock, circle }, ...others]) => {
    const [a, b] = [nodes.get(from), nodes.get(to)];
    const ahead = b.x > a.x;
    const [x1, y1, x2, y2] = ahead ? [a.x + WIDTH, a.y + 17, b.x, b.y + 17] : [a.x + 84, a.y + HEIGHT, b.x + 84, b.y + HEIGHT];
    const bend = ahead ? `${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2}` : `${x1} ${height} ${x2} ${height}`;
    const head = ahead ? `${x2 - 8},${y2 - 5} ${x2},${y2} ${x2 - 8},${y2 + 5}` : `${x2 - 5},${y2 + 8} ${x2},${y2} ${x2 + 5},${y2 + 8}`;
    const [tx, ty] = ahead ? [(x1 + x2) / 2, (y1 + y2) / 2 - 7] : [(x1 + x2) / 2, height - 6];
    return s('g', { class: circle ? 'circle' : '' }, s('path', { d: `M${x1} ${y1}C${bend} ${x2} ${y2}` }), s('polygon', { points: head }),
      s('text', { x: tx, y: ty, 'text-anchor': 'middle', class: 'of' }, short(name(lock), 16), others.length > 0 && ` +${others.length}`), s('title', {}, visible(lock)));
  });
  const boxes = [...nodes].map(([session, { x, y, label }]) => s('a', { href: href('session', { id: session }) },
    s('rect', { x, y, width: WIDTH, height: HEIGHT, rx: 8 }), s('text', { x: x + 10, y: y + 22 }, short(visible(label), 20))));
  const word = ({ from, to, lock, circle }) => h('li', { class: circle ? 'circle' : '' },
    h('bdi', {}, visible(nodes.get(from).label)), ' waits for ', h('a', { href: href('lock', { path: lock }) }, h('bdi', {}, name(lock))),
    ', held by ', h('bdi', {}, visible(nodes.get(to).label)), circle && h('b', {}, ': deadlock'));
  return [h('div', { class: 'graph', tabindex: 0, role: 'region', 'aria-label': 'Who waits for whom' },
    s('svg', { width, height }, lines, boxes)), h('ul', { class: 'past' }, edges.map(word))];
}
