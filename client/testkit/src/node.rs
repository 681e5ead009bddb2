//! A node of the test kit: addresses, folder, and the running node with a runtime of its own.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rowlock_coordinator::{Addresses, Node, NodeConfig, StartError, Status};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_wal::StorageError;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// Time limit for a node to stop, or to let go of its folder.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// Between two looks whether a folder is free.
const AGAIN: Duration = Duration::from_millis(5);

/// Latest status of all nodes, by index; `None` for stopped nodes.
pub(super) type Board = Arc<watch::Sender<Vec<Option<Status>>>>;

/// Listening addresses of a running node, for the proxies.
pub(super) struct Targets {
    pub(super) client: watch::Sender<Option<String>>,
    pub(super) peer: watch::Sender<Option<String>>,
    pub(super) http: watch::Sender<Option<String>>,
}

impl Targets {
    pub(super) fn new() -> Self {
        let none = || watch::channel(None).0;
        Targets { client: none(), peer: none(), http: none() }
    }

    fn set(&self, addresses: Option<Addresses>) {
        self.client.send(addresses.map(|it| it.client.to_string()));
        self.peer.send(addresses.map(|it| it.peer.to_string()));
        self.http.send(addresses.map(|it| it.http.to_string()));
    }
}

/// Running node, with tasks on a runtime of its own: a test that blocks its own thread does not stop the
/// cluster, and a killed node is gone with all tasks.
pub(super) struct Running {
    // Dropped first, and with it all that could stop the node in order.
    threads: Threads,
    node: Node,
    follow: JoinHandle<()>,
}

impl Running {
    /// Starts a node with the folder and addresses of `config`. Waits while a former process of the node
    /// still has the folder.
    async fn start(config: NodeConfig, place: usize, board: Board) -> Result<Running, StartError> {
        let threads = Threads::start(format!("rowlock-node-{}", config.id));
        let node = threads.spawn(retry(config)).await.expect("the start of a node does not panic")?;
        let follow = threads.spawn(follow(node.status(), place, board));
        Ok(Running { threads, node, follow })
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Stops reports of the node to the board.
    async fn unfollow(&mut self) {
        self.follow.abort();
        // It was aborted, or had ended.
        let _ = (&mut self.follow).await;
    }

    async fn stop(mut self) {
        self.unfollow().await;
        let stopped = self.threads.spawn(self.node.shutdown());
        if time::timeout(STOP_DEADLINE, stopped).await.is_err() {
            tracing::warn!("a node of the test kit did not stop in time");
        }
    }

    /// Ends the node abruptly.
    async fn kill(mut self) {
        self.unfollow().await;
    }

    /// Returns the runtime; dropping the runtime ends the node abruptly.
    pub(super) fn into_threads(self) -> Threads {
        self.threads
    }
}

async fn retry(config: NodeConfig) -> Result<Node, StartError> {
    let deadline = Instant::now() + STOP_DEADLINE;
    loop {
        match Node::start(config.clone()).await {
            Err(StartError::Storage(StorageError::InUse(_))) if Instant::now() < deadline => {
                time::sleep(AGAIN).await;
            }
            started => return started,
        }
    }
}

async fn follow(mut status: watch::Receiver<Status>, place: usize, board: Board) {
    loop {
        let now = status.borrow_and_update().clone();
        board.modify(|board| board[place] = Some(now));
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Slot of a node in the cluster, running or not.
pub(super) struct NodeSlot {
    pub(super) at: usize,
    /// Configuration of the node: folder, addresses, the test's own changes.
    pub(super) config: NodeConfig,
    pub(super) targets: Targets,
    pub(super) endpoint: String,
    pub(super) running: Mutex<Option<Running>>,
}

impl NodeSlot {
    /// Starts the node, after stopping a running node.
    pub(super) async fn start(&self, board: &Board) -> Result<(), StartError> {
        let mut place = self.running.lock().await;
        if let Some(running) = place.take() {
            running.stop().await;
        }
        let running = Running::start(self.config.clone(), self.at, Arc::clone(board)).await?;
        self.targets.set(Some(running.node().addresses()));
        *place = Some(running);
        Ok(())
    }

    /// Stops the node in order; does nothing to a stopped node.
    pub(super) async fn stop(&self, board: &Board) {
        if let Some(running) = self.running.lock().await.take() {
            running.stop().await;
        }
        self.gone(board);
    }

    pub(super) async fn kill(&self, board: &Board) {
        if let Some(running) = self.running.lock().await.take() {
            running.kill().await;
        }
        self.gone(board);
    }

    fn gone(&self, board: &Board) {
        self.targets.set(None);
        board.modify(|board| board[self.at] = None);
    }
}

/// Thread with its tasks, which may be dropped anywhere: tokio's own runtime panics when dropped by async
/// code. The drop ends the tasks without waiting.
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
