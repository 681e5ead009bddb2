//! Requests through the log: their commands, and the replies from the outcomes.

use rowlock_env::mutant::{self, Mutant};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, Request};
use rowlock_state::command::Command;
use rowlock_state::outcome::Outcome;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplyForm {
    Empty,
    Path,
    PathStat,
    Stat,
    /// One result per operation.
    Multi,
    /// The state of each queue position.
    PlaceStates,
    Held,
    /// Number of asked holders.
    Asked,
    /// Path of the request, unchanged.
    Sync(String),
    /// No body; the connection closes afterwards.
    Close,
}

/// Destination of a request.
pub(super) enum Route {
    Log(Command, ReplyForm),
    Local(Request),
    Refused(ErrorCode),
}

/// Finds the command of a request for the log.
///
/// A sync enters the log as a command without effect: the reply follows when this node has applied everything
/// committed earlier.
pub(super) fn route(request: Request) -> Route {
    let (command, form) = match request {
        Request::Create(create) => (Command::Create { create, ttl_ms: None }, ReplyForm::Path),
        Request::Create2(create) | Request::CreateContainer(create) => {
            (Command::Create { create, ttl_ms: None }, ReplyForm::PathStat)
        }
        Request::CreateTtl(create, ttl_ms) => {
            (Command::Create { create, ttl_ms: Some(ttl_ms) }, ReplyForm::PathStat)
        }
        Request::Delete { path, version } => (Command::Delete { path, version }, ReplyForm::Empty),
        Request::SetData(set) => (Command::SetData(set), ReplyForm::Stat),
        Request::SetAcl(set) => (Command::SetAcl(set), ReplyForm::Stat),
        Request::Multi(ops) => (Command::Multi(ops), ReplyForm::Multi),
        Request::Sync(path) if !mutant::is(Mutant::SyncIsLocal) => (Command::Noop, ReplyForm::Sync(path)),
        Request::CloseSession => (Command::CloseSession, ReplyForm::Close),
        Request::Acquire(all) => (Command::Acquire(all), ReplyForm::PlaceStates),
        Request::Convert { claim, mode, prefix } => {
            (Command::Convert { claim, mode, prefix }, ReplyForm::PlaceStates)
        }
        Request::Release(claims) => (Command::Release(claims), ReplyForm::Held),
        Request::Verify(claims) => (Command::Verify(claims), ReplyForm::Held),
        Request::ForceRelease(claim) => (Command::ForceRelease(claim), ReplyForm::Held),
        Request::Ask(mut ask) => {
            if mutant::is(Mutant::AskRevokesAtOnce) {
                ask.within_ms = ask.within_ms.min(1_000);
            }
            (Command::Ask(ask), ReplyForm::Asked)
        }
        Request::Abandon(attempts) => (Command::Abandon(attempts), ReplyForm::Empty),
        Request::Tagged { id, acked, request } => match route(*request) {
            Route::Log(Command::Tagged { .. }, _) | Route::Log(_, ReplyForm::Close) | Route::Local(_) => {
                return Route::Refused(ErrorCode::MarshallingError);
            }
            Route::Log(command, form) if mutant::is(Mutant::RunAgain) => (command, form),
            Route::Log(command, form) => (Command::Tagged { id, acked, command: Box::new(command) }, form),
            refused @ Route::Refused(_) => return refused,
        },
        other => return Route::Local(other),
    };
    Route::Log(command, form)
}

pub(super) fn response(form: ReplyForm, outcome: Outcome) -> Response {
    match (form, outcome) {
        (ReplyForm::Empty | ReplyForm::Close, Outcome::Done) => Response::Empty,
        (ReplyForm::Path, Outcome::Created { path, .. }) => Response::Path(path),
        (ReplyForm::PathStat, Outcome::Created { path, stat }) => Response::PathStat(path, stat),
        (ReplyForm::Stat, Outcome::Stat(stat)) => Response::Stat(stat),
        (ReplyForm::Multi, Outcome::Multi(results)) => Response::Multi(results),
        (ReplyForm::PlaceStates, Outcome::PlaceStates(place_states)) => {
            Response::PlaceStates(place_states.into_vec())
        }
        (ReplyForm::Held, Outcome::Held(held)) => Response::Held(held.into_vec()),
        (ReplyForm::Asked, Outcome::Asked(count)) => {
            Response::Number(i32::try_from(count).unwrap_or(i32::MAX))
        }
        (ReplyForm::Sync(path), Outcome::Done) => Response::Path(path),
        (form, outcome) => unreachable!("a command has one kind of outcome: {form:?} got {outcome:?}"),
    }
}
