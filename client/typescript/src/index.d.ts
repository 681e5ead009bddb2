/// <reference lib="esnext.disposable" />
/** Locks of a Rowlock cluster by HTTP. All times are in milliseconds. */

/** All errors of this package. */
export class RowlockError extends Error {}
/** Somebody else has the lock, and `timeoutMs` was 0. `holder` is what the server says about them. */
export class Busy extends RowlockError {
  readonly holder: Holder | null;
}
/** The time is over. The place in the queue was given back, or goes with the lease. */
export class TimedOut extends RowlockError {}
/** The lease has ended: what it held is free, and its place in the queue is gone. */
export class LeaseOver extends RowlockError {}
/** A write came too late: the lock was lost. A copy of it whose answer was lost may have taken effect before. */
export class Stale extends RowlockError {}
/** The server does not allow it. `status` is that of HTTP; `problem` is the document of RFC 9457. */
export class Refused extends RowlockError {
  readonly status: number;
  readonly problem: Record<string, any>;
}

export interface Holder {
  token: string;
  place: string;
  label?: string | null;
  since_ms: number;
}

/** Why a lock is wanted that is held. Times are in milliseconds since 1970, by the clock of this machine. */
export interface Question {
  /** The path of the lock. */
  readonly lock: string;
  /** The token of the holder that is asked. */
  readonly token: bigint;
  readonly reason: string;
  /** Who asks, as the cluster knows it. */
  readonly by: string;
  readonly askedMs: number;
  /** The guard is lost then, and the cluster takes the lock away; null: never. */
  readonly revokedMs: number | null;
}

export interface AskOptions {
  /** 1,000 to 3,600,000: the cluster takes the lock away at that deadline. For an operator's token. */
  withinMs?: number;
  /** What the holder sees of you, beside what the cluster knows: up to 100 bytes. */
  label?: string;
  signal?: AbortSignal;
}

export interface RowlockOptions {
  /** Goes into `Authorization: Bearer`. */
  token?: string;
  /** The time of leases, 10,000 if it is left out. The locks of a program that has died are free after it. */
  ttlMs?: number;
  /** In the place of the global `fetch`: for certificates of your own, for example. */
  fetch?: typeof fetch;
  /** Gets each release without a caller that has failed. Left out: a warning on the console. */
  onUnreleased?: (lock: string, error: Error) => void;
  /** Gets the waits and holds. Of OpenTelemetry: `otelObserver` of `rowlock/otel`. */
  observer?: Observer;
}

/** Gets the waits and holds of a client. What it throws is a warning on the console. */
export interface Observer {
  /** An acquire begins; `waited` follows in any case. `name` is the metrics name. */
  waiting?(name: string, lock: string): void;
  /** An acquire has ended. */
  waited?(wait: Wait): void;
  /** A hold has ended. */
  held?(hold: Hold): void;
}

/** An acquire that has ended. */
export interface Wait {
  /** The metrics name. */
  readonly name: string;
  /** The lock itself: for spans, not for metrics. */
  readonly lock: string;
  /** Whether the lock was found taken; false also where no node has said so. */
  readonly contended: boolean;
  /** `lost` is the position in the queue. */
  readonly outcome: "granted" | "busy" | "timed_out" | "lost" | "canceled" | "refused" | "failed";
  /** From the call to its end. */
  readonly seconds: number;
}

/** A hold that has ended. */
export interface Hold {
  readonly name: string;
  readonly lock: string;
  readonly outcome: "released" | "lost";
  /** From the grant to the release or the loss. */
  readonly seconds: number;
}

export interface AttemptOptions {
  /** Left out: waits without end. 0: takes no place in the queue. */
  timeoutMs?: number;
  /** Ends the attempt, which rejects with the signal's reason; its place in the queue is given back. */
  signal?: AbortSignal;
  /** Is called with the position in the queue. */
  onWaiting?: (position: number) => void;
  /** For deadlock detection: attempts of one owner are one program's that does one thing at a time. */
  owner?: string;
  /**
   * False: no timer keeps the lock. Call `Guard.keepAlive` in time; nothing notices that the program is late, and
   * `Guard.signal` is not aborted before the program reads `Guard.lost`.
   */
  keepAlive?: boolean;
  /** What the observer gets as the name: one of a few, not of one for each lock; "default" if it is left out. */
  metricsName?: string;
}

export interface LockOptions extends AttemptOptions {
  mode?: "exclusive" | "shared" | "permits";
  permits?: number;
  limit?: number;
  /** What people see in the queue, up to 256 bytes. */
  label?: string;
}

export interface CampaignOptions extends AttemptOptions {
  /** What others see of you, such as an address: up to 256 bytes. */
  value?: string;
}

