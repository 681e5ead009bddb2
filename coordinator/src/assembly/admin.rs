//! The requests that the heart of a node passes on, each to the floor that carries it out.

use std::pin::Pin;
use std::sync::Arc;

use rowlock_proto::{ErrorCode, NodeId};
use rowlock_state::Frozen;
use rowlock_types::member::Member;
use rowlock_types::operation::Operation;
use rowlock_types::reconfiguration::Wanted;

use crate::admin::{Admin, Ask, Operated, Reader};

/// The admin of a whole node. A floor that is not built in refuses.
pub(super) struct Floors {
    pub(super) access: Arc<dyn Admin>,
    pub(super) cluster: Arc<dyn Admin>,
}

impl Admin for Floors {
    fn reconfigure(&self, ask: Ask<Wanted>) -> Result<(), ErrorCode> {
        self.cluster.reconfigure(ask)
    }

    fn operate(&self, ask: Ask<Operation>) -> Result<(), ErrorCode> {
        self.cluster.operate(ask)
    }

    fn report(&self, frozen: Frozen, ask: Ask<String>, reader: Reader) -> Result<(), ErrorCode> {
        self.access.report(frozen, ask, reader)
    }

    fn carry_out<'a>(&'a self, wanted: &'a Operation) -> Pin<Box<dyn Future<Output = Operated> + Send + 'a>> {
        self.cluster.carry_out(wanted)
    }

    fn record_founder(&self, node: NodeId, member: Member) {
        self.cluster.record_founder(node, member);
    }
}
