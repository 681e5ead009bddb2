//! One node of the test kit: where it is found, its folder, and while it runs, the node with a runtime of its
//! own.

use std::sync::Arc;
use std::time::Duration;

use rowlock_coordinator::{Addresses, Node, NodeConfig, StartError, Status};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_wal::StorageError;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::threads::Threads;

/// How long a node may take to stop, or to let go of its folder.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// Between two looks whether a folder is free.
const AGAIN: Duration = Duration::from_millis(5);

/// What all nodes last said of themselves, by their place; `None` for those that do not run.
pub(super) type Board = Arc<watch::Sender<Vec<Option<Status>>>>;

/// Where a running node really listens, for its doors.
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

/// A node that runs. Its tasks live on a runtime of its own: a test that blocks its own thread does not stop
/// the cluster, and a killed node is gone with all its tasks.
pub(super) struct Running {
    // Dropped first, and with it all that could stop the node in order.
    threads: Threads,
    node: Node,
    follow: JoinHandle<()>,
}

impl Running {
    /// Starts a node whose configuration names its folder and doors. Waits while a former life of it still
    /// has the folder.
    async fn start(config: NodeConfig, place: usize, board: Board) -> Result<Running, StartError> {
        let threads = Threads::start(format!("rowlock-node-{}", config.id));
        let node = threads.spawn(retry(config)).await.expect("the start of a node does not panic")?;
        let follow = threads.spawn(follow(node.status(), place, board));
        Ok(Running { threads, node, follow })
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Nothing more comes from it onto the board.
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

    /// Ends in the middle of whatever it does.
    async fn kill(mut self) {
        self.unfollow().await;
    }

    /// What it runs on: with the end of that it ends in the middle of whatever it does.
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

/// A place in the cluster, whether its node runs or not.
pub(super) struct NodeSlot {
    pub(super) at: usize,
    /// What its node is started with: its folder, its doors, the test's own wishes.
    pub(super) config: NodeConfig,
    pub(super) targets: Targets,
    /// Where clients find it.
    pub(super) endpoint: String,
    /// The node, while it runs.
    pub(super) running: Mutex<Option<Running>>,
}

impl NodeSlot {
    /// Starts the node; one that runs is stopped before.
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

    /// Stops the node in order, if it runs.
    pub(super) async fn stop(&self, board: &Board) {
        if let Some(running) = self.running.lock().await.take() {
            running.stop().await;
        }
        self.gone(board);
    }

    /// Ends the node, if it runs.
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
