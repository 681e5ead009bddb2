//! Cost of the lock history alone, without Raft and network: `cargo bench -p rowlock-history --bench history
//! [-- <folder>]`.
//!
//! The folder decides the disk; by default a temporary one. Prints one line per figure. The CPU time is that
//! of the process, so of apply's side, the history's thread and sled's.

#![allow(
    clippy::disallowed_methods,
    reason = "reads what the system knows of this process, which nothing simulates"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::time;
use rowlock_history::{Filter, History, HistoryConfig, HistorySink, Key};
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::outcome::{LockEvent, LockEventKind, Why};
use rowlock_types::metrics::Metrics;

/// Events told for the figures of writing and reading.
const EVENTS: i64 = 1_000_000;
/// Locks, each taken by one session again and again.
const LOCKS: i64 = 256;
/// Cycles of a lock in one log entry.
const FOLDED: i64 = 8;
/// Events between two pauses, so that the queue is never full.
const BREATH: i64 = 24_000;
/// Events between snapshots of the state.
const SNAPSHOT_EVERY: i64 = 150_000;
/// What a busy node tells, and for how long.
const PACED_PER_SECOND: i64 = 30_000;
const PACED_FOR: Duration = Duration::from_secs(5);

/// The locks and sessions of a node that does nothing but lock and unlock.
struct Clients {
    locks: Vec<String>,
    paths: Vec<String>,
    addresses: Vec<String>,
    next: i64,
    begun_ms: i64,
}

impl Clients {
    fn new() -> Clients {
        Clients {
            locks: (0..LOCKS).map(|n| format!("/rowlock/locks/orders%2F{n}")).collect(),
            paths: (0..LOCKS).map(|n| format!("/rowlock/locks/orders%2F{n}/_l-0000000000")).collect(),
            addresses: (0..LOCKS).map(|n| format!("127.0.0.1:{}", 40_000 + n)).collect(),
            next: 1,
            begun_ms: time::wall_ms(),
        }
    }

    /// A lock is taken and given back: three events of two commands. The clock goes on by a millisecond in 20
    /// cycles.
    fn cycle(&mut self, sink: &dyn HistorySink) {
        let n = self.next / 2 % LOCKS;
        let which = usize::try_from(n).expect("there are few");
        let event = |zxid: i64, kind| LockEvent {
            zxid: Zxid(zxid),
            time_ms: self.begun_ms + zxid / 40,
            lock: &self.locks[which],
            path: &self.paths[which],
            token: FencingToken(self.next),
            session: SessionId(0x0100_0000_0000_0000 + n),
            address: &self.addresses[which],
            label: b"",
            acl: Acl::open_entries(),
            lock_acl: Acl::open_entries(),
            mode: Mode::Exclusive,
            is_acquired: true,
            kind,
        };
        sink.lock(&event(self.next, LockEventKind::Requested { ahead: 0 }));
        sink.lock(&event(self.next, LockEventKind::Granted { waited_ms: 0 }));
        let gone = LockEventKind::Gone { held_ms: Some(3), waited_ms: 0, why: Why::Released };
        sink.lock(&event(self.next + 1, gone));
        self.next += 2;
    }

    fn entry(&mut self, sink: &dyn HistorySink) -> i64 {
        (0..FOLDED).for_each(|_| self.cycle(sink));
        sink.applied();
        3 * FOLDED
    }
}

/// Processor time of this process, from the clock ticks that the system counts.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux tells");
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}

/// How often the threads of this process that have `name` have gone to sleep, and their processor time.
fn thread(name: &str) -> (u64, Duration) {
    let (mut sleeps, mut ran) = (0, Duration::ZERO);
    for task in std::fs::read_dir("/proc/self/task").expect("Linux tells").flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() != name {
            continue;
        }
        let status = read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sleeps += line.map_or(0, |count| count.trim().parse::<u64>().expect("a number"));
        let first = read("schedstat").split_whitespace().next().map(str::to_owned);
        ran += Duration::from_nanos(first.map_or(0, |ns| ns.parse().expect("a number")));
    }
    (sleeps, ran)
}

fn filter(lock: Option<String>, limit: usize) -> Filter {
    Filter { lock, session: None, since_ms: 0, before: Key::MAX, limit }
}

fn start(dir: &Path) -> (History, Arc<dyn HistorySink>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::default());
    let (history, sink) = History::start(dir, HistoryConfig::default(), metrics.clone());
    (history, sink, metrics)
}

