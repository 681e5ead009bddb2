//! Read-only service: a node without a quorum answers the reads of consenting clients.
//!
//! Such a connection is independent of the cluster: none of its requests go through the log or to a leader.
//! The reply to the handshake carries `readOnly`, and the node closes the connection as soon as normal
//! service returns, so that the client reconnects for a session of the cluster.
//!
//! Must never change anything, grant anything, or keep a session alive. A ping's reply proves only that this
//! node lives, and nothing about the session: the quorum on the other side may have expired the session and
//! granted its locks to another client. Reads may be older than the cluster's state, though never older than
//! what the client has seen.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::rng;
use rowlock_env::time::{self, Instant};
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::{Machine, Proof};

use rowlock_sessions::expiry_table::LastContact;

/// Top byte of sessions known to a single node. The cluster's sessions begin with a node's number, below 128.
const LOCAL_MARK: u8 = 0xc1;

/// Detects that this node has been without a quorum for long enough to serve reads only.
pub struct Isolation {
    enabled: bool,
    contact: Arc<LastContact>,
    after: Duration,
    since: Instant,
}

impl Isolation {
    /// Starts the wait: no read-only service before `after` has passed.
    pub fn new(enabled: bool, contact: Arc<LastContact>, after: Duration) -> Self {
        Isolation { enabled, contact, after, since: time::now() }
    }

    /// Returns whether the node may serve reads while it does not serve all requests.
    pub fn is_isolated(&self) -> bool {
        self.enabled && self.since.elapsed() >= self.after && !self.contact.within(self.after)
    }
}

/// Decision about a client of an isolated node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// A session known here, or a new session unknown to other nodes.
    Session(SessionId, [u8; 16]),
    /// The session belonged to an isolated node and is over: the client must ask for another.
    Over,
    /// This node does not know whether the session lives: the client must ask another node.
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

/// Returns whether the session is known to a single node only, and ends with its connection.
pub(super) fn is_local(session: SessionId) -> bool {
    session.0.to_be_bytes()[0] == LOCAL_MARK
}

fn local_session(me: NodeId) -> SessionId {
    let mut id = rng::u64().to_be_bytes();
    id[0] = LOCAL_MARK;
    id[1] = me.0.to_be_bytes()[7];
    SessionId(i64::from_be_bytes(id))
}
