//! A simulated disk under the storage of a single host.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::world::{self, Boxed, Conduit, Disk, Port, TaskId, TimerId, World};
use rowlock_world::disk::HostDisk;
use rowlock_world::rng::Rng;

/// A world of a single host without a network. Its tasks run in turns.
struct Bench {
    disk: Arc<dyn Disk>,
    millis: AtomicU64,
    rng: Mutex<Rng>,
    begun: Mutex<VecDeque<Boxed<()>>>,
}

impl World for Bench {
    fn now_ns(&self) -> u64 {
        self.millis.load(Ordering::Relaxed) * 1_000_000
    }
    fn wall_ms(&self) -> i64 {
        0
    }
    fn set_timer(&self, deadline: u64, _: &Waker) -> TimerId {
        TimerId { deadline, serial: 0 } // everything is polled in every round
    }
    fn cancel_timer(&self, _: TimerId) {}
    fn spawn(&self, _: &'static str, future: Boxed<()>) -> TaskId {
        self.begun.lock().push_back(future);
        TaskId(0)
    }
    fn abort(&self, _: TaskId) {
        unreachable!("the storage aborts nothing")
    }
    fn random(&self, bytes: &mut [u8]) {
        let mut rng = self.rng.lock();
        bytes.fill_with(|| rng.u64() as u8);
    }
    fn blocking_work(&self, _: &str) -> Boxed<()> {
        Box::pin(std::future::ready(()))
    }
    fn connect(&self, _: &str, _: Duration) -> Boxed<io::Result<Arc<dyn Conduit>>> {
        unreachable!("the storage needs no network")
    }
    fn listen(&self, _: &str) -> io::Result<Arc<dyn Port>> {
        unreachable!("the storage needs no network")
    }
    fn disk(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }
}

/// Runs a process until `main` ends or the power fails, then runs `end` before dropping anything.
pub fn live<T>(
    disk: &Arc<HostDisk>,
    seed: u64,
    gone: &AtomicBool,
    main: impl Future<Output = T>,
    end: impl FnOnce(),
) -> Option<T> {
    let bench = Arc::new(Bench {
        disk: disk.mount(),
        millis: AtomicU64::new(0),
        rng: Mutex::new(Rng::new(seed)),
        begun: Mutex::default(),
    });
    let _stay = world::enter(bench.clone());
    let mut cx = Context::from_waker(Waker::noop());
    let mut main = pin!(main);
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    let mut result = None;
    for round in 0.. {
        assert!(round < 100_000, "it goes on");
        bench.millis.fetch_add(1, Ordering::Relaxed);
        if let Poll::Ready(done) = main.as_mut().poll(&mut cx) {
            result = Some(done);
        }
        tasks.extend(bench.begun.lock().drain(..));
        tasks.retain_mut(|task| task.as_mut().poll(&mut cx).is_pending());
        if result.is_some() || gone.load(Ordering::Relaxed) {
            break;
        }
    }
    end();
    result
}
