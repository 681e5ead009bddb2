//! Requests that go through the log, as commands.

use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_proto::{ErrorCode, Request};
use rowlock_state::command::Command;

/// Where a request is answered from.
pub(super) enum Route {
    Log(Command),
    Local(Request),
    Refused(ErrorCode),
}

/// Finds out whether a request goes through the log, as which command.
///
/// sync takes its place in the log as a command without effect: its answer comes when everything committed
/// before it has been applied here.
pub(super) fn route(mut request: Request) -> Route {
    if let Request::Ask(ask) = &mut request
        && mutant::is(Mutant::AskRevokesAtOnce)
    {
        ask.within_ms = ask.within_ms.min(1_000);
    }
    match request {
        Request::Tagged { request, .. } if mutant::is(Mutant::RunAgain) => route(*request),
        Request::Sync(_) if mutant::is(Mutant::SyncIsLocal) => Route::Local(request),
        Request::Tagged { .. } => {
            Command::of_client(request).map_or(Route::Refused(ErrorCode::MarshallingError), Route::Log)
        }
        request if decides!("request-is-logged", request.opcode().is_logged()) => {
            Route::Log(Command::Client(request))
        }
        request => Route::Local(request),
    }
}
