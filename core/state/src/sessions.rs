//! Sessions of all clients of all nodes, and the commands that open, move and end sessions.
//!
//! Keepalives never enter the log: only the leader keeps their times, and proposes expiries.

mod hosts;
mod session;
mod table;

use std::sync::Arc;

use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, NodeId, SessionId, Zxid};

use crate::command::{Attachment, Proof, Proposal};
use crate::cost::END_GRANTS_MAX;
use crate::done::{Cause, Done};
use crate::guard::decides;
use crate::machine::Machine;
use crate::outcome::{Attached, EndReason, EventSink, SessionEnd};
use crate::shared_map::Slot;
use crate::steps;
pub use hosts::{LASTING_MS, Opened, STATE_LOCK_MS};
pub(crate) use session::Near;
pub use session::{Host, Session};
pub(crate) use table::Sessions;

impl Machine {
    /// Returns the slot of the session if the session exists and this attachment is its newest.
    pub(crate) fn admit(
        &self,
        session: SessionId,
        attachment: Attachment,
    ) -> Result<(Slot, &Session), ErrorCode> {
        let place = self.sessions.find(session).ok_or(ErrorCode::SessionExpired)?;
        let open = self.sessions.map.at(place).1;
        if decides!("writer-is-attached", open.attachment == attachment) {
            Ok((place, open))
        } else {
            Err(ErrorCode::SessionMoved)
        }
    }

    pub(crate) fn create_session<S: EventSink + ?Sized>(
        &mut self,
        by: &Proposal,
        proof: Proof,
        timeout_ms: u32,
        sink: &mut S,
    ) -> Attached {
        let zxid = self.next_zxid();
        let session = session_id(by.origin.node, zxid);
        assert!(session.0 > 0, "the id of a session is a positive number");
        let attachment = Attachment(1);
        let opened = Session::new(proof, timeout_ms, attachment).opened_from(Host::among(&by.identities));
        self.sessions.open(session, opened);
        sink.session_opened(session, attachment, timeout_ms);
        Attached { session, attachment, timeout_ms }
    }

    pub(crate) fn attach<S: EventSink + ?Sized>(
        &mut self,
        session: SessionId,
        proof: Proof,
        from: Option<Attachment>,
        timeout_ms: u32,
        sink: &mut S,
    ) -> Result<Attached, ErrorCode> {
        let known = self
            .sessions
            .get(session)
            .filter(|open| decides!("session-secret-fits", open.proof.is_that_of(&proof)));
        let open = known.ok_or(ErrorCode::SessionExpired)?;
        if from.is_some_and(|from| decides!("session-moved-meanwhile", from != open.attachment)) {
            return Err(ErrorCode::SessionMoved);
        }
        let before = open.attachment;
        let attachment = self.sessions.attach(session, timeout_ms);
        assert!(before < attachment, "an older connection of {session} could go on");
        sink.session_attached(session, attachment, timeout_ms);
        Ok(Attached { session, attachment, timeout_ms })
    }

    /// Ends an open session. Deletes all its ephemerals under one zxid, in the order of their paths.
    pub(crate) fn end_session<S: EventSink + ?Sized>(
        &mut self,
        session: SessionId,
        end: SessionEnd,
        sink: &mut S,
    ) -> Response {
        let zxid = self.next_zxid();
        let open = self.sessions.get(session).expect("the session has been admitted");
        let mut paths: Vec<Arc<str>> = open.shared_ephemerals().map(|(path, _)| path.clone()).collect();
        paths.sort_unstable();
        debug_assert!(paths.windows(2).all(|two| two[0] < two[1]), "{session} has a znode twice");
        let mut gone: Vec<_> = paths.into_iter().map(|path| self.remove(zxid, &path)).collect();
        let is_its = |done: &Done| done.stat.ephemeral_owner == session;
        assert!(gone.iter().all(is_its), "the end of {session} takes another session's znode away");
        self.sessions.close(session);
        let why = Some(match end {
            SessionEnd::Closed => EndReason::SessionClosed,
            SessionEnd::Expired => EndReason::SessionExpired,
            SessionEnd::Ended => EndReason::SessionEnded,
        });
        let cause = Cause { session, why, grants_max: END_GRANTS_MAX, ..Cause::of_the_cluster(zxid) };
        self.publish(cause, &mut gone, sink);
        debug_assert!(
            steps::uncounted(|| gone.iter().all(|done| self.tree.get(done.path()).is_none())),
            "an ephemeral of {session} has outlived it"
        );
        sink.session_ended(session, end);
        Response::Empty
    }

    /// Returns the counts of a host's open sessions.
    pub fn opened_by(&self, host: Host) -> Opened {
        self.sessions.hosts.by_host.get(&host).copied().unwrap_or_default()
    }

    pub fn opened(&self) -> Opened {
        self.sessions.hosts.all
    }
}

/// Returns a new session id: unique because zxids are. The node's number is in front, as in ZooKeeper, and
/// shows operators the origin.
fn session_id(node: NodeId, zxid: Zxid) -> SessionId {
    let node = (node.0 & 0x7f) as i64;
    SessionId(node << 56 | zxid.0 & ((1 << 56) - 1))
}
