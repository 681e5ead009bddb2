//! State of a node for `/v1/status`.

use std::sync::Arc;

use rowlock_state::Frozen;

use crate::access::http::{StateView, StatusSource};
use crate::node::delivery::registry::Registry;
use crate::node::replica::Replica;

pub(super) struct Source {
    pub(super) replica: Arc<Replica>,
    pub(super) registry: Arc<Registry>,
}

impl StatusSource for Source {
    fn freeze(&self) -> Frozen {
        self.replica.state.read().freeze()
    }

    fn state(&self) -> StateView {
        let machine = self.replica.state.read();
        let counts = machine.counts();
        StateView {
            applied_index: self.replica.applied_index(),
            zxid: machine.last_zxid(),
            digest: format!("{:016x}", machine.digest()),
            cluster: machine.cluster(),
            grace_ms: machine.grace_ms(),
            sessions: counts.sessions,
            znodes: counts.znodes,
            ephemerals: counts.ephemerals,
            watches: self.replica.watches.lock().len() as u64,
            connections: self.registry.len() as u64,
        }
    }
}
