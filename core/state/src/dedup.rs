//! Outcomes that a session still needs. A client sends a write again when the connection has lost the
//! response; the repeated write gets the first outcome and has no second effect.
//!
//! The scheme follows the dissertation on Raft (section 6.3): the client numbers its writes and acknowledges
//! outcomes up to a number; the session forgets acknowledged outcomes. Invariant: [`crate::OUTCOMES_MAX`] and
//! [`crate::OUTCOMES_MAX_BYTES`] bound the outcomes of one session; [`crate::OUTCOMES_ALL_BYTES`] and
//! [`crate::OUTCOMES_SMALL_BYTES`] bound the outcomes of all sessions, plus two outcomes per session. Apply
//! refuses writes beyond these bounds before any effect, except the write behind the acknowledged ones: the
//! client acknowledges no later outcome before the outcome of this write. The size of one outcome is in
//! proportion to its request.

use rowlock_proto::Request;
use rowlock_proto::lock::QueuePosition;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, SessionId};

use crate::command::{Command, Proposal, Stamp};
use crate::guard::decides;
use crate::locks::Room;
use crate::machine::Machine;
use crate::outcome::{EventSink, Outcomes, Stored};
use crate::shared_map::Slot;
use crate::steps;

impl Machine {
    /// Runs the write unless the session has run it before.
    pub(crate) fn run_once<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        proposal: &Proposal,
        (id, acked, command): (u64, u64, &Command),
        sink: &mut S,
    ) -> Stored {
        assert!(command.is_write(), "only what a client writes has a number");
        let (place, open) = self.admit(proposal.session, proposal.attachment)?;
        let near = (proposal.session, place);
        if decides!("outcome-is-kept", acked < id && open.outcomes.takes(id, self.sessions.outcome_bytes())) {
            let result = self.run_write(stamp, (proposal, place), command, sink);
            self.sessions.with_outcomes(near, |outcomes| outcomes.keep_next(id, &result, acked));
            return result;
        }
        self.sessions.with_outcomes(near, |outcomes| outcomes.acknowledge(acked));
        self.run_odd(stamp, (proposal, place), (id, command), sink)
    }

    /// Runs a repeated write, or a write beyond the bounds, after the acknowledged outcomes are gone.
    fn run_odd<S: EventSink + ?Sized>(
        &mut self,
        stamp: Stamp,
        (proposal, place): (&Proposal, Slot),
        (id, command): (u64, &Command),
        sink: &mut S,
    ) -> Stored {
        let outcomes = self.sessions.outcomes(proposal.session).expect("the session has been admitted");
        if let Some(stored) = outcomes.get(id) {
            // The leader refused the repetition before the first one was applied: the client asks again and
            // gets the outcome.
            if let (Command::Refused(_), Ok(_)) = (command, &stored) {
                return Err(ErrorCode::ThrottledOp);
            }
            let stored = stored?;
            return if decides!("kept-outcome-fits", fits(command, &stored)) {
                Ok(self.again(proposal, command, stored))
            } else {
                Err(ErrorCode::BadArguments)
            };
        }
        if decides!("numbered-write-was-acknowledged", id <= outcomes.acked()) {
            return Err(ErrorCode::BadArguments);
        }
        let is_next = id == outcomes.acked() + 1;
        if decides!("outcomes-are-full", !is_next && outcomes.is_full(self.sessions.outcome_bytes())) {
            return Err(ErrorCode::ThrottledOp);
        }
        let result = self.run_write(stamp, (proposal, place), command, sink);
        let near = (proposal.session, place);
        self.sessions.with_outcomes(near, |outcomes| outcomes.keep(id, &result));
        debug_assert!(
            steps::uncounted(|| self.knows_write(proposal.session, id)),
            "write {id} would be done again"
        );
        result
    }

    /// Returns the bytes of the outcomes of all sessions.
    pub fn outcome_bytes(&self) -> usize {
        self.sessions.outcome_bytes()
    }

    /// Returns the numbers of the session's writes with a kept outcome, in order.
    pub fn kept_writes(&self, session: SessionId) -> impl Iterator<Item = u64> {
        let outcomes = self.sessions.outcomes(session);
        outcomes.into_iter().flat_map(Outcomes::ids)
    }

    /// Returns the number up to which the session's client knows the outcomes of its writes.
    pub fn acked_writes(&self, session: SessionId) -> u64 {
        self.sessions.outcomes(session).map_or(0, Outcomes::acked)
    }

    /// Returns the first outcome of this write of the session, if kept.
    pub fn kept_outcome(&self, session: SessionId, id: u64) -> Option<Result<Response, ErrorCode>> {
        self.sessions.outcomes(session)?.get(id)
    }

    /// Returns whether this write of the session is over, so that a repetition gets only an answer.
    pub fn knows_write(&self, session: SessionId, id: u64) -> bool {
        self.sessions.outcomes(session).is_some_and(|outcomes| outcomes.knows(id))
    }

    /// Forgets the outcomes of all writes. Simulates a replica that has lost the outcomes: repeated writes
    /// take effect again.
    #[doc(hidden)]
    pub fn forget_outcomes(&mut self) {
        let sessions: Vec<SessionId> = self.sessions.iter().map(|(id, _)| id).collect();
        for id in sessions {
            self.sessions.with_outcomes((id, Slot::default()), |outcomes| *outcomes = Outcomes::default());
        }
    }

    /// Updates the outcome of a repeated request: the queue may have changed since the first time.
    fn again(&self, proposal: &Proposal, command: &Command, outcome: Response) -> Response {
        let (session, room) = (proposal.session, Room::of_an_answer(&proposal.identities));
        let Response::QueuePositions(mut positions) = outcome else { return outcome };
        let had_places =
            positions.iter().all(|one| matches!(one, QueuePosition::Held(_) | QueuePosition::Waiting { .. }));
        if let (Command::Client(Request::Acquire(all)), true) = (command, had_places) {
            return Response::QueuePositions(
                self.positions_again((session, Slot::default()), all, room).into(),
            );
        }
        // The outcome of a convert, or of an acquire with a refused position among several.
        self.renew_positions(session, &mut positions, room);
        Response::QueuePositions(positions)
    }
}

/// Returns whether the command can have this outcome. A client that uses one number for two different writes
/// must get an error, not the outcome of another kind of write.
fn fits(command: &Command, outcome: &Response) -> bool {
    let request = match command {
        Command::Client(request) => request,
        Command::Fenced { .. } => return matches!(outcome, Response::Multi(_)),
        _ => return matches!(outcome, Response::Empty),
    };
    match request {
        Request::Create(_) => matches!(outcome, Response::Path(_)),
        Request::Create2(_) | Request::CreateContainer(_) | Request::CreateTtl(..) => {
            matches!(outcome, Response::PathStat(..))
        }
        Request::SetData(_) | Request::SetAcl(_) => matches!(outcome, Response::Stat(_)),
        Request::Multi(_) => matches!(outcome, Response::Multi(_)),
        Request::Acquire(_) | Request::Convert { .. } => matches!(outcome, Response::QueuePositions(_)),
        Request::Release(_) | Request::ForceRelease(_) => matches!(outcome, Response::Held(_)),
        _ => matches!(outcome, Response::Empty),
    }
}
