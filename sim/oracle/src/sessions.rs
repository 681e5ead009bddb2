//! Sessions: opened, moved to another connection, ended with all their ephemeral znodes. Numbered writes take
//! effect once, and the first outcome answers a repetition.

use std::collections::BTreeMap;
use std::sync::Arc;

use rowlock_proto::lock::QueuePosition;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, NodeId, Request, SessionId};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command};
use rowlock_state::outcome::{Attached, EndReason, SessionEnd};

use crate::book::{Author, Cause, Open, Oracle, Position, Reply, Znode};
use crate::events::Event;
use crate::shown::Room;

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
        let is_owned = move |znode: &Znode| znode.stat.ephemeral_owner == session;
        self.znodes.iter().filter(move |(_, znode)| is_owned(znode)).map(|(path, _)| path)
    }

    pub(crate) fn run_once(
        &mut self,
        by: &Author,
        (id, acked): (u64, u64),
        command: &Command,
    ) -> Reply<Response> {
        let open = self.sessions.get_mut(&by.session).ok_or(ErrorCode::SessionExpired)?;
        open.acked = open.acked.max(acked);
        open.outcomes = open.outcomes.split_off(&(open.acked + 1));
        let is_known = id <= open.acked || open.outcomes.contains_key(&id);
        let is_refused = self.given == Err(ErrorCode::ThrottledOp);
        self.news.about = is_known.then_some("exactly-once").or(is_refused.then_some("bounded"));
        match open.outcomes.get(&id).cloned() {
            Some(Ok(_)) if matches!(command, Command::Refused(_)) => return Err(ErrorCode::ThrottledOp),
            Some(Ok(first)) if fits(command, &first) => return Ok(self.answer_again(by, command, first)),
            Some(Ok(_)) => return Err(ErrorCode::BadArguments),
            Some(Err(code)) => return Err(code),
            None if id <= open.acked => return Err(ErrorCode::BadArguments),
            None => {}
        }
        // The model does not know the exact bytes of outcomes: the promise `bounded` counts least bytes.
        if is_refused && id != open.acked + 1 && !open.outcomes.is_empty() {
            return Err(ErrorCode::ThrottledOp);
        }
        let result = self.write(by, command);
        if let Some(open) = self.sessions.get_mut(&by.session) {
            open.outcomes.insert(id, result.clone());
        }
        result
    }

    /// Returns the answer to a repetition: queue positions as they are now.
    fn answer_again(&self, by: &Author, command: &Command, first: Response) -> Response {
        let Response::QueuePositions(mut positions) = first else { return first };
        let room = &mut Room::default();
        let is_placed = |position: &QueuePosition| position.claim().is_some();
        if let Command::Client(Request::Acquire(all)) = command
            && positions.iter().all(is_placed)
        {
            return Response::QueuePositions(self.positions_of(by, all, room).into());
        }
        for position in &mut positions {
            let Some(claim) = position.claim().cloned() else { continue };
            let is_own = |found: &Position| found.session == by.session;
            *position = match self.position_of(&claim).filter(|found| is_own(found)) {
                Some(_) => self.shown_position(by, &claim, room),
                None => QueuePosition::Absent,
            };
        }
        Response::QueuePositions(positions)
    }
}

/// Returns whether a write of this kind can have this outcome.
fn fits(command: &Command, outcome: &Response) -> bool {
    match command {
        Command::Client(Request::Create(_)) => matches!(outcome, Response::Path(_)),
        Command::Client(Request::Create2(_) | Request::CreateContainer(_) | Request::CreateTtl(..)) => {
            matches!(outcome, Response::PathStat(..))
        }
        Command::Client(Request::SetData(_) | Request::SetAcl(_)) => matches!(outcome, Response::Stat(_)),
        Command::Client(Request::Multi(_)) | Command::Fenced { .. } => matches!(outcome, Response::Multi(_)),
        Command::Client(Request::Acquire(_) | Request::Convert { .. }) => {
            matches!(outcome, Response::QueuePositions(_))
        }
        Command::Client(Request::Release(_) | Request::ForceRelease(_)) => {
            matches!(outcome, Response::Held(_))
        }
        _ => *outcome == Response::Empty,
    }
}
