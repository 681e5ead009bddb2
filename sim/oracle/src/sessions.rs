//! Sessions: opened, moved to another connection, ended with all their ephemeral znodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::Proof;
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{Attached, EndReason, SessionEnd};

use crate::queue::Cause;
use crate::{Event, Oracle, Reply};

#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub proof: Proof,
    pub timeout_ms: u32,
    pub longest_timeout_ms: u32,
    pub attachment: Attachment,
    /// The client knows the outcomes up to this number.
    pub acked: u64,
    /// Outcomes of later writes.
    pub outcomes: BTreeMap<u64, Reply<Response>>,
}

impl Oracle {
    pub(crate) fn open(&mut self, node: NodeId, proof: Proof, timeout_ms: u32) -> Attached {
        self.zxid.0 += 1;
        let session = SessionId(((node.0 % 128) as i64) << 56 | self.zxid.0);
        let (attachment, longest_timeout_ms) = (Attachment(1), timeout_ms);
        let (acked, outcomes) = (0, BTreeMap::new());
        let open = Open { proof, timeout_ms, longest_timeout_ms, attachment, acked, outcomes };
        self.sessions.insert(session, open);
        self.events.push(Event::Opened(session, attachment, timeout_ms));
        Attached { session, attachment, timeout_ms }
    }

    pub(crate) fn attach(
        &mut self,
        session: SessionId,
        proof: Proof,
        from: Option<Attachment>,
        timeout_ms: u32,
    ) -> Reply<Attached> {
        let open = self.sessions.get_mut(&session).filter(|open| open.proof == proof);
        let open = open.ok_or(ErrorCode::SessionExpired)?;
        if from.is_some_and(|from| from != open.attachment) {
            return Err(ErrorCode::SessionMoved);
        }
        open.attachment.0 += 1;
        open.timeout_ms = timeout_ms;
        open.longest_timeout_ms = open.longest_timeout_ms.max(timeout_ms);
        let attachment = open.attachment;
        self.events.push(Event::Attached(session, attachment, timeout_ms));
        Ok(Attached { session, attachment, timeout_ms })
    }

    pub(crate) fn end(&mut self, session: SessionId, end: SessionEnd) {
        self.zxid.0 += 1;
        let owned: Vec<Arc<str>> = self.owned(session).cloned().collect();
        let changes = self.changes_of(owned);
        self.sessions.remove(&session);
        let why = match end {
            SessionEnd::Closed => EndReason::SessionClosed,
            SessionEnd::Expired => EndReason::SessionExpired,
            SessionEnd::Ended => EndReason::SessionEnded,
        };
        self.publish(&Cause::of_the_cluster(Some(why)), changes);
        self.events.push(Event::Ended(session, end));
    }

    /// Iterates over a session's ephemeral znodes in the order of their paths.
    pub(crate) fn owned(&self, session: SessionId) -> impl Iterator<Item = &Arc<str>> {
        let is_owned = move |znode: &crate::Znode| znode.stat.ephemeral_owner == session;
        self.znodes.iter().filter(move |(_, znode)| is_owned(znode)).map(|(path, _)| path)
    }
}
