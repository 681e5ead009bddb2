// Sessions: which clients are connected, what they hold and what they wait for.

import { ask, clock, drawFacts, fact, h, href, isNews, keyed, many, moment, ms, name, number, say, swap, visible } from './dom.js';
import { call, get } from './net.js';

export function sessions(el, { live }) {
  const note = h('p', { class: 'muted', role: 'status' }, 'Loading…');
  const list = h('ul', { class: 'rows', 'aria-label': 'Sessions' });
  const how = h('p', { hidden: true }, 'They are shown with an operator’s token: make one with ',
    h('span', { class: 'code' }, 'rowlock token new NAME --role operator --file tokens'), ', set ', h('span', { class: 'code' }, 'token_file = "tokens"'), ' in ',
    h('span', { class: 'code' }, '[http]'), ' of cluster.toml, and enter it with the button Token.');
  swap(el, h('h1', {}, 'Sessions'), note, how, list);
  live(async (stop) => {
    const { sessions: shown, session_count: count, more } = await get('/v1/sessions?limit=500', stop);
    const hidden = shown.length === 0 && count > 0;
    say(note, count === 0 ? 'No sessions are open.' : `${many(count, 'session')}${more ? '; the first are shown' : ''}.`);
    how.hidden = !hidden;
    keyed(list, shown, (one) => one.session, (one) => makeRow(one));
  }, 2000, (problem) => { if (problem.status) say(note, `The node says: ${problem.message}.`); });
}

function makeRow(one) {
  const facts = h('span', { class: 'lock-facts' });
  const el = h('li', {}, h('a', { href: href('session', { id: one.session }) }, h('span', { class: 'lock-name code' }, one.session), facts));
  const update = (now) => {
    const key = JSON.stringify(now);
    if (facts.dataset.key === key) return;
    facts.dataset.key = key;
    swap(facts, now.locks_held > 0 && h('span', { class: 'tag held' }, `holds ${number(now.locks_held)}`),
      now.locks_waiting > 0 && h('span', { class: 'tag waits' }, `waits for ${number(now.locks_waiting)}`),
      h('span', { class: 'muted' }, visible(now.address ?? 'no connection here'), `, ${ms(now.timeout_ms)}`));
  };
  return { el, update };
}

export function session(el, { app, query, live }) {
  const id = query.get('id') ?? '';
  const end = h('button', { type: 'button', class: 'danger quiet', hidden: true, onclick: () => endSession(id, counts, note) }, 'End this session…');
  let counts = null;
  const note = h('p', { class: 'muted', role: 'status' });
  const facts = h('dl', { class: 'facts' });
  const places = h('ul', { class: 'rows', 'aria-label': 'Its znodes' });
  const log = h('ol', { class: 'past' });
  swap(el, h('p', { class: 'crumb' }, h('a', { href: '#/sessions' }, 'Sessions')), h('h1', { class: 'code' }, visible(id)),
    note, facts, end, places, h('h2', {}, 'History'), log);
  const asked = encodeURIComponent(id);
  live(async (stop) => {
    const [one] = (await get(`/v1/sessions?session=${asked}`, stop)).sessions;
    if (!counts) say(note, '');
    counts = one;
    end.hidden = !app.status?.may?.sessions;
    drawFacts(facts, fact('Timeout', ms(one.timeout_ms)), fact('Address', visible(one.address ?? 'no connection here')),
      fact('Holds', number(one.locks_held)), fact('Waits for', number(one.locks_waiting)));
    keyed(places, one.znodes ?? [], (znode) => znode.path, (znode) => {
      const path = znode.path.slice(0, znode.path.lastIndexOf('/'));
      const text = h('bdi', { class: 'lock-name' }, name(znode.place ? path : znode.path));
      return { el: h('li', {}, znode.place ? h('a', { href: href('lock', { path }) }, text, h('span', { class: 'tag' }, znode.place)) : h('p', {}, text)), update() {} };
    });
  }, 2000, (problem) => {
    if (!problem.status) return;
    end.hidden = true;
    const gone = problem.status === 404;
    if (gone) for (const list of [facts, places]) keyed(list, [], () => 0, () => null);
    if (!gone || !note.textContent.startsWith('It has ended')) say(note, gone ? 'This session has ended.' : `The node says: ${problem.message}.`);
  });
  live(async (stop) => {
    const { entries } = await get(`/v1/history?session=${asked}&limit=100`, stop);
    if (isNews(log, entries)) swap(log, entries.length ? entries.reverse().map((one) => h('li', {}, h('time', {}, clock(one.time_ms)), ' ', h('b', { class: one.event }, one.event), ' ',
      one.lock ? h('a', { href: href('lock', { path: one.lock }) }, h('bdi', {}, name(one.lock))) : visible(one.reason ?? ''))) : h('li', { class: 'muted' }, 'Nothing yet.'));
  }, 4000);
}

async function endSession(id, counts, note) {
  const field = h('input', { name: 'confirm', autocomplete: 'off', spellcheck: 'false' });
  const form = await ask('End the session', [
    h('p', {}, `It holds ${many(counts?.locks_held ?? 0, 'lock')} and waits for ${number(counts?.locks_waiting ?? 0)}. `,
      'Its locks pass to the next waiters at once, and its ephemeral znodes are deleted. A client that is cut off may believe that it holds its locks until its timeout is over: ',
      'the systems it writes to must check fencing tokens. This is recorded in the log of this node, and in its audit log if there is one.'),
    h('label', {}, 'Type the session: ', h('span', { class: 'code' }, visible(id)), field)],
  { button: 'End it', danger: true, check: () => field.value === id });
  if (!form) return;
  try {
    const { status, document: answer } = await call('DELETE', `/v1/sessions/${encodeURIComponent(id)}`);
    say(note, status !== 200 ? `The node says: ${answer?.detail ?? status}.` : answer.ended ? 'It has ended.' : 'The session had ended before.');
  } catch {
    say(note, 'No answer: check whether the session is still there.');
  }
}
