//! Requests of a client that the heart of a node passes on: reports, changes of the membership, operations.
//!
//! In the flow: a connection gives an [`Ask`] to the [`Admin`] or the [`ReportSource`] of its node and goes
//! on; the answer comes through the outbox. Another node's requests of this kind come from
//! [`crate::node::service`].
//!
//! Must never do: wait, or be asked for a client that has no right to it; connections check that before.

use std::future::ready;
use std::net::IpAddr;
use std::pin::Pin;

use rowlock_consensus::operation::Operation;
use rowlock_consensus::peer::Refusal;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_proto::acl::Id;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::Frozen;
use rowlock_wal::entry::Member;

use crate::node::delivery::outbox::Outbox;

/// A request, and where its answer goes.
pub struct Ask<T> {
    pub wanted: T,
    /// Receives the answer, or `Message::Lost` when the outcome cannot be known.
    pub reply_to: Outbox,
    /// Given back with the answer.
    pub tag: u64,
}

/// The client that asks for a report.
pub struct Reader {
    pub who: Vec<Id>,
    pub session: SessionId,
    pub address: IpAddr,
}

/// The result of an operation: a document or the reason for none. A refusal means that it is not for this
/// node.
pub type Operated = Result<Result<String, ErrorCode>, Refusal>;

/// Changes of the membership and operations: the floor `cluster`. A node without this floor refuses them.
pub trait Admin: Send + Sync + 'static {
    /// Begins a change of the membership, answered by `Message::Reconfigured`.
    ///
    /// # Errors
    /// Nothing has begun, and no answer comes.
    fn reconfigure(&self, _: Ask<Wanted>) -> Result<(), ErrorCode> {
        Err(ErrorCode::ReconfigDisabled)
    }

    /// Begins an operation, answered by `Message::Reported`.
    ///
    /// # Errors
    /// Nothing has begun, and no answer comes.
    fn operate(&self, _: Ask<Operation>) -> Result<(), ErrorCode> {
        Err(ErrorCode::Unimplemented)
    }

    /// Carries out an operation at this node for another node.
    fn carry_out<'a>(&'a self, _: &'a Operation) -> Pin<Box<dyn Future<Output = Operated> + Send + 'a>> {
        Box::pin(ready(Ok(Err(ErrorCode::Unimplemented))))
    }

    /// Records the address of a founder while there is no cluster.
    fn record_founder(&self, _: NodeId, _: Member) {}
}

/// Reports: the floor `access`. A node without this floor refuses them.
pub trait ReportSource: Send + Sync + 'static {
    /// Begins a report on the state `frozen`, answered by `Message::Reported`.
    ///
    /// # Errors
    /// Nothing has begun, and no answer comes.
    fn report(&self, _frozen: Frozen, _: Ask<String>, _: Reader) -> Result<(), ErrorCode> {
        Err(ErrorCode::Unimplemented)
    }
}

/// Stands for a floor that is not built in.
pub struct NotBuilt;

impl Admin for NotBuilt {}

impl ReportSource for NotBuilt {}
