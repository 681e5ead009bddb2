//! Runs seeds on several threads: each thread takes the next seed, runs the seed in a world of its own, and
//! sends the result.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rowlock_env::task::{self, Task};
use rowlock_env::worker;
use tokio::sync::mpsc;

/// Results waiting to be counted; a thread that is ahead blocks.
const WAITING_MAX: usize = 64;

pub struct Pool<T> {
    results: mpsc::Receiver<(u64, T)>,
    stop: Arc<AtomicBool>,
    _threads: Vec<Task<()>>,
}

impl<T: Send + 'static> Pool<T> {
    /// Starts `threads` on `seeds`. The threads end after the last seed, or when the pool is dropped; a drop
    /// does not wait for current runs.
    pub fn start<F>(seeds: RangeInclusive<u64>, threads: usize, run: F) -> Pool<T>
    where
        F: Fn(u64) -> T + Send + Sync + 'static,
    {
        let (sender, results) = mpsc::channel(WAITING_MAX);
        let (run, stop) = (Arc::new(run), Arc::new(AtomicBool::new(false)));
        let next = Arc::new(AtomicU64::new(0));
        let count = seeds.end().saturating_sub(*seeds.start()).saturating_add(u64::from(!seeds.is_empty()));
        let threads = (0..threads)
            .map(|_| {
                let (sender, run, stop, next) = (sender.clone(), run.clone(), stop.clone(), next.clone());
                let first = *seeds.start();
                let work = move || {
                    while !stop.load(Ordering::Relaxed) {
                        let place = next.fetch_add(1, Ordering::Relaxed);
                        if place >= count {
                            return;
                        }
                        let seed = first + place;
                        if sender.blocking_send((seed, run(seed))).is_err() {
                            return;
                        }
                    }
                };
                task::spawn("simulations", worker::run_blocking("simulation", work))
            })
            .collect();
        Pool { results, stop, _threads: threads }
    }

    /// Returns the next result, in order of completion; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<(u64, T)> {
        self.results.recv().await
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns `wanted`, or the number of processors.
pub fn threads(wanted: Option<usize>) -> usize {
    wanted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get())).max(1)
}
