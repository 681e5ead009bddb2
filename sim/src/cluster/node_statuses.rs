//! What is known of the nodes from outside: their last published status, and whether their processes run.

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_coordinator::{Role, Status};
use rowlock_proto::NodeId;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// The state of a node's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// It does not run, because the simulation stopped it.
    Down,
    Up,
    /// It ended by itself: it did not start, its disk failed, it may not take part.
    Failed {
        /// The reason that it gave.
        why: String,
        /// Its state differs from that of the other nodes.
        differs: bool,
    },
    /// It stopped in order, as it was asked to.
    Stopped,
    /// So it did, and it is to start again.
    Restarting,
}

/// An operator's request to a running node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Stop,
    /// Stop in order, and start again with the `cluster.toml` of that moment.
    Restart,
    /// Give the leadership to that node.
    HandOver(NodeId),
}

impl Process {
    /// It ended by itself, and not because of its state.
    pub fn failed(why: impl ToString) -> Process {
        Process::Failed { why: why.to_string(), differs: false }
    }
}

struct Entry {
    process: Process,
    status: Status,
    orders: Option<UnboundedSender<Order>>,
}

/// One entry per node, by its place.
#[derive(Clone)]
pub struct NodeStatuses(Arc<Mutex<Vec<Entry>>>);

impl NodeStatuses {
    /// For this many nodes, none of which runs.
    pub fn new(nodes: usize) -> Self {
        let entry = |_| Entry { process: Process::Down, status: Status::default(), orders: None };
        NodeStatuses(Arc::new(Mutex::new((0..nodes).map(entry).collect())))
    }

    /// A new life of a node begins; it obeys these orders.
    pub(super) fn begin(&self, place: usize) -> UnboundedReceiver<Order> {
        let (orders, obeyed) = mpsc::unbounded_channel();
        let entry = Entry { process: Process::Up, status: Status::default(), orders: Some(orders) };
        let former = std::mem::replace(&mut self.0.lock()[place], entry);
        drop(former);
        obeyed
    }

    pub(super) fn say(&self, place: usize, status: Status) {
        self.0.lock()[place].status = status;
    }

    pub(super) fn end(&self, place: usize, process: Process) {
        let mut entries = self.0.lock();
        entries[place].process = process;
        entries[place].status = Status::default();
    }

    /// Sends an order to a node; nothing happens if it does not run.
    pub(super) fn order(&self, place: usize, order: Order) {
        let orders = self.0.lock()[place].orders.clone();
        if let Some(orders) = orders {
            let _ = orders.send(order); // its process may have ended
        }
    }

    /// A process has ended by itself and is not cleared away yet.
    pub fn has_news(&self) -> bool {
        self.0.lock().iter().any(|entry| !matches!(entry.process, Process::Up | Process::Down))
    }

    pub fn processes(&self) -> Vec<Process> {
        self.0.lock().iter().map(|entry| entry.process.clone()).collect()
    }

    /// A node's last status; empty if it does not run.
    pub fn status(&self, place: usize) -> Status {
        self.0.lock()[place].status.clone()
    }

    /// The leader according to the nodes: of several the one with the highest term.
    pub fn leader(&self) -> Option<usize> {
        let entries = self.0.lock();
        let leading = entries.iter().enumerate().filter(|(_, entry)| entry.status.role == Role::Leader);
        leading.max_by_key(|(_, entry)| entry.status.term).map(|(place, _)| place)
    }
}

/// The number of the node at a place.
pub fn node_id(place: usize) -> NodeId {
    NodeId(place as u64 + 1)
}
