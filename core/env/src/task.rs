//! Tasks with an end: every task belongs to a group or is awaited, and receives the shutdown signal.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, io};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::duty::{self, Duty};
use crate::sync::watch;
use crate::world::{self, TaskId, World};
use crate::{busy, time};

/// Reason for a task without a result.
#[derive(Debug)]
pub enum JoinError {
    Aborted,
    /// A panic: a bug.
    Panicked(String),
}

impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JoinError::Aborted => f.write_str("task was aborted"),
            JoinError::Panicked(why) => write!(f, "task panicked: {why}"),
        }
    }
}

impl std::error::Error for JoinError {}

/// A running task. A drop detaches the task.
pub struct Task<T> {
    inner: TaskIn<T>,
}

enum TaskIn<T> {
    Reality(tokio::task::JoinHandle<T>),
    World { world: Arc<dyn World>, id: TaskId, end: Arc<Mutex<TaskEnd<T>>> },
}

/// End of a task in a simulated world.
struct TaskEnd<T> {
    result: Option<Result<T, JoinError>>,
    is_finished: bool,
    waiter: Option<Waker>,
}

/// Records the end of a task, also of a task dropped before its end.
struct Ending<T>(Arc<Mutex<TaskEnd<T>>>);

impl<T> Ending<T> {
    fn complete(&self, result: Result<T, JoinError>) {
        let waiter = {
            let mut end = self.0.lock();
            if end.is_finished {
                return;
            }
            (end.result, end.is_finished) = (Some(result), true);
            end.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        self.complete(Err(JoinError::Aborted));
    }
}

impl<T> Task<T> {
    /// Stops the task at its next await.
    pub fn abort(&self) {
        match &self.inner {
            TaskIn::Reality(handle) => handle.abort(),
            TaskIn::World { world, id, .. } => world.abort(*id),
        }
    }

    pub fn is_finished(&self) -> bool {
        match &self.inner {
            TaskIn::Reality(handle) => handle.is_finished(),
            TaskIn::World { end, .. } => end.lock().is_finished,
        }
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, JoinError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.inner {
            TaskIn::Reality(handle) => Pin::new(handle).poll(cx).map_err(|e| match e.try_into_panic() {
                Ok(payload) => JoinError::Panicked(panic_text(payload.as_ref())),
                Err(_) => JoinError::Aborted,
            }),
            TaskIn::World { end, .. } => {
                let mut end = end.lock();
                match end.result.take() {
                    Some(result) => Poll::Ready(result),
                    None => {
                        assert!(!end.is_finished, "a task is joined once");
                        end.waiter = Some(cx.waker().clone());
                        Poll::Pending
                    }
                }
            }
        }
    }
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(s), _) => (*s).to_owned(),
        (_, Some(s)) => s.clone(),
        _ => "no message".to_owned(),
    }
}

/// Runs `future` to its end on the calling thread; on a runtime without its own threads, also runs the other
/// tasks.
pub fn block_on<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    let mut output = None;
    turn(runtime, pin!(async { output = Some(future.await) }));
    output.expect("it ran to its end")
}

/// Runs the loop over all tasks. Not generic, so that its code is compiled here and not into each caller.
#[inline(never)]
fn turn(runtime: &Runtime, future: Pin<&mut dyn Future<Output = ()>>) {
    runtime.block_on(future);
}

/// Starts a task. `name` identifies the task in diagnostics.
pub fn spawn<F>(name: &'static str, future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let Some(world) = world::current() else {
        return Task { inner: TaskIn::Reality(tokio::spawn(Turns { future })) };
    };
    let end = Arc::new(Mutex::new(TaskEnd { result: None, is_finished: false, waiter: None }));
    let ending = Ending(end.clone());
    // A panic ends the whole world and needs no report here.
    let id = world.spawn(name, Box::pin(async move { ending.complete(Ok(future.await)) }));
    Task { inner: TaskIn::World { world, id, end } }
}

