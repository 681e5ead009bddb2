/** Why a lock was not granted. */

/** All errors of this package. */
export class RowlockError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

/** Somebody else has the lock, and `timeoutMs` was 0. */
export class Busy extends RowlockError {
  /** @param {import("./index.js").Holder | null} holder What the server says about them. */
  constructor(holder) {
    super(`somebody else has the lock: ${JSON.stringify(holder)}`);
    this.holder = holder;
  }
}

/** The time is over. The place in the queue was given back, or goes with the lease. */
export class TimedOut extends RowlockError {}

/** The lease has ended: what it held is free, and its place in the queue is gone. */
export class LeaseOver extends RowlockError {}

/** A write came too late: the lock was lost. A copy of it whose answer was lost may have taken effect before. */
export class Stale extends RowlockError {}

/** The server does not allow it. */
export class Refused extends RowlockError {
  /**
   * @param {number} status That of HTTP.
   * @param {Record<string, any>} problem The document of RFC 9457.
   */
  constructor(status, problem) {
    super(`${status}: ${problem.detail || problem.title || "refused"}`);
    this.status = status;
    this.problem = problem;
  }
}
