//! [`Caller`]: the client of a request.

use std::net::SocketAddr;
use std::sync::Arc;

use rowlock_proto::acl::Id;

use crate::node::trace::TraceParent;

#[derive(Clone, Debug)]
pub struct Caller {
    pub address: SocketAddr,
    /// Proven identities, compared with ACLs.
    pub identities: Arc<[Id]>,
    /// Trace of the request, copied into log lines and audit records.
    pub trace: Option<TraceParent>,
}