/** A cluster. `urls` are those of the nodes' `api` listeners; every lock has a lease of its own. */
export class Rowlock {
  constructor(urls: string | readonly string[], options?: RowlockOptions);
  /**
   * A client by `ROWLOCK_API` (URLs with commas between; else http://127.0.0.1:8481) and `ROWLOCK_TOKEN`. `options`
   * count more. Throws where `ROWLOCK_TLS_CA` is set without Node's own `NODE_EXTRA_CA_CERTS`.
   */
  static fromEnv(options?: RowlockOptions): Rowlock;
  /**
   * Takes the lock of this name, whose levels are separated by slashes; a name that begins with a slash is the path
   * of a znode. `timeoutMs` and `signal` are kept also where nodes do not answer. Rejects with `Busy`, `TimedOut`, `LeaseOver`, `Refused` or the reason of
   * `signal`; none leaves a place behind.
   */
  lock(name: string, options?: LockOptions): Promise<Guard>;
  /** Takes the lock, runs `work`, and gives the lock back, whatever happens. Gives what `work` gives. */
  withLock<T>(name: string, options: LockOptions, work: (guard: Guard) => T | Promise<T>): Promise<Awaited<T>>;
  /**
   * Asks the holders of this lock to give it back: they learn it with their next keep-alive (`Guard.asked`). `reason`
   * has at most 256 bytes. Gives how many holders were asked; 0: the lock is free. Rejects with `TimedOut` or
   * `Refused`.
   */
  ask(name: string, reason: string, options?: AskOptions): Promise<number>;
  /** Resolves when the releases under way are over: before `process.exit`, for example. */
  flush(): Promise<void>;
  election(name: string): Election;
  /** What happens to one lock, to those below a prefix, or to all, without end until `signal` is aborted. */
  watch(options?: WatchOptions): AsyncGenerator<WatchEvent, void, void>;
}

/** A lock that is held, or the lead of an election. */
export interface Guard {
  /** The fencing token: give it to what you write to. Tokens of a lock rise. */
  readonly token: bigint;
  /** Whether the lock may be somebody else's: stop then. Also true after `release`. */
  readonly lost: boolean;
  /** Is aborted when the lock is lost or released. Its reason is a `LeaseOver` when the lock is lost. */
  readonly signal: AbortSignal;
  /**
   * Is aborted when the holder is asked to give the lock back; its reason is the `Question`. The lock stays held, until
   * `revokedMs` at most: release it where the work can be cut.
   */
  readonly asked: AbortSignal;
  /** The newest question to this holder, or null. */
  readonly question: Question | null;
  /**
   * Keeps the lock for another time of its lease from now; whether it is held. For locks taken with `keepAlive: false`:
   * call it at least each third of the lease's time, check `lost` before each step, and give each write the token.
   */
  keepAlive(): Promise<boolean>;
  /** Asks the cluster whether the lock is held by this token. */
  verify(): Promise<boolean>;
  /**
   * Gives the lock back; whether it was still held. It never rejects, and may be repeated. False also when no
   * node has answered before the lease's deadline: then nobody can know. What this client asks of the same lock from
   * now on is sent behind it.
   */
  release(): Promise<boolean>;
  /**
   * Releases without waiting for the answer, as the end of `withLock`, `lead`, `using` and `await using` does. The
   * request leaves at once and is repeated until the lease's deadline; `onUnreleased` gets a failure. Resolves at once,
   * or with the answer where 1,024 releases are under way; `using` leaves the lock to its lease then.
   */
  releaseLater(): Promise<void>;
  [Symbol.dispose](): void;
  [Symbol.asyncDispose](): Promise<void>;
  /**
   * Makes a znode, only while this guard's token holds the lock; its version. Rejects with `Stale` where it does not,
   * and with `Refused` (409: there is one). It takes effect once.
   */
  create(path: string, data?: string | Uint8Array): Promise<number>;
  /** Sets the data of a znode, as `create`; its version. `Refused`: another `version` (412), no znode (404). */
  set(path: string, data: string | Uint8Array, version?: number): Promise<number>;
  /** Deletes a znode, as `set` changes one. */
  delete(path: string, version?: number): Promise<void>;
  /** Stops keep-alive, so that the lock is lost: for tests of what happens then. */
  silence(): void;
}

/** The largest token that a resource has seen: one for each resource. In memory. */
export class Fence {
  /** `seen` is the token that was stored beside the data. */
  constructor(seen?: bigint);
  /** The largest token so far. */
  readonly seen: bigint;
  /** Remembers `token` if none was larger; false: refuse the write. Await nothing between this and the write. */
  check(token: bigint): boolean;
}

/** The header in which a token travels to a service. */
export const FENCE_HEADER: "Rowlock-Fence";
/** Its value: the lock, percent-encoded, a semicolon, the token. */
export function fenceHeader(lock: string, token: bigint): string;

export interface Leader {
  value: string;
  token: bigint;
  sinceMs: number;
}

/** The queue of a lock; whoever holds it leads. */
export interface Election {
  /** Waits for the lead. Errors as for `Rowlock.lock`. `release` of the guard resigns. */
  campaign(options?: CampaignOptions): Promise<Guard>;
  /** Campaigns, runs `work` as the leader, and resigns, whatever happens. */
  lead<T>(options: CampaignOptions, work: (guard: Guard) => T | Promise<T>): Promise<Awaited<T>>;
  /** Who leads now. Rejects with `TimedOut` or `Refused`. */
  leader(options?: { signal?: AbortSignal }): Promise<Leader | null>;
  /** Who leads now, and each other leader afterwards, until `signal` is aborted. Short leads may be left out. */
  leaders(options?: { signal?: AbortSignal }): AsyncGenerator<Leader | null, void, void>;
}

export interface WatchOptions {
  /** The path of one lock, with `/locks/`. */
  lock?: string;
  /** The path above several locks. */
  prefix?: string;
  /** The `id` of an event: goes on behind it. */
  after?: string;
  signal?: AbortSignal;
}

export interface WatchEvent {
  /** Where to go on: all of this change has been told. Not every event has one. */
  id?: string;
  event: "requested" | "granted" | "converted" | "asked" | "released" | "lost" | "abandoned" | "gap" | (string & {});
  data: Record<string, any>;
}
