/** Time. Nothing else of this package asks a clock. */

/** @type {{ uptime(): number } | undefined} */
const os = /** @type {any} */ (globalThis).process?.getBuiltinModule?.("node:os");

let last = { steady: performance.now(), wall: Date.now(), sum: 0 };

/**
 * Milliseconds on a clock that never goes back and also counts the time in which the machine sleeps: leases do,
 * too. In Node that is the uptime of the machine. Browsers have no such clock. There the longer step of two
 * clocks counts: a wall clock that is put forward makes leases end early, and never late.
 * @returns {number}
 */
export function now() {
  if (os) return os.uptime() * 1000;
  const [steady, wall] = [performance.now(), Date.now()];
  last = { steady, wall, sum: last.sum + Math.max(0, steady - last.steady, wall - last.wall) };
  return last.sum;
}

/**
 * Ends after `ms`, or as soon as `signal` is aborted. Does not keep a process running.
 * @param {number} ms @param {AbortSignal} [signal] @param {boolean} [keeps] Whether it keeps a process running.
 * @returns {Promise<void>}
 */
export function pause(ms, signal, keeps = true) {
  return new Promise((done) => {
    if (signal?.aborted) return done();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      done();
    };
    // Timers of more than 2^31 ms run at once.
    const timer = setTimeout(end, Math.min(Math.max(0, ms), 2 ** 31 - 1));
    if (!keeps) /** @type {any} */ (timer).unref?.();
    signal?.addEventListener("abort", end);
  });
}
