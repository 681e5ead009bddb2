//! Reports: what people and tools ask about locks, queues, sessions and their history, as one JSON document
//! per question. The same path and query give the same document over HTTP (`GET`) and to a client
//! (`Request::Report`).
//!
//! In the flow: the caller freezes the state, which costs nothing, and lets the lock go; the document is
//! made of that on a thread of its own. So a report never keeps apply waiting, however long the queue.
//!
//! Must never do: show what its reader may not READ, make a document without a bound, or change anything.

pub(crate) mod access;
mod backup;
mod history;
mod list;
mod locks;
mod places;
pub mod question;
mod sessions;
mod since;

use std::sync::Arc;

use rowlock_consensus::log_clock::LogClock;
use rowlock_env::task::TaskGroup;
use rowlock_env::worker;
use rowlock_history::History;
use rowlock_proto::acl::Id;
use rowlock_proto::{ErrorCode, Right};
use rowlock_state::{Frozen, Machine, acl};
use serde::Serialize;

use crate::delivery::outbox::{Message, Outbox};
use crate::delivery::registry::Registry;
pub use access::Viewer;
pub use backup::Backups;
pub(crate) use locks::asked;
pub use places::Requester;
use places::{Permit, ReportSlots};
use question::{HistoryQuestion, Question};
pub(crate) use since::{Past, Span, shown};

/// Why there is no document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    NoSuchReport(String),
    /// The question has a mistake.
    #[error("{0}")]
    BadQuestion(String),
    /// The subject of the report does not exist.
    #[error("{0}")]
    NotThere(String),
    /// It may not be read.
    #[error("{0}")]
    NotPermitted(String),
    /// The rules of the lock at this path do not grant it.
    #[error("{}", .0.missing_on(.1))]
    NoRight(Right, String),
    /// Too many are asked for at once.
    #[error("too many reports are being made; try again")]
    Busy,
    /// This node keeps none.
    #[error("{0}")]
    NotKept(String),
    /// It could not be made in time.
    #[error("{0}")]
    NotNow(String),
}

impl Refusal {
    /// Returns the error code for clients of ZooKeeper's protocol.
    pub fn code(&self) -> ErrorCode {
        match self {
            Refusal::NoSuchReport(_) | Refusal::BadQuestion(_) => ErrorCode::BadArguments,
            Refusal::NotThere(_) => ErrorCode::NoNode,
            Refusal::NotPermitted(_) => ErrorCode::NoAuth,
            Refusal::NoRight(right, _) => ErrorCode::NoRight(*right),
            Refusal::Busy => ErrorCode::ThrottledOp,
            Refusal::NotKept(_) => ErrorCode::Unimplemented,
            Refusal::NotNow(_) => ErrorCode::OperationTimeout,
        }
    }
}

/// Makes the reports of a node. Clone it freely.
#[derive(Clone)]
pub struct Reports {
    history: History,
    /// Connections of this node, with their addresses.
    registry: Arc<Registry>,
    /// By which the state says since when.
    clock: Arc<LogClock>,
    backups: Backups,
    places: Arc<ReportSlots>,
    tasks: TaskGroup,
    /// Set if only operators end holds, where no rule names the lock.
    is_guarded: bool,
}

/// A report that may be made now: one of `limits::REPORTS_MAX`.
pub struct ReportSlot {
    reports: Reports,
    _permit: Permit,
}

impl Reports {
    /// From the history and the connections of this node, at the time of `clock`. What is made for clients is
    /// made by tasks of `tasks`.
    pub fn new(
        history: History,
        registry: Arc<Registry>,
        clock: Arc<LogClock>,
        backups: Backups,
        tasks: TaskGroup,
    ) -> Reports {
        let (places, is_guarded) = (Arc::default(), false);
        Reports { history, registry, clock, backups, places, tasks, is_guarded }
    }

    /// Returns it for a cluster that guards its locks, or not.
    #[must_use]
    pub fn guarded(self, is_guarded: bool) -> Reports {
        Reports { is_guarded, ..self }
    }

    /// The time by which a report on this state tells how long ago something was.
    pub(crate) fn now_ms(&self, machine: &Machine) -> i64 {
        // The leader's clock may be ahead of this node's: no wait is shorter than nothing.
        self.clock.now_ms().max(machine.time_ms())
    }

