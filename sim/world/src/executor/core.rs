//! Shared core of a world, and the `World` through which env serves the running host.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::world::{Boxed, Conduit, Disk, Port, TaskId, TimerId, World};

use super::host::{Host, Life};
use super::processor::Processor;
use super::tasks::{Tasks, Woken};
use crate::clock::Clock;
use crate::disk::HostDisk;
use crate::heart::{Event, Heart};
use crate::network::Network;
use crate::rng::Rng;
use crate::time::{HostId, Nanos};
use crate::trace::{Trace, What};

/// Start of true time on every wall clock, apart from the host's own error: 14 November 2023.
const WALL_BEGIN_MS: i64 = 1_700_000_000_000;
/// Greatest difference between the hosts' wall clocks at the start.
const WALL_SPREAD_MS: usize = 50;
/// XORed into the seed of the hosts' speeds.
const SPEEDS: u64 = 0x7370_6565_6473;
const NOWHERE: usize = usize::MAX;

pub(super) struct Core {
    now: AtomicU64,
    /// Host of the running code.
    here: AtomicUsize,
    pub(super) woken: Woken,
    pub(super) state: Mutex<State>,
    network: Network,
    trace: Trace,
}

pub(super) struct State {
    pub(super) hosts: Vec<Host>,
    pub(super) tasks: Tasks,
    pub(super) events: BTreeMap<(Nanos, u64), Event>,
    /// Futures to drop as soon as the running code has returned.
    pub(super) graves: Vec<(HostId, Boxed<()>)>,
    /// Hosts whose power failed during a disk operation.
    pub(super) doomed: Vec<HostId>,
    pub(super) polls: u64,
    serial: u64,
    pub(super) choice: Rng,
    /// Random stream of durations.
    pub(super) pace: Rng,
    /// Seeds of all components with a stream of their own.
    seeds: Rng,
    /// Random stream of the hosts' speeds.
    speeds: Rng,
}

impl State {
    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

/// Guard of the running host; restores the previous host when dropped.
pub(super) struct HostGuard<'a> {
    core: &'a Core,
    before: usize,
}

impl Drop for HostGuard<'_> {
    fn drop(&mut self) {
        self.core.here.store(self.before, Ordering::Relaxed);
    }
}

impl Core {
    pub(super) fn new(seed: u64, keep_record: bool) -> Arc<Core> {
        let mut seeds = Rng::new(seed);
        let [network, choice, pace] = std::array::from_fn(|_| Rng::new(seeds.u64()));
        let state = State {
            hosts: Vec::new(),
            tasks: Tasks::default(),
            events: BTreeMap::new(),
            graves: Vec::new(),
            doomed: Vec::new(),
            polls: 0,
            serial: 0,
            choice,
            pace,
            seeds,
            speeds: Rng::new(seed ^ SPEEDS),
        };
        Arc::new_cyclic(|core: &Weak<Core>| {
            let heart: Weak<dyn Heart> = core.clone();
            Core {
                now: AtomicU64::new(0),
                here: AtomicUsize::new(NOWHERE),
                woken: Woken::default(),
                state: Mutex::new(state),
                network: Network::new(heart, network),
                trace: Trace::new(keep_record),
            }
        })
    }

    pub(super) fn add_host(&self, name: &str, kind: &'static str, ip: Ipv4Addr) -> HostId {
        let mut state = self.state.lock();
        let host = HostId(state.hosts.len());
        // Local clocks of hosts differ widely, so that a time of one host used on another is noticed.
        let local = 3_600_000_000_000 + state.seeds.u64() % 1_000_000_000_000_000;
        let wall = WALL_BEGIN_MS + i64::try_from(state.seeds.below(WALL_SPREAD_MS + 1)).unwrap_or_default();
        let (disk, rng) = (Rng::new(state.seeds.u64()), Rng::new(state.seeds.u64()));
        let processor = Processor::new(&mut state.speeds);
        state.hosts.push(Host {
            name: name.to_owned(),
            life: Life::Down,
            end: "never begun",
            clock: Clock::new(self.now(), local, wall),
            timers: BTreeMap::new(),
            processor,
            disk: HostDisk::new(disk),
            rng,
        });
        drop(state);
        self.network.add_host(host, name, ip);
        self.trace.record(self.now(), || What::Host { host, name: name.to_owned(), kind });
        host
    }

    /// Runs the following code as `host`, until the returned guard is dropped.
    pub(super) fn enter_host(&self, host: Option<HostId>) -> HostGuard<'_> {
        let number = host.map_or(NOWHERE, |host| host.0);
        HostGuard { core: self, before: self.here.swap(number, Ordering::Relaxed) }
    }

    /// Returns the host of the running code, if any.
    pub(super) fn here(&self) -> Option<HostId> {
        let number = self.here.load(Ordering::Relaxed);
        (number != NOWHERE).then_some(HostId(number))
    }

    fn host(&self) -> HostId {
        self.here().expect("Invariant: only code of a host asks env for anything")
    }

    pub(super) fn set_now(&self, now: Nanos) {
        debug_assert!(now >= self.now(), "time does not run backwards");
        self.now.store(now.0, Ordering::Relaxed);
    }

    pub(super) fn network(&self) -> &Network {
        &self.network
    }

    pub(super) fn disk_of(&self, host: HostId) -> Arc<HostDisk> {
        self.state.lock().hosts[host.0].disk.clone()
    }

    pub(super) fn polls(&self) -> u64 {
        self.state.lock().polls
    }

    pub(super) fn tasks_of(&self, host: HostId) -> Vec<&'static str> {
        self.state.lock().tasks.names_of(host)
    }

    pub(super) fn local(&self, host: HostId) -> u64 {
        self.state.lock().hosts[host.0].clock.local(self.now())
    }
}