async fn ask(history: &History, filter: Filter) -> usize {
    let deadline = time::now() + Duration::from_secs(60);
    history.page(filter, deadline).await.expect("an answer in time").entries.len()
}

fn per(took: Duration, count: u64) -> f64 {
    took.as_secs_f64() * 1e6 / count as f64
}

/// As fast as it goes, from the first event to the closed store.
async fn write(dir: &Path) {
    let (history, sink, metrics) = start(dir);
    let mut clients = Clients::new();
    let (begun, cpu_before) = (time::now(), cpu());
    let (mut told, mut on_apply) = (0, Duration::ZERO);
    while told < EVENTS {
        let since = time::now();
        let mut breath = 0;
        while breath < BREATH {
            breath += clients.entry(&*sink);
        }
        on_apply += since.elapsed();
        if told / SNAPSHOT_EVERY < (told + breath) / SNAPSHOT_EVERY {
            sink.frozen(Zxid(clients.next - 1));
        }
        told += breath;
        ask(&history, filter(None, 1)).await;
    }
    history.close().await;
    let (took, cpu) = (begun.elapsed(), cpu() - cpu_before);
    let events = metrics.history_records_total.get();
    println!(
        "written: {events} events, {:.0} events/s, {:.2} us CPU per event, {:.2} us of it by apply; {} dropped",
        events as f64 / took.as_secs_f64(),
        per(cpu, events),
        per(on_apply, events),
        metrics.history_dropped_total.get(),
    );
}

/// As a busy node does it.
async fn paced(dir: &Path) {
    let (history, sink, metrics) = start(dir);
    let mut clients = Clients::new();
    clients.cycle(&*sink);
    sink.applied();
    ask(&history, filter(None, 1)).await;
    let (begun, (sleeps_before, ran_before), all_before) = (time::now(), thread("history"), cpu());
    let mut told = 0;
    while begun.elapsed() < PACED_FOR {
        let due = i64::try_from(begun.elapsed().as_millis()).expect("short") * PACED_PER_SECOND / 1_000;
        while told < due {
            told += clients.entry(&*sink);
        }
        time::sleep(Duration::from_millis(1)).await;
    }
    let (sleeps, ran) = thread("history");
    let all = cpu() - all_before;
    ask(&history, filter(None, 1)).await;
    let events = metrics.history_records_total.get();
    println!(
        "at {PACED_PER_SECOND} events/s: {:.2} us of the thread per event ({:.2} of the process), {:.0} wake-ups/s; \
         {} dropped",
        per(ran - ran_before, events),
        per(all, events),
        (sleeps - sleeps_before) as f64 / PACED_FOR.as_secs_f64(),
        metrics.history_dropped_total.get(),
    );
    history.close().await;
}

/// The last 50 events of one lock after the other, and all of one lock.
async fn read(dir: &Path) {
    let (history, _sink, _metrics) = start(dir);
    let lock = |n: i64| Some(format!("/rowlock/locks/orders%2F{}", n % LOCKS));
    let since = time::now();
    ask(&history, filter(lock(0), 50)).await;
    println!("first question after the start: {:?}", since.elapsed());
    let since = time::now();
    let mut questions = 0;
    while since.elapsed() < Duration::from_secs(3) {
        ask(&history, filter(lock(questions), 50)).await;
        questions += 1;
    }
    println!(
        "the last 50 events of a lock: {:.0} questions/s",
        questions as f64 / since.elapsed().as_secs_f64()
    );
    let since = time::now();
    let found = ask(&history, filter(lock(7), 1_000_000)).await;
    println!("all events of a lock: {found} in {:?}", since.elapsed());
    let since = time::now();
    let found = ask(&history, filter(Some("/rowlock/locks/none".to_owned()), 50)).await;
    println!("a lock that was never taken: {found} in {:?}", since.elapsed());
    history.close().await;
}

fn size_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            if entry.path().is_dir() {
                size_of(&entry.path())
            } else {
                entry.metadata().map_or(0, |m| m.len())
            }
        })
        .sum()
}

async fn run(dir: &Path) {
    paced(&dir.join("paced")).await;
    write(&dir.join("whole")).await;
    println!("on the disk: {:.0} MB", size_of(&dir.join("whole")) as f64 / 1e6);
    read(&dir.join("whole")).await;
}

fn main() {
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.map_or_else(|| temporary.path().to_owned(), Into::into);
    for part in ["paced", "whole"] {
        std::fs::create_dir_all(dir.join(part)).expect("a folder for each");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(run(&dir));
}