    /// How many more may be made now.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.places.free()
    }

    /// Has a report made, of the state `frozen`; it goes to `reply_to` as `Message::Reported` with that tag.
    ///
    /// # Errors
    /// [`Refusal::Busy`]: nothing will come.
    pub fn make(
        &self,
        frozen: Frozen,
        what: String,
        (reader, party): (Viewer, Requester),
        tag: u64,
        reply_to: Outbox,
    ) -> Result<(), Refusal> {
        let (place, shutdown) = (self.begin(&reader.who, party)?, self.tasks.shutdown().clone());
        self.tasks.spawn("report", async move {
            let result = tokio::select! {
                biased;
                () = shutdown.wait() => return,
                result = place.answer(frozen, &what, reader) => result.map_err(|refusal| refusal.code()),
            };
            reply_to.push(Message::Reported { tag, result });
        });
        Ok(())
    }

    /// A place among those that are made, for `who`. Each party has its share, and superusers have some more:
    /// they look when others flood.
    ///
    /// # Errors
    /// [`Refusal::Busy`]: there is none.
    pub fn begin(&self, who: &[Id], party: Requester) -> Result<ReportSlot, Refusal> {
        let permit = self.places.take(party, acl::is_super(who)).ok_or(Refusal::Busy)?;
        Ok(ReportSlot { reports: self.clone(), _permit: permit })
    }
}

impl ReportSlot {
    /// The document that `what` (path and query) asks for, as JSON text, of the state `frozen` and for
    /// `reader`. Takes at most a little longer than `limits::HISTORY_READ_MAX`.
    ///
    /// # Errors
    /// [`Refusal`]; asking again is safe.
    ///
    /// # Cancel safety
    /// Nothing is changed; what has begun on a thread is finished there.
    ///
    /// # Ordering
    /// The document shows the state that was frozen; the history also what came after it.
    pub async fn answer(self, frozen: Frozen, what: &str, reader: Viewer) -> Result<String, Refusal> {
        match Question::parse(what)? {
            Question::History(question) => self.history(frozen, question, reader).await,
            Question::Backup { piece } => {
                let backups = self.reports.backups.clone();
                let work = move || backups.answer(&frozen, piece, &reader).map(|value| value.to_string());
                worker::run_blocking("backup", work).await
            }
            question => {
                let (registry, now_ms) = (self.reports.registry.clone(), self.reports.clock.now_ms());
                let is_guarded = self.reports.is_guarded;
                worker::run_blocking("report", move || {
                    document(frozen.machine(), &question, &reader, &registry, (now_ms, is_guarded))
                })
                .await
            }
        }
    }

    async fn history(
        &self,
        frozen: Frozen,
        question: HistoryQuestion,
        reader: Viewer,
    ) -> Result<String, Refusal> {
        if let Some(lock) = &question.lock {
            access::check(frozen.machine(), lock, &reader.who)?;
        }
        let history = self.reports.history.clone();
        let (entries, more_before) = history::collect(&history, &frozen, &question, &reader).await?;
        Ok(json_of(&history::document(entries, more_before)))
    }
}

fn document(
    machine: &Machine,
    question: &Question,
    reader: &Viewer,
    registry: &Registry,
    (now_ms, is_guarded): (i64, bool),
) -> Result<String, Refusal> {
    // The leader's clock may be ahead of this node's: no wait is shorter than nothing.
    let now_ms = now_ms.max(machine.time_ms());
    match question {
        Question::Locks(asked) => Ok(json_of(&locks::overview(machine, asked, &reader.who, now_ms))),
        Question::Queue { lock, token, limit } => {
            locks::queue(machine, lock, *token, *limit, &reader.who, now_ms).map(|queue| json_of(&queue))
        }
        Question::Sessions { session, limit } => {
            sessions::overview(machine, *session, *limit, reader, registry).map(|shown| json_of(&shown))
        }
        Question::Access { lock, who } => {
            access::rights(machine, (lock, who.as_ref()), reader, is_guarded).map(|shown| json_of(&shown))
        }
        Question::History(_) | Question::Backup { .. } => unreachable!("answered before"),
    }
}

fn json_of(document: &impl Serialize) -> String {
    serde_json::to_string(document).expect("Invariant: reports are structs, lists, text and numbers")
}

#[cfg(test)]
mod tests;
