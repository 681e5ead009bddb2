// The znodes: children, data, ACL and stat of one of them.

import { drawFacts, fact, h, href, many, moment, number, say, swap, visible } from './dom.js';
import { get, raw } from './net.js';

const CHILDREN_MAX = 1000;
const SHOWN_BYTES = 64 << 10;

export function tree(el, { query, signal }) {
  const path = query.get('path') || '/';
  const parts = path.split('/').filter(Boolean);
  const at = (count) => `/${parts.slice(0, count).join('/')}`;
  const link = (to, text) => h('a', { href: href('tree', { path: to }) }, h('bdi', {}, visible(text)));
  const note = h('p', { class: 'muted', role: 'status' }, 'Loading…');
  const [facts, list, data, shape] = [h('dl', { class: 'facts' }), h('ul', { class: 'past', 'aria-label': 'Children' }), h('pre', { tabindex: 0, class: 'data' }), h('p', { class: 'row' })];
  swap(el, h('p', { class: 'crumb' }, link('/', '/'), parts.slice(0, -1).map((part, n) => [' ', link(at(n + 1), part), ' /'])),
    h('h1', {}, h('bdi', {}, visible(parts.at(-1) ?? '/'))), note, facts, h('h2', {}, 'Children'), list, h('h2', {}, 'Data'), shape, data);
  const asked = `/v1/znodes${path.split('/').map(encodeURIComponent).join('/')}`;
  Promise.all([get(`${asked}?view=children&limit=${CHILDREN_MAX}`, signal), get(`${asked}?view=acl`, signal), raw(asked, signal)]).then(([{ children, more, stat }, { acl }, bytes]) => {
    say(note, `${many(stat.num_children, 'child', 'children')}, ${many(stat.data_length, 'byte')}.${more ? ` The first ${number(CHILDREN_MAX)} are shown.` : ''}`);
    drawFacts(facts, fact('Made', moment(stat.ctime_ms)), fact('Changed', moment(stat.mtime_ms), `version ${stat.version}`),
      fact('zxid', stat.mzxid, `made by ${stat.czxid}, children ${stat.pzxid}`), fact('ACL', h('span', { class: 'code' }, acl.map((entry) => h('div', {}, visible(entry))))),
      stat.ephemeral_owner && fact('Session', h('a', { href: href('session', { id: stat.ephemeral_owner }) }, stat.ephemeral_owner)));
    swap(list, children.map((child) => h('li', {}, link(`${path === '/' ? '' : path}/${child}`, child))));
    show(bytes, shape, data);
  }, (problem) => { if (!signal.aborted) say(note, `The node says: ${problem.message}.`); });
}

const SHAPES = {
  Text: (bytes) => new TextDecoder().decode(bytes).replace(/[^\n\t]/gu, visible),
  JSON: (bytes) => visible(JSON.stringify(JSON.parse(new TextDecoder().decode(bytes)), null, 1)).replaceAll('\\u{a}', '\n'),
  Hex: (bytes) => [...bytes].map((byte, n) => byte.toString(16).padStart(2, '0') + (n % 16 === 15 ? '\n' : ' ')).join(''),
};

function show(whole, shape, data) {
  const bytes = whole.subarray(0, SHOWN_BYTES);
  const can = (name) => { try { return SHAPES[name](bytes); } catch { return null; } };
  const choose = (name) => {
    say(data, can(name) + (whole.length > bytes.length ? `\n… ${many(whole.length - bytes.length, 'byte')} more` : ''));
    for (const button of shape.children) button.setAttribute('aria-pressed', button.textContent === name);
  };
  swap(shape, Object.keys(SHAPES).filter((name) => can(name) !== null).map((name) => h('button', { type: 'button', onclick: () => choose(name) }, name)));
  choose(can('JSON') !== null ? 'JSON' : can('Text').includes('\ufffd') ? 'Hex' : 'Text');
}
