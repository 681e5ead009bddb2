//! Blocking work on separate threads: writing the log, writing a snapshot.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::sync::watch;
use crate::time;
use crate::world::{self, Boxed, World};

struct JobQueue<J> {
    jobs: Vec<J>,
    capacity: usize,
    handles: usize,
    stopped: bool,
    /// True after an urgent job was submitted.
    is_urgent: bool,
    /// True while the thread waits for a wake-up.
    is_asleep: bool,
    /// Submission time of the oldest job in `jobs`.
    waits_since: Option<time::Instant>,
    /// Submission time of the oldest job in progress.
    works_since: Option<time::Instant>,
}

impl<J> JobQueue<J> {
    fn new(capacity: usize) -> JobQueue<J> {
        let jobs = Vec::new();
        JobQueue {
            jobs,
            capacity,
            handles: 1,
            stopped: false,
            is_urgent: false,
            is_asleep: false,
            waits_since: None,
            works_since: None,
        }
    }

    fn push(&mut self, job: J) -> Result<(), J> {
        if self.stopped || self.jobs.len() >= self.capacity {
            return Err(job);
        }
        self.waits_since.get_or_insert_with(time::now);
        self.jobs.push(job);
        Ok(())
    }

    fn take(&mut self, batch: &mut Vec<J>) {
        std::mem::swap(batch, &mut self.jobs);
        self.is_urgent = false;
        self.works_since = self.waits_since.take();
    }
}

struct WorkerState<J> {
    queue: Mutex<JobQueue<J>>,
    filled: Condvar,
    /// Wakes a worker in a simulated world, where the worker is a task.
    bell: Option<watch::Sender<()>>,
    delay_max: Duration,
}

enum Next {
    Work,
    Rest,
    End,
}

impl<J> WorkerState<J> {
    /// Waits for a job, or for `rest`.
    fn wait(&self, queue: &mut MutexGuard<'_, JobQueue<J>>, rest: Option<Duration>) -> Next {
        let rest_at = rest.map(|rest| Instant::now() + rest);
        if !self.delay_max.is_zero() {
            let until = Instant::now() + self.delay_max;
            while !queue.is_urgent && queue.handles > 0 && !self.filled.wait_until(queue, until).timed_out() {
            }
        }
        while queue.jobs.is_empty() {
            if queue.handles == 0 {
                return Next::End;
            }
            queue.is_asleep = true;
            let is_over = match rest_at {
                Some(at) => self.filled.wait_until(queue, at).timed_out(),
                None => {
                    self.filled.wait(queue);
                    false
                }
            };
            queue.is_asleep = false;
            if is_over && queue.jobs.is_empty() {
                return Next::Rest;
            }
        }
        Next::Work
    }

    fn ring(&self) {
        match &self.bell {
            Some(bell) => bell.send(()),
            None => {
                self.filled.notify_one();
            }
        }
    }
}

/// Handle of a worker thread. The thread ends after all jobs are done and all handles are dropped.
pub struct Worker<J> {
    shared: Arc<WorkerState<J>>,
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
    /// Queues a job; returns the job if the queue is full or the thread has died. Never waits.
    pub fn submit(&self, job: J) -> Result<(), J> {
        let mut queue = self.shared.queue.lock();
        queue.push(job)?;
        if !queue.is_urgent {
            queue.is_urgent = true;
            self.shared.ring();
        }
        Ok(())
    }

    /// Returns the submission time of the oldest unfinished job. Jobs set aside by the handler count as
    /// finished.
    pub fn busy_since(&self) -> Option<time::Instant> {
        let queue = self.shared.queue.lock();
        queue.works_since.or(queue.waits_since)
    }

    /// Queues a job without urgency: a recently busy thread handles the job after its delay
    /// ([`spawn_in_background`]), or together with an urgent job. Otherwise like [`Worker::submit`].
    pub fn submit_patiently(&self, job: J) -> Result<(), J> {
        let mut queue = self.shared.queue.lock();
        queue.push(job)?;
        if queue.is_asleep || self.shared.bell.is_some() {
            self.shared.ring();
        }
        Ok(())
    }
}

/// Stops the queue even after a panic of the handler, so that later submissions fail and do not pile up.
struct StopOnExit<J>(Arc<WorkerState<J>>);

impl<J> Drop for StopOnExit<J> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.stopped = true;
        queue.jobs.clear();
    }
}

/// Starts a thread and passes all queued jobs (at most `capacity`) together to `handler`, in order. Jobs left
/// in the vector are dropped.
pub fn spawn<J: Send + 'static>(
    name: &str,
    capacity: usize,
    handler: impl FnMut(&mut Vec<J>) + Send + 'static,
) -> Worker<J> {
    start(name, capacity, Duration::ZERO, || {}, never_called_again(handler))
}

