//! Read-only service: a node without a quorum answers the reads of clients that allow it.
//!
//! Such a connection stands beside the cluster: nothing of it goes through the log or to a leader. Its client
//! is told (`readOnly` in the answer to the handshake), and it is closed as soon as the node serves again, so
//! that it comes back for a session that counts.
//!
//! Must never do: change anything, grant anything, or keep a session alive. A ping that is answered here says
//! that this node lives and nothing about the session: the quorum on the other side may have expired it and
//! given its locks to another client. What is read may be older than what the cluster has, though never older
//! than what the client has seen.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::rng;
use rowlock_env::time::{self, Instant};
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::{Machine, Proof};

use rowlock_sessions::last_contact::LastContact;

/// The top byte of sessions that only one node knows. The cluster's begin with a node's number, below 128.
const LOCAL_MARK: u8 = 0xc1;

/// Whether this node is without a quorum for good enough to serve reads only.
pub struct Isolation {
    enabled: bool,
    contact: Arc<LastContact>,
    after: Duration,
    since: Instant,
}

impl Isolation {
    /// Starts now: no read-only service before `after` has passed.
    pub fn new(enabled: bool, contact: Arc<LastContact>, after: Duration) -> Self {
        Isolation { enabled, contact, after, since: time::now() }
    }

    /// Reads may be served, unless the node serves everything.
    pub fn is_isolated(&self) -> bool {
        self.enabled && self.since.elapsed() >= self.after && !self.contact.within(self.after)
    }
}

/// The session of a client of an isolated node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// This one: known here, or new and known to no other node.
    Session(SessionId, [u8; 16]),
    /// It was of an isolated node: it counts for nothing, and the client is to ask for another.
    Over,
    /// This node cannot tell whether the session lives: the client is to ask elsewhere.
    Unknown,
}

/// Decides about a handshake on an isolated node.
pub(super) fn admit(request: &ConnectRequest, state: &Machine, me: NodeId) -> Admission {
    if request.session_id == SessionId::NONE {
        let mut password = [0; 16];
        rng::fill(&mut password);
        return Admission::Session(local_session(me), password);
    }
    match state.session(request.session_id) {
        Some(open) if open.proof.is_that_of(&Proof::of(&request.password)) => {
            let password = request.password[..].try_into();
            Admission::Session(
                request.session_id,
                password.expect("Invariant: only such passwords are given"),
            )
        }
        None if is_local(request.session_id) => Admission::Over,
        _ => Admission::Unknown,
    }
}

/// Only one node knows the session; it ends with its connection.
pub(super) fn is_local(session: SessionId) -> bool {
    session.0.to_be_bytes()[0] == LOCAL_MARK
}

fn local_session(me: NodeId) -> SessionId {
    let mut id = rng::u64().to_be_bytes();
    id[0] = LOCAL_MARK;
    id[1] = me.0.to_be_bytes()[7];
    SessionId(i64::from_be_bytes(id))
}
