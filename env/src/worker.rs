//! Work that blocks, on threads of its own: the log's writer, the writing of a snapshot.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::sync::watch;
use crate::world::{self, Boxed, World};

struct Queue<J> {
    jobs: Vec<J>,
    capacity: usize,
    handles: usize,
    stopped: bool,
}

struct Shared<J> {
    queue: Mutex<Queue<J>>,
    filled: Condvar,
    /// Rings for a worker that is a task of a simulated world.
    bell: Option<watch::Sender<()>>,
}

impl<J> Shared<J> {
    fn ring(&self) {
        match &self.bell {
            Some(bell) => bell.send(()),
            None => {
                self.filled.notify_one();
            }
        }
    }
}

/// The way to a worker thread. The thread ends when it has done everything and all handles are gone.
pub struct Worker<J> {
    shared: Arc<Shared<J>>,
}

impl<J> Clone for Worker<J> {
    fn clone(&self) -> Self {
        self.shared.queue.lock().handles += 1;
        Worker { shared: self.shared.clone() }
    }
}

impl<J> Drop for Worker<J> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.handles -= 1;
        if queue.handles == 0 {
            self.shared.ring();
        }
    }
}

impl<J> Worker<J> {
    /// Queues a job; gives it back when the queue is full or the thread has died. Never waits.
    pub fn submit(&self, job: J) -> Result<(), J> {
        let mut queue = self.shared.queue.lock();
        if queue.stopped || queue.jobs.len() >= queue.capacity {
            return Err(job);
        }
        queue.jobs.push(job);
        if queue.jobs.len() == 1 {
            self.shared.ring();
        }
        Ok(())
    }
}

/// Marks the queue stopped even when the handler panics, so that submitting fails instead of piling up.
struct StopOnExit<J>(Arc<Shared<J>>);

impl<J> Drop for StopOnExit<J> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.stopped = true;
        queue.jobs.clear();
    }
}

/// Starts a thread that takes everything queued at once (at most `capacity` jobs) and hands it to `handler`, in order.
/// What `handler` leaves in the vector is dropped.
pub fn spawn<J: Send + 'static>(
    name: &str,
    capacity: usize,
    handler: impl FnMut(&mut Vec<J>) + Send + 'static,
) -> Worker<J> {
    start(name, capacity, || {}, handler)
}

/// As [`spawn`], for work that nobody waits for: when the processors are busy, this thread and those that it starts
/// get about a tenth of what another thread gets.
pub fn spawn_in_background<J: Send + 'static>(
    name: &str,
    capacity: usize,
    handler: impl FnMut(&mut Vec<J>) + Send + 'static,
) -> Worker<J> {
    // Linux keeps this number per thread, and threads inherit it. A system that refuses has a thread like any other.
    let step_back = || {
        let _ = rustix::process::nice(10);
    };
    start(name, capacity, step_back, handler)
}

fn start<J: Send + 'static>(
    name: &str,
    capacity: usize,
    first: impl FnOnce() + Send + 'static,
    mut handler: impl FnMut(&mut Vec<J>) + Send + 'static,
) -> Worker<J> {
    let queue = Queue { jobs: Vec::new(), capacity, handles: 1, stopped: false };
    if let Some(world) = world::current() {
        return start_in(&world, name, queue, handler);
    }
    let shared = Arc::new(Shared { queue: Mutex::new(queue), filled: Condvar::new(), bell: None });
    let theirs = StopOnExit(shared.clone());
    let run = move || {
        first();
        let mut batch = Vec::new();
        loop {
            {
                let mut queue = theirs.0.queue.lock();
                while queue.jobs.is_empty() {
                    if queue.handles == 0 {
                        return;
                    }
                    theirs.0.filled.wait(&mut queue);
                }
                std::mem::swap(&mut batch, &mut queue.jobs);
            }
            handler(&mut batch);
            batch.clear();
        }
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .expect("the system can start a thread while the node starts");
    Worker { shared }
}

/// A worker that is a task: it takes what is queued after the time that such work takes, and does it in no time.
fn start_in<J: Send + 'static>(
    world: &Arc<dyn World>,
    name: &str,
    queue: Queue<J>,
    mut handler: impl FnMut(&mut Vec<J>) + Send + 'static,
) -> Worker<J> {
    let (bell, mut rung) = watch::channel(());
    let shared = Arc::new(Shared { queue: Mutex::new(queue), filled: Condvar::new(), bell: Some(bell) });
    let theirs = StopOnExit(shared.clone());
    let (clock, name) = (world.clone(), name.to_owned());
    let run: Boxed<()> = Box::pin(async move {
        let mut batch = Vec::new();
        loop {
            loop {
                let (is_empty, is_orphan) = {
                    let queue = theirs.0.queue.lock();
                    (queue.jobs.is_empty(), queue.handles == 0)
                };
                if !is_empty {
                    break;
                }
                if is_orphan || rung.changed().await.is_err() {
                    return;
                }
            }
            clock.blocking_work(&name).await;
            std::mem::swap(&mut batch, &mut theirs.0.queue.lock().jobs);
            handler(&mut batch);
            batch.clear();
        }
    });
    world.spawn("worker", run);
    Worker { shared }
}

/// Runs `work` on a thread of its own and gives its result. Dropping the future does not stop the work.
///
/// # Panics
/// If `work` panics: a bug there is a bug here.
pub async fn run_blocking<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    if let Some(world) = world::current() {
        world.blocking_work(name).await;
        return work();
    }
    let (tx, rx) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let _ = tx.send(work());
        })
        .expect("the system can start a thread");
    rx.await.expect("the work on the thread did not panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn jobs_arrive_in_order_and_the_thread_drains_before_it_ends() {
        let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel();
        let worker = spawn("test", 1_000, move |batch: &mut Vec<u32>| {
            for job in batch.drain(..) {
                let _ = tx.send(job);
            }
        });
        for i in 0..500 {
            worker.submit(i).expect("there is room");
        }
        drop(worker);
        let mut got = Vec::new();
        while let Some(i) = rx.recv().await {
            got.push(i);
        }
        assert_eq!(got, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_queue_gives_the_job_back() {
        let (block, blocked) = std::sync::mpsc::channel::<()>();
        let worker = spawn("test", 2, move |_: &mut Vec<u32>| {
            let _ = blocked.recv();
        });
        let mut refused = None;
        for i in 0..10 {
            if let Err(job) = worker.submit(i) {
                refused = Some(job);
                break;
            }
        }
        assert!(refused.is_some());
        drop(block);
    }

    #[test]
    fn background_work_steps_back() {
        let priority = || rustix::process::getpriority_process(None).expect("every thread has one");
        let (tx, told) = std::sync::mpsc::channel();
        let worker = spawn_in_background("test", 1, move |_: &mut Vec<()>| {
            let _ = tx.send(priority());
        });
        worker.submit(()).expect("there is room");
        assert!(told.recv().expect("it works") > priority());
    }

    #[tokio::test]
    async fn blocking_work_gives_its_result() {
        assert_eq!(run_blocking("test", || 6 * 7).await, 42);
    }
}
