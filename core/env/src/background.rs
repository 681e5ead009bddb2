//! An async runtime with its own thread, for callers without a runtime.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::task::{self, Task};

type Farewell = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A runtime and its thread, with sockets, timers and tasks. The runtime ends with [`Background::end`] or on
/// a drop; neither waits for the thread.
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
        task::spawn(name, future)
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
    use std::time::Duration;

    use super::*;
    use crate::time;

    #[test]
    fn futures_borrow_from_the_caller_and_may_use_timers_and_tasks() {
        let background = Background::start("test").expect("a thread");
        let text = String::from("borrowed");
        let length = background.run(async {
            time::sleep(Duration::from_millis(1)).await;
            task::spawn("test", async {}).await.expect("no panic");
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