impl Heart for Core {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    fn turn_so_far(&self) -> Nanos {
        let (now, Some(host)) = (self.now(), self.here()) else { return self.now() };
        self.state.lock().hosts[host.0].processor.done_at(now, rowlock_env::busy::spent())
    }

    fn at(&self, when: Nanos, event: Event) {
        let mut state = self.state.lock();
        let key = (when.max(self.now()), state.serial());
        state.events.insert(key, event);
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }
}

/// Longest delay of a slow disk, so that the disk answers before a run ends.
const DISK_HANGS_MICROS: u64 = 30_000_000;
/// Pace up to which a disk stalls at times. Beyond: its usual flush lasts as long as a quick disk's stall.
const STALLS_UP_TO_PACE: u64 = 50;
/// Longest time after which work on a slow disk follows a change of the disk's pace.
const PACE_STEP_MICROS: u64 = 100_000;

/// Sleeps while the disk does work that takes `micros` at the usual speed. Work that began on a slow disk
/// goes on at the usual speed once the disk is fast again, as on a device.
async fn disk_work(disk: Arc<HostDisk>, micros: u64) {
    let (mut work, mut patience) = (micros, DISK_HANGS_MICROS);
    while work > 0 && patience > 0 {
        let pace = u64::from(disk.pace());
        let longest = if pace == 1 { patience } else { patience.min(PACE_STEP_MICROS) };
        let step = (work * pace).min(longest);
        rowlock_env::time::sleep(Duration::from_micros(step)).await;
        patience -= step;
        work = work.saturating_sub((step / pace).max(1));
    }
}

impl World for Core {
    fn now_ns(&self) -> u64 {
        self.local(self.host())
    }

    fn wall_ms(&self) -> i64 {
        let host = self.host();
        self.state.lock().hosts[host.0].clock.wall_ms(self.now())
    }

    fn worked(&self) -> Duration {
        let host = self.host();
        self.state.lock().hosts[host.0].processor.total()
    }

    fn place(&self) -> Option<String> {
        let (host, now) = (self.here()?, self.now().0);
        // A log line may be written while the world is locked.
        let name = self.state.try_lock()?.hosts[host.0].name.clone();
        Some(format!("{:>4}.{:06} s {name}", now / 1_000_000_000, now / 1_000 % 1_000_000))
    }

    fn set_timer(&self, deadline: u64, waker: &Waker) -> TimerId {
        let (host, waker) = (self.host(), waker.clone());
        let mut state = self.state.lock();
        let serial = state.serial();
        let host = &mut state.hosts[host.0];
        if host.life != Life::Down {
            host.timers.insert((deadline, serial), waker);
        }
        TimerId { deadline, serial }
    }

    fn cancel_timer(&self, timer: TimerId) {
        let Some(host) = self.here() else { return };
        let waker = self.state.lock().hosts[host.0].timers.remove(&(timer.deadline, timer.serial));
        drop(waker); // outside the lock
    }

    fn spawn(&self, name: &'static str, future: Boxed<()>) -> TaskId {
        let host = self.host();
        let mut state = self.state.lock();
        if state.hosts[host.0].life == Life::Down {
            // A destructor of a dying process may start a task, which is dead.
            state.graves.push((host, future));
            return TaskId(0);
        }
        state.tasks.add(host, name, future, &self.woken)
    }

    fn abort(&self, task: TaskId) {
        let mut state = self.state.lock();
        let Some(host) = state.tasks.host(task) else { return };
        if let Some(future) = state.tasks.abort(task) {
            state.graves.push((host, future));
        }
    }

    fn random(&self, bytes: &mut [u8]) {
        let host = self.host();
        let mut state = self.state.lock();
        for chunk in bytes.chunks_mut(8) {
            let random = state.hosts[host.0].rng.u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    fn blocking_work(&self, name: &str) -> Boxed<()> {
        let host = self.host();
        let micros = {
            let mut state = self.state.lock();
            let pace = u64::from(state.hosts[host.0].disk.pace());
            let is_log = name == "rowlock-wal";
            // A flush takes 0.1 to 0.3 ms, occasionally far longer, unless the disk is that slow anyway;
            // other work reads and writes more.
            let (least, spread) = match (is_log, state.pace.below(500)) {
                (true, 0) if pace <= STALLS_UP_TO_PACE => (5_000, 20_000),
                (true, _) => (100, 200),
                (false, _) => (500, 3_000),
            };
            least + state.pace.below(spread) as u64
        };
        Box::pin(disk_work(self.disk_of(host), micros))
    }

    fn connect(&self, addr: &str, timeout: Duration) -> Boxed<io::Result<Arc<dyn Conduit>>> {
        Box::pin(self.network.connect(self.host(), addr, timeout))
    }

    fn listen(&self, addr: &str) -> io::Result<Arc<dyn Port>> {
        self.network.listen(self.host(), addr)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.disk_of(self.host()).mount()
    }

    /// Returns an id that begins like the ids of all other hosts and starts.
    fn boot_id(&self) -> Option<String> {
        let host = self.host();
        let losses = self.disk_of(host).stats().power_losses;
        Some(format!("b0075eed-0000-4000-8000-{:04x}{losses:08x}", host.0))
    }
}
