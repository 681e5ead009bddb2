// Draws the record below `#data`: things that last are elements whose place follows from the variables --t, --d
// (seconds) and --z (pixels per second); messages and the scale are drawn on a canvas, as far as they are in view.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const $ = (id) => document.getElementById(id);
  const plane = $('plane'), things = $('things'), canvas = $('canvas'), tip = $('tip'), root = document.documentElement;
  const AXIS = 48, FAULTS = 168, NAV = 76, LIFE = 10, KINDS = 6;
  // A message on its way for longer (seconds) was held up.
  const LATE = 0.2;
  const HUES = [212, 142, 276, 24, 330, 176, 52, 0];
  const end = data.end / 1e6;
  const lanes = data.lanes.map(([name, kind, born]) => ({ name, kind, born: born / 1e6 }));
  // A narrow column has no room for folders.
  const last = data.locks.map((name) => name.slice(name.lastIndexOf('/') + 1));
  const short = new Set(last).size === last.length ? last : data.locks;
  const hue = (lock) => HUES[lock % HUES.length];
  // More happens beside the line of a client than beside that of a node.
  const weight = (lane) => lane.kind === 'client' ? 1.3 : 0.85;
  const lefts = [];
  let z = 48;

  const laneLeft = (lane) => lefts[lane];
  const laneWidth = (lane) => lefts[lane + 1] - lefts[lane];
  const lifeX = (lane) => laneLeft(lane) + LIFE;
  const seconds = (s) => s.toFixed(3) + ' s';
  const length = (s) => s >= 1 ? s.toFixed(2) + ' s' : s >= 0.001 ? (s * 1000).toFixed(1) + ' ms' : Math.round(s * 1e6) + ' µs';

  // ---- things that last -------------------------------------------------------------------------------------------

  function put(kind, from, until, text, about) {
    const thing = document.createElement('div');
    thing.className = kind;
    thing.style.setProperty('--t', from);
    thing.style.setProperty('--d', Math.max(0, until - from));
    if (text) {
      const label = document.createElement('span');
      label.className = 'label';
      for (const row of text.split('\n')) {
        const b = document.createElement('b');
        b.textContent = row;
        label.append(b);
      }
      thing.append(label);
    }
    thing.lasts = until - from;
    if (about) thing.tip = about;
    things.append(thing);
    return thing;
  }

  // Sets where a thing stands from left to right; called again when the width changes.
  const placed = [];
  function place(thing, left, width) { placed.push([thing, left, width]); return thing; }
  function placeAll() {
    for (const [thing, left, width] of placed) {
      thing.style.left = left() + 'px';
      thing.style.width = width() + 'px';
      thing.classList.toggle('narrow', width() < 27 && thing.matches('.holds, .waits'));
      thing.classList.toggle('upright', width() < 44 && thing.matches('.fault'));
    }
  }

  // Gives each spell a slot beside those that go on at the same time: `slot`, and `slots` of its bunch.
  function arrange(spells, least) {
    let bunch = [], ends = [], until = -1;
    const close = () => { for (const s of bunch) s.slots = ends.length; bunch = []; ends = []; };
    for (const s of spells) {
      if (s.from >= until) close();
      let slot = ends.findIndex((e) => e <= s.from);
      if (slot < 0) slot = ends.length;
      ends[slot] = Math.max(s.until, s.from + least);
      until = Math.max(until, ends[slot]);
      s.slot = slot;
      bunch.push(s);
    }
    close();
  }

  function drawLanes() {
    lanes.forEach((lane, i) => {
      place(put('life', lane.born, end), () => lifeX(i) - 1, () => 2);
      const inLane = data.spells.filter((s) => s[0] === i)
        .map(([, from, until, what, a, b]) => ({ from: from / 1e6, until: until / 1e6, what, a, b }));
      for (const s of inLane.filter((s) => s.what === 'down' || s.what === 'paused')) {
        const word = s.what === 'down' ? s.a : 'paused';
        const about = `${lane.name}: ${word}\n${seconds(s.from)} to ${seconds(s.until)} (${length(s.until - s.from)})`;
        place(put(s.what, s.from, s.until, word, about), () => laneLeft(i) + 2, () => laneWidth(i) - 6);
      }
      const beside = inLane.filter((s) => s.what !== 'down' && s.what !== 'paused');
      arrange(beside, 0);
      for (const s of beside) {
        const lock = data.locks[s.a];
        const [text, about] = {
          leads: () => [`leads\nterm ${s.a}`, `${lane.name} leads the cluster in term ${s.a}`],
          holds: () => s.b < 0 ? [short[s.a], `${lane.name} believes that it holds ${lock}; this design has no tokens`]
            : [s.slots > 1 ? `${s.b}\n${short[s.a]}` : `${short[s.a]}\ntoken ${s.b}`, `${lane.name} believes that it holds ${lock}\ntoken ${s.b}`],
          waits: () => [short[s.a], `${lane.name} waits for ${lock}`],
        }[s.what]();
        const thing = put(s.what, s.from, s.until, text, `${about}\n${seconds(s.from)} to ${seconds(s.until)} (${length(s.until - s.from)})`);
        if (s.what !== 'leads') thing.style.setProperty('--h', hue(s.a));
        const width = () => (laneWidth(i) - LIFE - 12) / s.slots;
        place(thing, () => lifeX(i) + 5 + s.slot * width(), () => width() - 2);
      }
    });
  }

  function drawRegions() {
    for (const [from, until, sides, walls] of data.regions) {
      const [a, b] = [from / 1e6, until / 1e6];
      sides.forEach((side, i) => {
        if (side < 0) return;
        const name = String.fromCharCode(65 + side % 26);
        const friends = lanes.filter((_, j) => sides[j] === side).map((l) => l.name).join(', ');
        place(put(`side s${side % 4}`, a, b, null, `Partition: ${friends} reach each other and none of the other side`),
          () => laneLeft(i), () => laneWidth(i));
        place(put('tag', a, a, 'side ' + name), () => laneLeft(i) + laneWidth(i) - 48, () => 44);
        if (i > 0 && sides[i - 1] >= 0 && sides[i - 1] !== side) {
          place(put('fence', a, b), () => laneLeft(i) - 2, () => 4);
        }
      });
      if (walls.length === 0) continue;
      const names = (ids) => ids.map((id) => lanes[id].name).join(', ');
      // One line for each host and whom it cannot reach.
      const between = new Map(), oneWay = new Map();
      for (const [x, y, both] of walls) {
        const map = both ? between : oneWay;
        map.set(x, [...(map.get(x) || []), y]);
      }
      const text = [...[...between].map(([x, ys]) => `${lanes[x].name} ✕ ${names(ys)}`), ...[...oneWay].map(([x, ys]) => `${lanes[x].name} ✕→ ${names(ys)}`)];
      const about = [...[...between].map(([x, ys]) => `Nothing passes between ${lanes[x].name} and ${names(ys)}`), ...[...oneWay].map(([x, ys]) => `Nothing gets from ${lanes[x].name} to ${names(ys)}; the other way is open`)];
      const ends = walls.flatMap(([x, y]) => [x, y]);
      const [left, right] = [Math.min(...ends), Math.max(...ends)];
      place(put('wall', a, b, text.join('\n'), about.join('\n')), () => lifeX(left), () => lifeX(right) - lifeX(left));
    }
  }

  function drawFaults() {
    const faults = data.faults.map(([from, until, text]) => ({ from: from / 1e6, until: (until < 0 ? from : until) / 1e6, text }));
    arrange(faults, 0.4);
    for (const f of faults) {
      const took = f.until > f.from ? ` to ${seconds(f.until)}` : '';
      const width = () => (FAULTS - 14) / f.slots;
      place(put('fault', f.from, f.until, f.text, `${f.text}\n${seconds(f.from)}${took}`), () => AXIS + 4 + f.slot * width(), () => width() - 3);
    }
    for (const [at, text] of data.violations) put('violation', at / 1e6, at / 1e6, '✕ ' + text, `${text}\n${seconds(at / 1e6)}`);
  }

  function drawHeads() {
    const heads = $('heads');
    heads.replaceChildren();
    const add = (text, left, width, kind) => {
      const head = document.createElement('div');
      head.textContent = text;
      head.className = kind;
      Object.assign(head.style, { left: left + 'px', width: width + 'px' });
      heads.append(head);
    };
    add('sec', 0, AXIS, 'dim');
    add('broken on purpose', AXIS, FAULTS, 'dim');
    lanes.forEach((lane, i) => add(lane.name, laneLeft(i), laneWidth(i), lane.kind));
  }

  // ---- messages and the scale -------------------------------------------------------------------------------------

  const labels = data.labels.map(([text, kind]) => text ? { text, kind } : { text: 'the rest of a long message', kind: 'rest' });
  const messages = data.messages.map(([from, to, sent, ended, lost, label, bytes]) =>
    ({ from, to, sent: sent / 1e6, ended: ended < 0 ? null : ended / 1e6, lost: lost === 1, label: labels[label], bytes }));
  const longest = messages.reduce((most, m) => Math.max(most, (m.ended ?? m.sent) - m.sent), 0);
  const hidden = new Set();
  let onlyLost = false, seen = [], pointed = null;

  function firstFrom(t) {
    let [low, high] = [0, messages.length];
    while (low < high) { const mid = (low + high) >> 1; if (messages[mid].sent < t) low = mid + 1; else high = mid; }
    return low;
  }

  function line(m, top) {
    const [x1, x2] = [lifeX(m.from), lifeX(m.to)];
    const y1 = m.sent * z - top;
    const arrives = m.ended ?? m.sent + 0.002;
    const y2 = arrives * z - top;
    return m.lost || m.ended === null ? [x1, y1, x1 + (x2 - x1) * 0.55, y1 + (y2 - y1) * 0.55] : [x1, y1, x2, y2];
  }

  function draw() {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(name).trim();
    const ratio = window.devicePixelRatio || 1;
    const width = laneLeft(lanes.length), height = window.innerHeight - NAV;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = width + 'px';
      canvas.style.height = height + 'px';
    }
    const top = canvas.getBoundingClientRect().top - plane.getBoundingClientRect().top;
    const g = canvas.getContext('2d');
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    const [t0, t1] = [top / z, (top + height) / z];

    // The scale.
    const step = [0.00001, 0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60].find((s) => s * z >= 38) || 300;
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    g.font = '11.5px system-ui, sans-serif';
    g.textAlign = 'right';
    for (let n = Math.max(0, Math.ceil(t0 / step)); n * step <= Math.min(t1, end); n++) {
      const y = Math.round(n * step * z - top) + 0.5;
      g.strokeStyle = color('--grid');
      g.beginPath(); g.moveTo(AXIS, y); g.lineTo(width, y); g.stroke();
      g.fillStyle = color('--dim');
      g.fillText((n * step).toFixed(digits), AXIS - 8, Math.max(y + 4, 12));
    }

    seen = [];
    for (let i = firstFrom(t0 - longest - 0.01); i < messages.length && messages[i].sent <= t1; i++) {
      const m = messages[i];
      if ((m.ended ?? m.sent) < t0 || hidden.has(m.label.kind) || (onlyLost && !m.lost)) continue;
      seen.push(m);
    }
    // Few messages are what the reader looks for; many are only a ground for the rest.
    canvas.style.zIndex = seen.length < 250 ? 7 : 2;
    const isLate = (m) => (m.ended ?? m.sent) - m.sent > LATE;
    const lost = seen.filter((m) => m.lost), late = seen.filter((m) => !m.lost && isLate(m));
    const whole = seen.filter((m) => !m.lost && !isLate(m));
    g.lineWidth = 1;
    g.strokeStyle = color('--message');
    g.globalAlpha = Math.min(0.85, Math.max(0.012, 130 / (whole.length + 1)));
    g.beginPath();
    for (const m of whole) { const [x1, y1, x2, y2] = line(m, top); g.moveTo(x1, y1); g.lineTo(x2, y2); }
    g.stroke();
    if (whole.length < 250) for (const m of whole) if (m.ended !== null) arrow(g, line(m, top), color('--message'));
    g.globalAlpha = Math.min(0.95, Math.max(0.04, 14 / (late.length + 1)));
    g.strokeStyle = color('--late');
    g.beginPath();
    for (const m of late) { const [x1, y1, x2, y2] = line(m, top); g.moveTo(x1, y1); g.lineTo(x2, y2); }
    g.stroke();
    g.globalAlpha = Math.min(0.95, Math.max(0.16, 60 / (lost.length + 1)));
    g.strokeStyle = color('--bad');
    g.beginPath();
    for (const m of lost) {
      const [x1, y1, x2, y2] = line(m, top);
      g.moveTo(x1, y1); g.lineTo(x2, y2);
      g.moveTo(x2 - 3, y2 - 3); g.lineTo(x2 + 3, y2 + 3); g.moveTo(x2 + 3, y2 - 3); g.lineTo(x2 - 3, y2 + 3);
    }
    g.stroke();
    g.globalAlpha = 1;
    if (seen.length < 70) names(g, top, color('--dim'), color('--ground'));
    if (pointed) {
      const [x1, y1, x2, y2] = line(pointed, top);
      g.strokeStyle = color(pointed.lost ? '--bad' : '--link');
      g.lineWidth = 2.5;
      g.beginPath(); g.moveTo(x1, y1); g.lineTo(x2, y2); g.stroke();
    }
  }

  function arrow(g, [x1, y1, x2, y2], fill) {
    const angle = Math.atan2(y2 - y1, x2 - x1);
    g.fillStyle = fill;
    g.beginPath();
    g.moveTo(x2, y2);
    g.lineTo(x2 - 7 * Math.cos(angle - 0.4), y2 - 7 * Math.sin(angle - 0.4));
    g.lineTo(x2 - 7 * Math.cos(angle + 0.4), y2 - 7 * Math.sin(angle + 0.4));
    g.fill();
  }

  function names(g, top, ink, ground) {
    g.textAlign = 'center';
    g.lineWidth = 3;
    const taken = [];
    for (const m of seen) {
      const [x1, y1, x2, y2] = line(m, top);
      // Beside the sender, so that names of messages to many do not meet in the middle.
      const [x, y] = [x1 + (x2 - x1) * 0.3, y1 + (y2 - y1) * 0.3 - 3];
      const half = g.measureText(m.label.text).width / 2;
      if (taken.some(([a, b, c]) => Math.abs(c - y) < 12 && a < x + half && b > x - half)) continue;
      taken.push([x - half, x + half, y]);
      g.strokeStyle = ground; g.strokeText(m.label.text, x, y);
      g.fillStyle = ink; g.fillText(m.label.text, x, y);
    }
    g.lineWidth = 1;
  }

  function nearest(x, y) {
    let best = null, least = 6;
    const top = canvas.getBoundingClientRect().top - plane.getBoundingClientRect().top;
    for (const m of seen) {
      const [x1, y1, x2, y2] = line(m, top);
      const [dx, dy] = [x2 - x1, y2 - y1];
      const along = Math.min(1, Math.max(0, ((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy || 1)));
      const distance = Math.hypot(x - x1 - along * dx, y - y1 - along * dy);
      if (distance < least) [best, least] = [m, distance];
    }
    return best;
  }

  // ---- what the reader does ---------------------------------------------------------------------------------------

  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); follow(); });
  }

  const ZOOM_LEAST = Math.max(4, Math.min(40, (window.innerHeight - 120) / Math.max(end, 0.001)));
  const ZOOM_MOST = Math.max(ZOOM_LEAST * 2, Math.min(40000, 8e6 / Math.max(end, 0.001)));
  function zoomTo(wanted, y = window.innerHeight / 2) {
    const at = (y - plane.getBoundingClientRect().top) / z;
    z = Math.min(ZOOM_MOST, Math.max(ZOOM_LEAST, wanted));
    plane.style.setProperty('--z', z);
    plane.style.height = end * z + 30 + 'px';
    for (const [thing] of placed) {
      const height = thing.lasts * z;
      thing.classList.toggle('small', height < 29 && !thing.matches('.wall'));
      thing.classList.toggle('tiny', height < 13 && !thing.matches('.fault, .tag'));
    }
    $('zoom').value = 100 * Math.log(z / ZOOM_LEAST) / Math.log(ZOOM_MOST / ZOOM_LEAST);
    $('scale').textContent = z >= 1000 ? (z / 1000).toFixed(1) + ' px/ms' : Math.round(z) + ' px/s';
    if (at > 0) window.scrollBy(0, at * z - (y - plane.getBoundingClientRect().top));
    redraw();
  }
  function goTo(t) {
    const y = plane.getBoundingClientRect().top + window.scrollY + t * z;
    window.scrollTo({ top: y - window.innerHeight * 0.35, behavior: 'instant' });
    const flash = put('flash', t, t);
    setTimeout(() => flash.remove(), 1700);
  }
  const marks = [...data.faults.map((f) => f[0] / 1e6), ...data.violations.map((v) => v[0] / 1e6)].sort((a, b) => a - b);
  function jump(forward) {
    const now = (window.innerHeight * 0.35 - plane.getBoundingClientRect().top) / z;
    const mark = forward ? marks.find((t) => t > now + 0.02) : marks.findLast((t) => t < now - 0.02);
    if (mark !== undefined) goTo(mark);
  }

  // ---- the story --------------------------------------------------------------------------------------------------

  const story = $('story');
  const lines = data.story.map(([at, tone, text]) => {
    const button = document.createElement('button');
    const t = at / 1e6;
    button.className = tone;
    button.innerHTML = '<time></time><i></i><span></span>';
    button.children[0].textContent = t.toFixed(3);
    button.children[2].textContent = text;
    const lock = tone === 'lock' ? data.locks.findIndex((name) => text.includes(' ' + name + ' ') || text.includes(' ' + name + '.') || text.startsWith(name + ':')) : -1;
    if (lock >= 0) button.style.setProperty('--h', hue(lock));
    button.onclick = () => goTo(t);
    story.append(button);
    return { t, button };
  });
  let marked = [], firstMarked = null;
  function follow() {
    const above = plane.getBoundingClientRect().top;
    const [t0, t1] = [(NAV - above) / z, (window.innerHeight - above) / z];
    for (const { button } of marked) button.classList.remove('in');
    marked = lines.filter((l) => l.t >= t0 && l.t <= t1);
    for (const { button } of marked) button.classList.add('in');
    const first = marked[0] || lines.findLast((l) => l.t < t0);
    if (first && first !== firstMarked && !story.matches(':hover')) {
      firstMarked = first;
      story.scrollTop = first.button.offsetTop - story.clientHeight * 0.12;
    }
  }

  // ---- the beginning ----------------------------------------------------------------------------------------------

  function kinds() {
    const counts = new Map();
    for (const m of messages) counts.set(m.label.kind, (counts.get(m.label.kind) || 0) + 1);
    const box = (text, count, checked, change) => {
      const label = document.createElement('label');
      label.innerHTML = '<input type="checkbox"> <span></span> <span class="n"></span>';
      label.children[0].checked = checked;
      label.children[0].onchange = (e) => { change(e.target.checked); redraw(); };
      label.children[1].textContent = text;
      label.children[2].textContent = count === null ? '' : count.toLocaleString('en');
      $('kinds').append(label);
    };
    const drawn = messages.length < data.sent ? `${messages.length.toLocaleString('en')} of ${data.sent.toLocaleString('en')} messages drawn:` : 'messages:';
    const said = document.createElement('span');
    said.className = 'dim';
    said.textContent = drawn;
    $('kinds').append(said);
    box('only lost', data.lost, false, (on) => { onlyLost = on; });
    const ordered = [...counts].sort((a, b) => b[1] - a[1]);
    for (const [kind, count] of ordered.slice(0, KINDS)) box(kind, count, true, (on) => on ? hidden.delete(kind) : hidden.add(kind));
    const rest = ordered.slice(KINDS);
    if (rest.length > 0) {
      box('others', rest.reduce((sum, [, n]) => sum + n, 0), true, (on) => rest.forEach(([kind]) => on ? hidden.delete(kind) : hidden.add(kind)));
    }
    if (data.leftOut > 0) {
      const more = document.createElement('span');
      more.className = 'lost';
      more.textContent = `${data.leftOut.toLocaleString('en')} bars left out`;
      $('kinds').append(more);
    }
  }

  function resize() {
    const room = root.clientWidth - AXIS - FAULTS - 372;
    const parts = lanes.reduce((sum, lane) => sum + weight(lane), 0);
    const part = Math.max(74, Math.min(170, room / Math.max(1, parts)));
    lefts[0] = AXIS + FAULTS;
    lanes.forEach((lane, i) => { lefts[i + 1] = lefts[i] + Math.floor(part * weight(lane)); });
    $('chart').style.width = laneLeft(lanes.length) + 'px';
    drawHeads();
    placeAll();
    redraw();
  }

  function theme(name) { root.dataset.theme = name; redraw(); }

  drawLanes(); drawRegions(); drawFaults(); kinds();
  theme(window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  resize();
  zoomTo(z);
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has('theme')) theme(wanted.get('theme'));
  if (wanted.has('zoom')) zoomTo(Number(wanted.get('zoom')));
  if (wanted.has('at')) goTo(Number(wanted.get('at')));

  $('theme').onclick = () => theme(root.dataset.theme === 'dark' ? 'light' : 'dark');
  $('in').onclick = () => zoomTo(z * 1.5);
  $('out').onclick = () => zoomTo(z / 1.5);
  $('zoom').oninput = (e) => zoomTo(ZOOM_LEAST * (ZOOM_MOST / ZOOM_LEAST) ** (e.target.value / 100));
  $('prev').onclick = () => jump(false);
  $('next').onclick = () => jump(true);
  $('about').ontoggle = redraw;
  $('locks').onchange = (e) => story.classList.toggle('brief', !e.target.checked);
  window.addEventListener('scroll', redraw, { passive: true });
  window.addEventListener('resize', resize);
  window.addEventListener('wheel', (e) => {
    if (!e.ctrlKey || !e.target.closest('#chart')) return;
    e.preventDefault();
    zoomTo(z * Math.exp(-e.deltaY / 300), e.clientY);
  }, { passive: false });
  window.addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const act = { '+': () => zoomTo(z * 1.5), '=': () => zoomTo(z * 1.5), '-': () => zoomTo(z / 1.5), j: () => jump(true), k: () => jump(false) }[e.key];
    if (act) { e.preventDefault(); act(); }
  });
  plane.addEventListener('mousemove', (e) => {
    const box = canvas.getBoundingClientRect();
    const thing = e.target.closest('#things > *');
    const over = thing && thing.tip && !thing.matches('.side, .wall') ? null : nearest(e.clientX - box.left, e.clientY - box.top);
    if (over !== pointed) { pointed = over; redraw(); }
    const ended = over && (over.lost ? 'lost' : over.ended === null ? 'on its way when the record ends' : `arrives ${seconds(over.ended)} (after ${length(over.ended - over.sent)})`);
    const text = over ? `${lanes[over.from].name} → ${lanes[over.to].name}: ${over.label.text}\nsent ${seconds(over.sent)}, ${ended}; ${over.bytes} bytes` : thing && thing.tip;
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = Math.min(e.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';
    tip.style.top = Math.min(e.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
  });
  plane.addEventListener('mouseleave', () => { tip.hidden = true; pointed = null; redraw(); });
})();
