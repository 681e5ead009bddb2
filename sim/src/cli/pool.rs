//! Runs seeds on several threads: each thread takes the next seed, runs it in its own world, and passes the
//! outcome on with the case that was run.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rowlock_env::task::{self, Task};
use rowlock_env::worker;
use rowlock_sim::cluster::Outcome;
use tokio::sync::mpsc;

use super::case::Case;

/// Outcomes that wait to be counted; a thread that is ahead waits with its next.
const WAITING_MAX: usize = 64;

pub struct Pool {
    outcomes: mpsc::Receiver<(u64, Case, Outcome)>,
    stop: Arc<AtomicBool>,
    _threads: Vec<Task<()>>,
}

impl Pool {
    /// Starts `threads` on `seeds`. They end when there are no more, or when the pool is dropped; a run that
    /// has begun is not waited for.
    pub fn start<F>(seeds: RangeInclusive<u64>, threads: usize, run: F) -> Pool
    where
        F: Fn(u64) -> (Case, Outcome) + Send + Sync + 'static,
    {
        let (tell, outcomes) = mpsc::channel(WAITING_MAX);
        let (run, stop) = (Arc::new(run), Arc::new(AtomicBool::new(false)));
        let next = Arc::new(AtomicU64::new(0));
        let count = seeds.end().saturating_sub(*seeds.start()).saturating_add(u64::from(!seeds.is_empty()));
        let threads = (0..threads)
            .map(|_| {
                let (tell, run, stop, next) = (tell.clone(), run.clone(), stop.clone(), next.clone());
                let first = *seeds.start();
                let work = move || {
                    while !stop.load(Ordering::Relaxed) {
                        let place = next.fetch_add(1, Ordering::Relaxed);
                        if place >= count {
                            return;
                        }
                        let seed = first + place;
                        let (case, outcome) = run(seed);
                        if tell.blocking_send((seed, case, outcome)).is_err() {
                            return;
                        }
                    }
                };
                task::spawn("simulations", worker::run_blocking("simulation", work))
            })
            .collect();
        Pool { outcomes, stop, _threads: threads }
    }

    /// The next outcome, in whatever order they come; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<(u64, Case, Outcome)> {
        self.outcomes.recv().await
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// As many threads as there are processors, or as many as are wanted.
pub fn threads(wanted: Option<usize>) -> usize {
    wanted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get())).max(1)
}