pin_project_lite::pin_project! {
    /// Counts each poll as a turn ([`busy`]).
    struct Turns<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Turns<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        busy::begin_turn();
        let polled = self.project().future.poll(cx);
        busy::finish_turn();
        polled
    }
}

/// Yields to every other ready task, and lets the runtime check its sockets and timers. Cancel safe.
pub async fn yield_now() {
    if world::current().is_none() {
        return tokio::task::yield_now().await;
    }
    let mut has_waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Returns the number of the runtime's worker threads.
pub fn threads() -> usize {
    match Handle::try_current() {
        Ok(runtime) if !world::is_simulated() => runtime.metrics().num_workers(),
        _ => 1,
    }
}

/// Identity of a runtime. A simulated world counts as a runtime.
#[derive(Clone, Copy, Debug)]
pub struct Home(Option<tokio::runtime::Id>);

impl Home {
    /// Returns the runtime of the calling code.
    pub fn here() -> Home {
        Home(Handle::try_current().ok().map(|runtime| runtime.id()))
    }

    /// Returns true if the calling code runs in the same runtime. The runtime's tasks then continue, or are
    /// dropped before the program ends.
    pub fn is_here(self) -> bool {
        world::is_simulated() || (self.0.is_some() && Home::here().0 == self.0)
    }
}

#[derive(Clone)]
pub struct Shutdown {
    sender: watch::Sender<bool>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    pub fn new() -> Self {
        Shutdown { sender: watch::channel(false).0 }
    }

    pub fn trigger(&self) {
        self.sender.send_if_modified(|is_set| !std::mem::replace(is_set, true));
    }

    pub fn is_triggered(&self) -> bool {
        *self.sender.borrow()
    }

    /// Waits for the trigger. Cancel safe.
    pub async fn wait(&self) {
        let mut receiver = self.sender.subscribe();
        // The sender in `self` keeps the channel open.
        let _ = receiver.wait_for(|is_set| *is_set).await;
    }
}

/// Time for the tasks of a group to end by themselves.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Number of tasks at which a group drops its finished tasks.
const PRUNE_AT: usize = 256;

#[derive(Clone)]
pub struct TaskGroup {
    shutdown: Shutdown,
    tasks: Arc<Mutex<Tasks>>,
}

struct Tasks {
    running: Vec<(&'static str, Task<()>)>,
    prune_at: usize,
}

impl TaskGroup {
    /// Makes an empty group under the signal `shutdown`.
    pub fn new(shutdown: Shutdown) -> Self {
        TaskGroup { shutdown, tasks: Arc::new(Mutex::new(Tasks { running: Vec::new(), prune_at: PRUNE_AT })) }
    }

    /// Returns the group's stop signal, for its tasks to wait on.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        if tasks.running.len() >= tasks.prune_at {
            tasks.running.retain(|(_, t)| !t.is_finished());
            tasks.prune_at = (tasks.running.len() * 2).max(PRUNE_AT);
        }
        tasks.running.push((name, spawn(name, future)));
    }

    /// Starts a task of the group, dropped at an await when the group stops.
    pub fn spawn_until_shutdown(
        &self,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let shutdown = self.shutdown.clone();
        self.spawn(name, async move {
            tokio::select! {
                biased;
                () = shutdown.wait() => {}
                () = future => {}
            }
        });
    }

    /// Starts a task that runs the duty, dropped at an await when the group stops.
    pub fn spawn_duty(&self, name: &'static str, duty: impl Duty) {
        self.spawn_until_shutdown(name, async move {
            duty::run(duty).await;
        });
    }

    /// Triggers the shutdown, waits for all tasks, and aborts the tasks still running at the deadline.
    pub async fn stop(&self) {
        self.shutdown.trigger();
        let deadline = time::now() + STOP_DEADLINE;
        let running = std::mem::take(&mut self.tasks.lock().running);
        for (name, mut task) in running {
            match time::timeout_at(deadline, &mut task).await {
                Ok(Ok(()) | Err(JoinError::Aborted)) => {}
                Ok(Err(JoinError::Panicked(why))) => tracing::error!(task = name, why, "task had panicked"),
                Err(_) => {
                    tracing::warn!(task = name, "task did not end in time and was aborted");
                    task.abort();
                }
            }
        }
    }
}

