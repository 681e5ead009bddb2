//! Services of a node for other nodes: the two traits called by `handler.rs`.

use std::collections::BTreeSet;
use std::future::Future;

use futures_util::future::BoxFuture;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::command::Proposal;
use rowlock_wal::member::Member;

use rowlock_transport::Lane;

use super::introduction::Introduction;
use super::message::Refusal;
use crate::operation::Operation;
use crate::peer::message::ClientDisconnect;
use crate::raft_types::messages::{RaftRequest, RaftResponse};
use crate::reconfiguration::Wanted;
use crate::status::Status;

/// Handler for requests of other nodes, apart from Raft. Implemented above, in `node.rs`.
pub trait PeerService: Send + Sync + 'static {
    /// Passes forwarded proposals to the leader's proposer, behind all earlier ones of `from`. The next batch
    /// of the connection waits for the end of this call, so waiting here slows the sender down. After the
    /// first refusal the listener refuses every later batch of the connection without a call. Refuses unless
    /// this node leads in `term`.
    fn forward(
        &self,
        from: NodeId,
        term: u64,
        batch: Vec<Proposal>,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Restarts the sessions' timers. Resolves when a quorum has confirmed that this node leads in `term`.
    /// Returns the sessions whose timers do not run, and the number of sessions per second that `from` may
    /// send here. `is_short`: the disk of `from` is short of room.
    fn touches(
        &self,
        from: NodeId,
        sessions: Vec<SessionId>,
        term: u64,
        is_short: bool,
    ) -> impl Future<Output = Result<(Vec<SessionId>, u32), Refusal>> + Send;

    /// Shortens the time of sessions whose clients disconnected, if this node leads in `term`.
    fn client_disconnects(
        &self,
        from: NodeId,
        disconnects: Vec<ClientDisconnect>,
        term: u64,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Called when a connection of `from`, for this lane, has ended.
    fn peer_disconnected(&self, from: NodeId, lane: Lane);

    /// Returns the log index that a linearizable read must wait for, confirmed by a quorum.
    fn read_index(&self) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Introduces this node to `from`, which has started.
    fn introduce(&self, from: NodeId) -> impl Future<Output = Introduction> + Send;

    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Adds a learner. Returns the log index of the committed change.
    fn add_learner(&self, node: NodeId, member: Member) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Makes these the voters. Returns the log index of the committed change.
    fn change_voters(&self, voters: BTreeSet<NodeId>) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Changes the membership in ZooKeeper's terms. Returns the log index of the committed change, or the
    /// code of the rejection. The outer error means that the change was not attempted, except `NoQuorum`,
    /// after which the change may have happened.
    fn reconfigure(
        &self,
        wanted: Wanted,
    ) -> impl Future<Output = Result<Result<u64, ErrorCode>, Refusal>> + Send;

    /// Performs an operator's request. Returns a document, or the code of the rejection. The outer error
    /// means that the request was not attempted.
    fn operate(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Result<String, ErrorCode>, Refusal>> + Send;
}

/// Handler for Raft requests of other nodes. Implemented in `raft/rpc.rs`.
pub trait RaftService: Send + Sync + 'static {
    fn open(&self, from: NodeId, lane: Lane) -> Box<dyn RaftConnection>;
}

/// Raft's side of one connection; dropped with the connection.
pub trait RaftConnection: Send {
    /// Carries out one request. The future must pass the request on by the end of its first poll, so that
    /// requests keep their order.
    fn handle(&mut self, request: RaftRequest) -> BoxFuture<'static, RaftResponse>;
}
