//! What a node does for the others: the two faces that `handler.rs` turns requests into calls of.

use std::collections::BTreeSet;
use std::future::Future;

use futures_util::future::BoxFuture;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::command::Proposal;
use rowlock_types::client_disconnect::ClientDisconnect;
use rowlock_types::member::Member;
use rowlock_types::operation::Operation;
use rowlock_types::reconfiguration::Wanted;
use rowlock_types::status::Status;

use super::introduction::Introduction;
use super::message::Refusal;
use crate::raft_types::messages::{RaftRequest, RaftResponse};
use rowlock_transport::Lane;

/// Handler for requests of other nodes, apart from Raft. Implemented above, in `node.rs`.
pub trait PeerService: Send + Sync + 'static {
    /// Takes forwarded proposals into the leader's proposer, behind all that came from `from` before. The
    /// next batch of that connection is not offered before this one is taken; waiting here holds the sender
    /// back. Once it refuses, every later batch of the connection is refused without asking. It refuses
    /// unless it leads in `term`.
    fn forward(
        &self,
        from: NodeId,
        term: u64,
        batch: Vec<Proposal>,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Restarts the sessions' timers and gives those that do not run any more; done when a quorum has
    /// confirmed that this node leads in `term`. `is_short`: the disk of `from` is short of room. Also gives
    /// how many sessions per second `from` may send here.
    fn touches(
        &self,
        from: NodeId,
        sessions: Vec<SessionId>,
        term: u64,
        is_short: bool,
    ) -> impl Future<Output = Result<(Vec<SessionId>, u32), Refusal>> + Send;

    /// Shortens the time of sessions whose clients have hung up, if this node leads in `term`.
    fn client_disconnects(
        &self,
        from: NodeId,
        disconnects: Vec<ClientDisconnect>,
        term: u64,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// A connection of `from`, for this lane, has ended.
    fn peer_disconnected(&self, from: NodeId, lane: Lane);

    /// The log index that a linearizable read must wait for, confirmed by a quorum.
    fn read_index(&self) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Introduces this node to `from`, which has been started.
    fn introduce(&self, from: NodeId) -> impl Future<Output = Introduction> + Send;

    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Takes a learner in; gives the log index of the committed change.
    fn add_learner(&self, node: NodeId, member: Member) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Makes these the voters; gives the log index of the committed change.
    fn change_voters(&self, voters: BTreeSet<NodeId>) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Changes the membership as a client of ZooKeeper's asks for it; gives the log index of the committed
    /// change, or the code with which it is refused. A refusal to look at it at all is the outer one; after
    /// `NoQuorum` the change may have happened.
    fn reconfigure(
        &self,
        wanted: Wanted,
    ) -> impl Future<Output = Result<Result<u64, ErrorCode>, Refusal>> + Send;

    /// Does what an operator wants; gives a document, or the code with which it is refused. A refusal to look
    /// at it at all is the outer one.
    fn operate(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Result<String, ErrorCode>, Refusal>> + Send;
}

/// Handler for Raft requests of other nodes. Implemented in `raft/rpc.rs`.
pub trait RaftService: Send + Sync + 'static {
    fn open(&self, from: NodeId, lane: Lane) -> Box<dyn RaftConnection>;
}

/// Raft's side of one connection; dropped with it.
pub trait RaftConnection: Send {
    /// Carries out one request. The future must have handed it on by the end of its first poll, so that
    /// requests keep their order.
    fn handle(&mut self, request: RaftRequest) -> BoxFuture<'static, RaftResponse>;
}