/// Starts a thread like [`spawn`], and also calls `handler` without jobs after a quiet period of the last
/// returned duration.
pub fn spawn_resting<J: Send + 'static>(
    name: &str,
    capacity: usize,
    handler: impl FnMut(&mut Vec<J>) -> Option<Duration> + Send + 'static,
) -> Worker<J> {
    start(name, capacity, Duration::ZERO, || {}, handler)
}

fn never_called_again<J>(
    mut handler: impl FnMut(&mut Vec<J>) + Send + 'static,
) -> impl FnMut(&mut Vec<J>) -> Option<Duration> + Send + 'static {
    move |jobs| {
        handler(jobs);
        None
    }
}

/// Starts a thread like [`spawn`], for work without waiting requests: on busy processors this thread and its
/// child threads get about a tenth of another thread's share. Jobs without urgency collect for `delay_max`,
/// so that they wake the thread at most once per `delay_max`.
pub fn spawn_in_background<J: Send + 'static>(
    name: &str,
    capacity: usize,
    delay_max: Duration,
    handler: impl FnMut(&mut Vec<J>) + Send + 'static,
) -> Worker<J> {
    start(name, capacity, delay_max, lower_priority, never_called_again(handler))
}

/// Lowers the thread's priority. Linux keeps the priority per thread, and child threads inherit it. After a
/// refusal the thread keeps the usual priority.
fn lower_priority() {
    let _ = rustix::process::nice(10);
}

fn start<J: Send + 'static>(
    name: &str,
    capacity: usize,
    delay_max: Duration,
    first: impl FnOnce() + Send + 'static,
    mut handler: impl FnMut(&mut Vec<J>) -> Option<Duration> + Send + 'static,
) -> Worker<J> {
    let queue = JobQueue::new(capacity);
    if let Some(world) = world::current() {
        return start_in(&world, name, queue, delay_max, handler);
    }
    let shared =
        Arc::new(WorkerState { queue: Mutex::new(queue), filled: Condvar::new(), bell: None, delay_max });
    let owned = StopOnExit(shared.clone());
    let run = move || {
        first();
        let (mut batch, mut rest) = (Vec::new(), None);
        loop {
            {
                let mut queue = owned.0.queue.lock();
                match owned.0.wait(&mut queue, rest) {
                    Next::Work => queue.take(&mut batch),
                    Next::Rest => {}
                    Next::End => return,
                }
            }
            rest = handler(&mut batch);
            batch.clear();
            owned.0.queue.lock().works_since = None;
        }
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .expect("the system can start a thread while the node starts");
    Worker { shared }
}

/// Starts a worker as a task of a simulated world: the task waits for the typical duration of such work, then
/// runs all queued jobs in no time.
fn start_in<J: Send + 'static>(
    world: &Arc<dyn World>,
    name: &str,
    queue: JobQueue<J>,
    delay_max: Duration,
    mut handler: impl FnMut(&mut Vec<J>) -> Option<Duration> + Send + 'static,
) -> Worker<J> {
    let (bell, mut rung) = watch::channel(());
    let filled = Condvar::new();
    let shared = Arc::new(WorkerState { queue: Mutex::new(queue), filled, bell: Some(bell), delay_max });
    let owned = StopOnExit(shared.clone());
    let (clock, name) = (world.clone(), name.to_owned());
    let run: Boxed<()> = Box::pin(async move {
        let mut batch = Vec::new();
        let mut patient_until = time::now();
        let mut rest_at = None;
        loop {
            loop {
                let (is_empty, is_orphan, is_urgent) = {
                    let queue = owned.0.queue.lock();
                    (queue.jobs.is_empty(), queue.handles == 0, queue.is_urgent)
                };
                if !is_empty && (is_urgent || is_orphan || time::now() >= patient_until) {
                    break;
                }
                if !is_empty {
                    let _ = time::timeout_at(patient_until, rung.changed()).await; // both end a wait
                } else if is_orphan {
                    return;
                } else if let Some(at) = rest_at {
                    match time::timeout_at(at, rung.changed()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return,
                        Err(_) => break,
                    }
                } else if rung.changed().await.is_err() {
                    return;
                }
            }
            clock.blocking_work(&name).await;
            owned.0.queue.lock().take(&mut batch);
            let rest = handler(&mut batch);
            batch.clear();
            owned.0.queue.lock().works_since = None;
            patient_until = time::now() + delay_max;
            rest_at = rest.map(|rest| time::now() + rest);
        }
    });
    world.spawn("worker", run);
    Worker { shared }
}

