// What this page asks its node. The token lives in this tab and goes out in a header.

const KEY = 'rowlock-token';
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

// A refusal, with what the node says of it; status 0: there was no answer.
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

function headers(more) {
  const kept = token.get();
  return kept ? { ...more, Authorization: `Bearer ${kept}` } : { ...more };
}

async function send(path, options, signal) {
  try {
    return await fetch(path, { cache: 'no-store', credentials: 'omit', redirect: 'error', ...options, signal });
  } catch (error) {
    if (signal?.aborted && signal.reason?.name !== 'TimeoutError') throw error;
    throw new Problem(0, 'this node does not answer');
  }
}

async function refuse(response) {
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.detail ?? `status ${response.status}`);
}

// The document at `path`. Gives up after `patience` milliseconds.
export async function get(path, signal, patience = 6000) {
  const limit = AbortSignal.timeout(patience);
  const response = await send(path, { headers: headers() }, signal ? AbortSignal.any([signal, limit]) : limit);
  if (!response.ok) await refuse(response);
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, 'the answer broke off');
  }
}

// The bytes at `path`.
export async function raw(path, signal) {
  const response = await send(path, { headers: headers() }, signal);
  if (!response.ok) await refuse(response);
  return new Uint8Array(await response.arrayBuffer());
}

// Status and document of any request.
export async function call(method, path, body) {
  const options = { method, headers: headers(body && { 'Content-Type': 'application/json' }) };
  if (body) options.body = JSON.stringify(body);
  const response = await send(path, options, AbortSignal.timeout(75000));
  return { status: response.status, document: await response.json().catch(() => null) };
}

export const wait = (time, signal) => new Promise((done) => {
  const timer = setTimeout(done, time);
  signal?.addEventListener('abort', () => { clearTimeout(timer); done(); }, { once: true });
});

const shown = (signal) => (document.hidden ? new Promise((done) => {
  const look = () => { if (!document.hidden || signal.aborted) { document.removeEventListener('visibilitychange', look); done(); } };
  document.addEventListener('visibilitychange', look);
  signal.addEventListener('abort', look, { once: true });
}) : null);

// Calls `look` again and again until `signal`: after `every` milliseconds, when told to by `hurry()`, and ever
// more slowly while there is no answer. A page that nobody sees asks nothing.
export function poll(look, every, signal) {
  let hurried = () => {};
  let again = false;
  (async () => {
    let failures = 0;
    while (!signal.aborted) {
      await shown(signal);
      if (signal.aborted) return;
      again = false;
      try {
        await look(signal);
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        failures += 1;
        if (!(error instanceof Problem)) console.error(error);
      }
      if (again) continue;
      const pause = failures ? Math.min(10000, Math.max(every, 500 * 2 ** Math.min(failures, 5))) : every;
      await Promise.race([wait(pause, signal), new Promise((go) => { hurried = go; })]);
    }
  })();
  return () => { again = true; hurried(); };
}

// Server-sent events by fetch, which can send a token (EventSource cannot). Goes on after the last id. Calls
// `told` with each event and `state` with true while the stream is open.
export async function events(path, told, state, signal) {
  let last = null;
  let failures = 0;
  while (!signal.aborted) {
    await shown(signal);
    const quiet = new AbortController();
    const until = AbortSignal.any([signal, quiet.signal]);
    let timer = 0;
    // A stream says something every 15 seconds. A silent one is a dead one.
    const heard = () => { clearTimeout(timer); timer = setTimeout(() => quiet.abort(), 40000); };
    const hide = () => { if (document.hidden) quiet.abort(); };
    document.addEventListener('visibilitychange', hide);
    try {
      heard();
      const options = { headers: headers({ Accept: 'text/event-stream', ...(last && { 'Last-Event-ID': last }) }) };
      const response = await send(path, options, until);
      if ([401, 403, 404].includes(response.status)) return;
      if (!response.ok) await refuse(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      state(true);
      failures = 0;
      let rest = '';
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        heard();
        const blocks = (rest + value).split('\n\n');
        rest = blocks.pop();
        for (const block of blocks) {
          let data = null;
          for (const line of block.split('\n')) {
            if (line.startsWith('id: ')) last = line.slice(4);
            if (line.startsWith('data: ')) data = line.slice(6);
          }
          if (data !== null) told(JSON.parse(data));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
    } finally {
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', hide);
      quiet.abort();
    }
    state(false);
    failures += 1;
    await wait(Math.min(10000, 500 * 2 ** Math.min(failures, 5)), signal);
  }
}
