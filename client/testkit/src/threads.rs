//! Runtime of the kit that may be dropped anywhere: tokio's own panics when dropped by async code.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Thread with its tasks. The drop ends the tasks without waiting.
pub(super) struct Threads {
    runtime: Option<Runtime>,
}

impl Threads {
    /// # Panics
    /// If the system cannot start a thread.
    pub(super) fn start(name: String) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build();
        Threads { runtime: Some(runtime.expect("the system can start a thread")) }
    }

    pub(super) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.as_ref().expect("there until it is dropped").spawn(task)
    }
}

impl Threads {
    /// Drops all tasks and waits until the threads are gone, for so long at most. Blocks: not for async code.
    pub(super) fn end(mut self, patience: Duration) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(patience);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn async_code_may_drop_it() {
        let threads = Threads::start("rowlock-test".to_owned());
        assert_eq!(threads.spawn(async { 7 }).await.expect("no panic"), 7);
        drop(threads);
    }
}