/// Runs `work` on its own thread and returns the result. Dropping the future does not stop the work.
///
/// # Panics
/// If `work` panics.
pub async fn run_blocking<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    run(name, || {}, work).await
}

/// Runs `work` like [`run_blocking`], for long work without waiting requests: on busy processors its thread
/// gets about a tenth of another thread's share.
pub async fn run_in_background<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    run(name, lower_priority, work).await
}

/// Leaves processor and disk to other threads for `pause`, in the middle of long work. In a simulated world
/// work takes no time, and neither do its pauses.
pub fn pause(pause: Duration) {
    if world::current().is_none() {
        std::thread::sleep(pause);
    }
}

async fn run<T: Send + 'static>(
    name: &str,
    first: impl FnOnce() + Send + 'static,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if let Some(world) = world::current() {
        world.blocking_work(name).await;
        return work();
    }
    let (tx, rx) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            first();
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
    fn a_resting_worker_is_called_without_jobs_after_its_delay() {
        let (sender, calls) = std::sync::mpsc::channel();
        let worker = spawn_resting("test", 10, move |batch: &mut Vec<u32>| {
            let _ = sender.send(batch.len());
            (!batch.is_empty()).then_some(Duration::from_millis(1))
        });
        for _ in 0..3 {
            worker.submit(1).expect("there is room");
            assert_eq!((calls.recv(), calls.recv()), (Ok(1), Ok(0)));
        }
        drop(worker);
        assert!(calls.recv().is_err(), "it is not called again while it rests");
    }

    #[test]
    fn a_worker_is_busy_since_the_submission_of_its_oldest_job() {
        let (block, blocked) = std::sync::mpsc::channel::<()>();
        let (sender, done) = std::sync::mpsc::channel();
        let worker = spawn("test", 9, move |jobs: &mut Vec<u32>| {
            let _ = (blocked.recv(), sender.send(jobs.len()));
        });
        assert_eq!(worker.busy_since(), None);
        worker.submit(1).expect("there is room");
        let first = worker.busy_since().expect("a job waits");
        worker.submit(2).expect("there is room");
        assert_eq!(worker.busy_since(), Some(first));
        let mut count = 0;
        while count < 2 {
            block.send(()).expect("it works");
            count += done.recv().expect("it works");
        }
        while worker.busy_since().is_some() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_full_queue_returns_the_job() {
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
    fn background_work_has_a_lower_priority() {
        let priority = || rustix::process::getpriority_process(None).expect("every thread has one");
        let (tx, receiver) = std::sync::mpsc::channel();
        let worker = spawn_in_background("test", 1, Duration::ZERO, move |_: &mut Vec<()>| {
            let _ = tx.send(priority());
        });
        worker.submit(()).expect("there is room");
        assert!(receiver.recv().expect("it works") > priority());
    }

    #[test]
    fn a_patient_job_runs_together_with_an_urgent_job() {
        let (tx, receiver) = std::sync::mpsc::channel();
        let delay_max = Duration::from_secs(3_600);
        let worker = spawn_in_background("test", 10, delay_max, move |batch: &mut Vec<u32>| {
            let _ = tx.send(std::mem::take(batch));
        });
        // A new thread waits for more jobs, too.
        worker.submit_patiently(1).expect("there is room");
        worker.submit_patiently(2).expect("there is room");
        worker.submit(3).expect("there is room");
        assert_eq!(receiver.recv().expect("it works"), [1, 2, 3]);
        worker.submit_patiently(4).expect("there is room");
        drop(worker);
        assert_eq!(receiver.recv().expect("it drains before it ends"), [4]);
    }

    #[test]
    fn a_patient_job_runs_after_the_delay() {
        let (tx, receiver) = std::sync::mpsc::channel();
        let delay_max = Duration::from_millis(1);
        let worker = spawn_in_background("test", 10, delay_max, move |batch: &mut Vec<u32>| {
            batch.drain(..).for_each(|job| tx.send(job).expect("the test listens"));
        });
        for job in 0..20 {
            worker.submit_patiently(job).expect("there is room");
            assert_eq!(receiver.recv().expect("it works"), job);
        }
    }

    #[tokio::test]
    async fn blocking_work_returns_its_result() {
        assert_eq!(run_blocking("test", || 6 * 7).await, 42);
        let priority = || rustix::process::getpriority_process(None).expect("every thread has one");
        assert!(run_in_background("test", priority).await > priority());
    }
}