type Farewell = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A runtime and its thread, with sockets, timers and tasks, for callers without a runtime. The runtime ends
/// with [`Background::end`] or on a drop; neither waits for the thread.
pub struct Background {
    runtime: Handle,
    end: oneshot::Sender<Farewell>,
}

impl Background {
    /// Starts the thread and its runtime.
    ///
    /// # Errors
    /// The system refuses a thread, or the resources for polling sockets.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel::<Farewell>();
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                if let Ok(farewell) = ended.await {
                    farewell.await;
                }
            });
        })?;
        Ok(Background { runtime: handle, end })
    }

    /// Runs a future to its end on the calling thread, while the runtime's thread serves sockets and timers.
    ///
    /// # Panics
    /// In async code, which must never block: "Cannot start a runtime from within a runtime".
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    pub fn spawn<F>(&self, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let _context = self.runtime.enter();
        spawn(name, future)
    }

    /// Ends the thread after `farewell`; remaining tasks are dropped.
    pub fn end(self, farewell: impl Future<Output = ()> + Send + 'static) {
        // An error means an ended thread.
        let _ = self.end.send(Box::pin(farewell));
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_group_stops_its_tasks_by_the_signal() {
        let group = TaskGroup::new(Shutdown::new());
        let ended = Arc::new(Mutex::new(0));
        for _ in 0..300 {
            let (word, ended) = (group.shutdown().clone(), ended.clone());
            group.spawn("test", async move {
                word.wait().await;
                *ended.lock() += 1;
            });
        }
        group.stop().await;
        assert_eq!(*ended.lock(), 300);
        assert!(group.shutdown().is_triggered());
    }

    #[test]
    fn code_recognizes_its_own_runtime() {
        let new = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (one, other) = (new(), new());
        let home = one.block_on(async { Home::here() });
        assert!(one.block_on(async { home.is_here() }));
        assert!(!home.is_here() && !other.block_on(async { home.is_here() }));
        assert!(!Home::here().is_here(), "there is none");
    }

    #[tokio::test]
    async fn a_panic_is_returned_to_the_joiner() {
        let task: Task<()> = spawn("test", async { panic!("on purpose") });
        assert!(matches!(task.await, Err(JoinError::Panicked(why)) if why == "on purpose"));
    }

    #[test]
    fn futures_borrow_from_the_caller_and_may_use_timers_and_tasks() {
        let background = Background::start("test").expect("a thread");
        let text = String::from("borrowed");
        let length = background.run(async {
            time::sleep(Duration::from_millis(1)).await;
            spawn("test", async {}).await.expect("no panic");
            text.len()
        });
        assert_eq!(length, 8);
        let task = background.spawn("test", async { time::sleep(Duration::from_millis(1)).await });
        background.run(task).expect("no panic");
    }

    #[test]
    fn the_farewell_runs_before_the_tasks_end() {
        let background = Background::start("test").expect("a thread");
        let (sender, receiver) = std::sync::mpsc::channel();
        let gone = sender.clone();
        drop(background.spawn("test", async move {
            let _until_the_end = gone;
            std::future::pending::<()>().await;
        }));
        background.end(async move {
            time::sleep(Duration::from_millis(1)).await;
            let _ = sender.send("farewell");
        });
        assert_eq!(receiver.recv(), Ok("farewell"));
        assert!(receiver.recv().is_err(), "the task has not ended");
    }

    #[tokio::test]
    #[should_panic(expected = "within a runtime")]
    async fn async_code_panics_when_it_blocks() {
        Background::start("test").expect("a thread").run(async {});
    }
}
