//! Outside view of the nodes: last published status, and whether their processes run.

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_coordinator::{Role, Status};
use rowlock_proto::NodeId;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// State of a node's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// Stopped by the simulation.
    Down,
    Up,
    /// Ended by itself: the start or the disk failed, or the node may not take part.
    Failed {
        /// Error that the node reported.
        why: String,
        /// Whether the node's state differs from the state of its peers.
        differs: bool,
    },
    /// Stopped in order, on request.
    Stopped,
    /// Stopped in order, to start again.
    Restarting,
    /// Stopped because the cluster has left its state behind, to start again without the state.
    LeftBehind,
}

/// Operator's request to a running node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Stop,
    /// Stops in order and starts again with the `cluster.toml` of that moment.
    Restart,
    /// Transfers the leadership to this node.
    HandOver(NodeId),
}

impl Process {
    /// Returns a failure that does not come from a differing state.
    pub fn failed(why: impl ToString) -> Process {
        Process::Failed { why: why.to_string(), differs: false }
    }
}

struct Entry {
    process: Process,
    status: Status,
    /// The node runs the new release, for good.
    is_upgraded: bool,
    /// The cluster has left the node's state behind, and the node does not serve again yet.
    is_left_behind: bool,
    orders: Option<UnboundedSender<Order>>,
}

/// One entry per node, by its place.
#[derive(Clone)]
pub struct NodeStatuses(Arc<Mutex<Vec<Entry>>>);

impl NodeStatuses {
    /// Creates entries for `nodes` nodes, all down.
    pub fn new(nodes: usize) -> Self {
        let entry = |_| Entry {
            process: Process::Down,
            status: Status::default(),
            is_upgraded: false,
            is_left_behind: false,
            orders: None,
        };
        NodeStatuses(Arc::new(Mutex::new((0..nodes).map(entry).collect())))
    }

    /// Begins a new life of a node. Returns the receiver of the node's orders.
    pub(super) fn begin(&self, place: usize) -> UnboundedReceiver<Order> {
        let (orders, obeyed) = mpsc::unbounded_channel();
        let (process, status, is_upgraded) = (Process::Up, Status::default(), false);
        let mut entries = self.0.lock();
        let is_left_behind = entries[place].is_left_behind;
        let entry = Entry { process, status, is_upgraded, is_left_behind, orders: Some(orders) };
        let former = std::mem::replace(&mut entries[place], entry);
        drop(entries);
        drop(former);
        obeyed
    }

    /// Records whether a node, begun now, runs the new release for good.
    pub(super) fn set_upgraded(&self, place: usize, is_upgraded: bool) {
        self.0.lock()[place].is_upgraded = is_upgraded;
    }

    /// Returns whether a node runs the new release for good, or ran it when it ended.
    pub fn is_upgraded(&self, place: usize) -> bool {
        self.0.lock()[place].is_upgraded
    }

    pub(super) fn publish(&self, place: usize, status: Status) {
        let entry = &mut self.0.lock()[place];
        entry.is_left_behind &= !status.serving;
        entry.status = status;
    }

    /// Returns whether the node has dropped a state that the cluster has left behind, and has no other state
    /// yet.
    pub fn is_left_behind(&self, place: usize) -> bool {
        self.0.lock()[place].is_left_behind
    }

    pub(super) fn end(&self, place: usize, process: Process) {
        let mut entries = self.0.lock();
        entries[place].is_left_behind |= process == Process::LeftBehind;
        entries[place].process = process;
        entries[place].status = Status::default();
    }

    /// Sends an order to a node. Does nothing if the node is down, or has the order to stop.
    pub(super) fn order(&self, place: usize, order: Order) {
        let is_last = order == Order::Stop || order == Order::Restart;
        let orders = &mut self.0.lock()[place].orders;
        let orders = if is_last { orders.take() } else { orders.clone() };
        if let Some(orders) = orders {
            let _ = orders.send(order); // its process may have ended
        }
    }

    /// Returns whether a process has ended by itself and is not cleared away yet.
    pub fn has_news(&self) -> bool {
        self.0.lock().iter().any(|entry| !matches!(entry.process, Process::Up | Process::Down))
    }

    pub fn processes(&self) -> Vec<Process> {
        self.0.lock().iter().map(|entry| entry.process.clone()).collect()
    }

    /// Returns a node's last status; empty if the node is down.
    pub fn status(&self, place: usize) -> Status {
        self.0.lock()[place].status.clone()
    }

    /// Returns whether the node leaves on request, and so serves no clients.
    pub fn is_leaving(&self, place: usize) -> bool {
        let entry = &self.0.lock()[place];
        entry.process == Process::Up && entry.orders.is_none()
    }

    /// Returns the leader according to the nodes: of several leaders, the leader of the highest term.
    pub fn leader(&self) -> Option<usize> {
        let entries = self.0.lock();
        let leading = entries.iter().enumerate().filter(|(_, entry)| entry.status.role == Role::Leader);
        leading.max_by_key(|(_, entry)| entry.status.term).map(|(place, _)| place)
    }
}

/// Returns the number of the node at a place.
pub fn node_id(place: usize) -> NodeId {
    NodeId(place as u64 + 1)
}
