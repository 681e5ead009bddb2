//! Questions to the holders of a lock, and their delivery to HTTP clients. A client without a connection
//! receives no notices, so replies carry the questions.

use std::cmp::Reverse;

use rowlock_env::decides;
use rowlock_proto::Request;
use rowlock_proto::lock::{Ask, Party};
use rowlock_proto::report::ShownQuestion;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId};
use rowlock_state::command::{Attachment, Command};

use super::call::Call;
use super::{Api, Caller, Refusal};
use crate::access::report;
use crate::limits::API_QUESTIONS_MAX;

/// Question to the holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questioned {
    pub lock: String,
    pub token: FencingToken,
    pub asked: ShownQuestion,
}

impl Api {
    /// Asks the holders of a lock. Returns the number of holders and the first holders visible to the caller.
    /// The HTTP listener and the lock's ACL decide whether the caller may set a deadline.
    ///
    /// # Errors
    /// [`Refusal::Full`]: the caller asked the holders of this lock less than a second ago and sets no
    /// deadline. [`Refusal::Unknown`]: the question may have been asked; a retry asks again.
    pub async fn ask(&self, caller: &Caller, ask: Ask) -> Result<(u32, Vec<Party>), Refusal> {
        self.check_serving()?;
        let command = Command::Client(Request::Ask(ask.clone()));
        let applied = Call::new(self, caller).submit(SessionId::NONE, Attachment::default(), command).await?;
        match applied.result {
            Ok(Response::Number(count)) => {
                Ok((u32::try_from(count).unwrap_or(0), self.questioned(caller, &ask)))
            }
            Ok(other) => unreachable!("a question tells how many holders it has reached: {other:?}"),
            Err(ErrorCode::ThrottledOp) => Err(Refusal::Full(
                "you asked the holders of this lock less than a second ago, or too many ask",
            )),
            Err(ErrorCode::BadArguments) => Err(Refusal::Bad("this cannot be the path of a lock".to_owned())),
            Err(code) => Err(Refusal::of(code)),
        }
    }

    fn questioned(&self, caller: &Caller, ask: &Ask) -> Vec<Party> {
        let state = self.context.replica.state.read();
        let Some(queue) = state.lock_queue(&ask.lock) else { return Vec::new() };
        let may_read = |path: &str| state.may_read(path, &caller.identities);
        if decides!("asked-lock-is-unreadable", !may_read(&ask.lock)) {
            return Vec::new();
        }
        let has_it =
            |question: &rowlock_state::Question| (&question.reason, &question.by) == (&ask.reason, &ask.by);
        let asked =
            queue.holders().filter(|it| it.asked.as_deref().is_some_and(has_it) && may_read(&it.path));
        let party = |it: rowlock_state::ContenderView| Party {
            path: it.path.into(),
            session: it.session,
            token: it.token,
            label: it.label,
            since_ms: it.granted_ms.unwrap_or(it.requested_ms),
        };
        asked.take(API_QUESTIONS_MAX).map(party).collect()
    }

    /// Returns the newest questions to the session from the local state, one for each lock with a question.
    pub fn questions_to(&self, session: SessionId) -> Vec<Questioned> {
        let state = self.context.replica.state.read();
        let now_ms = self.reports.now_ms(&state);
        let mut all: Vec<_> = state.questions_to(session).collect();
        all.sort_by_key(|it| (Reverse(it.question.asked_ms), it.token));
        let one = |it: rowlock_state::AskedHolder<'_>| Questioned {
            lock: it.lock.to_owned(),
            token: it.token,
            asked: report::shown_question(it.question, now_ms),
        };
        all.into_iter().take(API_QUESTIONS_MAX).map(one).collect()
    }
}
