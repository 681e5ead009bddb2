//! Numbered writes: a write takes effect once, and a repetition is answered by the first outcome.

use rowlock_proto::lock::QueuePosition;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, Request};
use rowlock_state::command::Command;

use crate::rights::Author;
use crate::shown::Room;
use crate::{Oracle, Reply};

impl Oracle {
    pub(crate) fn run_once(
        &mut self,
        by: &Author,
        (id, acked): (u64, u64),
        command: &Command,
    ) -> Reply<Response> {
        let open = self.sessions.get_mut(&by.session).ok_or(ErrorCode::SessionExpired)?;
        open.acked = open.acked.max(acked);
        open.outcomes = open.outcomes.split_off(&(open.acked + 1));
        match open.outcomes.get(&id).cloned() {
            Some(Ok(_)) if matches!(command, Command::Refused(_)) => return Err(ErrorCode::ThrottledOp),
            Some(Ok(first)) if fits(command, &first) => return Ok(self.answer_again(by, command, first)),
            Some(Ok(_)) => return Err(ErrorCode::BadArguments),
            Some(Err(code)) => return Err(code),
            None if id <= open.acked => return Err(ErrorCode::BadArguments),
            None => {}
        }
        // The checker of `bounded` counts the bytes of outcomes, which the model does not know.
        if self.given == Err(ErrorCode::ThrottledOp) && !open.outcomes.is_empty() {
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
            let is_own = |found: &crate::queue::Position| found.session == by.session;
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
