//! Reports on locks, queues, sessions and the history: one JSON document per question. Over HTTP (`GET`) and
//! over ZooKeeper's protocol (`Request::Report`) the same path and query return the same document.
//!
//! In the flow: the caller freezes the state, a constant-time operation, and releases the lock; a separate
//! thread then builds the document from the frozen state. So a report never delays apply, for any length of a
//! queue.
//!
//! Must never do: show data without READ permission for the reader, build a document without a bound, or
//! change the state.

pub(crate) mod access;
mod backup;
mod contention;
mod history;
mod locks;
pub mod question;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::limits::{REPORT_MAX_BYTES, REPORTS_FOR_SUPERUSERS, REPORTS_MAX};
use parking_lot::Mutex;
use rowlock_consensus::log_clock::LogClock;
use rowlock_env::task::TaskGroup;
use rowlock_env::{rate, worker};
use rowlock_history::History;
use rowlock_proto::acl::Id;
use rowlock_proto::{ErrorCode, Right};
use rowlock_state::{Frozen, Machine, acl};
use serde::Serialize;

use crate::node::delivery::outbox::{Message, Outbox};
use crate::node::delivery::registry::Registry;
pub use access::Viewer;
pub use backup::Backups;
pub(crate) use history::{Past, Span, shown};
pub(crate) use locks::shown_question;
use question::{HistoryQuestion, Question};

/// Reasons for refusing a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    NoSuchReport(String),
    #[error("{0}")]
    BadQuestion(String),
    #[error("{0}")]
    NotThere(String),
    /// Denied by an ACL.
    #[error("{0}")]
    NotPermitted(String),
    /// Denied by the rules for the lock at this path.
    #[error("{}", .0.missing_on(.1))]
    NoRight(Right, String),
    /// All slots in use.
    #[error("too many reports at the same time; try again")]
    Busy,
    /// Data not recorded by this node.
    #[error("{0}")]
    NotKept(String),
    /// Timeout, or a failure of the disk.
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

/// Report builder of a node. Clones share all state.
#[derive(Clone)]
pub struct Reports {
    history: History,
    /// Connections of this node, with their addresses.
    registry: Arc<Registry>,
    /// Clock for durations in reports.
    clock: Arc<LogClock>,
    backups: Backups,
    places: Arc<ReportSlots>,
    tasks: TaskGroup,
    /// Only operators may end other clients' holds of locks without a rule.
    is_guarded: bool,
}

/// Slot for one report, out of `limits::REPORTS_MAX`.
pub struct ReportSlot {
    reports: Reports,
    _permit: Permit,
}

impl Reports {
    /// Returns a builder on the history and connections of this node. Reports for sessions run as tasks of
    /// `tasks`.
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

    /// Sets whether the cluster guards its locks.
    #[must_use]
    pub fn guarded(self, is_guarded: bool) -> Reports {
        Reports { is_guarded, ..self }
    }

    /// Returns the reference time for durations in a report on this state.
    pub(crate) fn now_ms(&self, machine: &Machine) -> i64 {
        // The leader's clock may be ahead of this node's clock; durations must not be negative.
        self.clock.now_ms().max(machine.time_ms())
    }

    /// Returns the number of free slots.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.places.free()
    }

    /// Starts a report on the state `frozen`. The result arrives at `reply_to` as `Message::Reported` with
    /// this tag.
    ///
    /// # Errors
    /// [`Refusal::Busy`]: no message will arrive.
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

    /// Takes a slot for a report. Each party has a share of the slots, and superusers have additional slots
    /// for diagnosis during a flood.
    ///
    /// # Errors
    /// [`Refusal::Busy`]: no slot is free.
    pub fn begin(&self, who: &[Id], party: Requester) -> Result<ReportSlot, Refusal> {
        let permit = self.places.take(party, acl::is_super(who)).ok_or(Refusal::Busy)?;
        Ok(ReportSlot { reports: self.clone(), _permit: permit })
    }
}

impl ReportSlot {
    /// Builds the document for `what` (path and query) from the state `frozen` for `reader`, as JSON text.
    /// Takes at most slightly longer than `limits::HISTORY_READ_MAX`.
    ///
    /// # Errors
    /// [`Refusal`]; a retry is safe.
    ///
    /// # Cancel safety
    /// Cancel safe: a report changes nothing; its thread completes the started work.
    ///
    /// # Ordering
    /// The document shows the frozen state; the history may include later events.
    pub async fn answer(self, frozen: Frozen, what: &str, reader: Viewer) -> Result<String, Refusal> {
        match Question::parse(what)? {
            Question::History(question) => self.history(frozen, question, reader).await,
            Question::Contention(question) => {
                let until_ms = self.reports.now_ms(frozen.machine());
                let asked = contention::Asked { question, until_ms, reader };
                contention::document(&self.reports.history, frozen, asked).await
            }
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
    // The leader's clock may be ahead of this node's clock; durations must not be negative.
    let now_ms = now_ms.max(machine.time_ms());
    match question {
        Question::Locks(asked) => Ok(json_of(&locks::overview(machine, asked, &reader.who, now_ms))),
        Question::Queue { lock, token, limit } => {
            locks::queue(machine, lock, *token, *limit, &reader.who, now_ms).map(|queue| json_of(&queue))
        }
        Question::Sessions { session, limit } => {
            locks::session_overview(machine, *session, *limit, reader, registry).map(|shown| json_of(&shown))
        }
        Question::Access { lock, who } => {
            access::rights(machine, (lock, who.as_ref()), reader, is_guarded).map(|shown| json_of(&shown))
        }
        Question::History(_) | Question::Contention(_) | Question::Backup { .. } => {
            unreachable!("answered before")
        }
    }
}

fn json_of(document: &impl Serialize) -> String {
    serde_json::to_string(document).expect("Invariant: reports are structs, lists, text and numbers")
}

/// List of a report: bounded in items and bytes, with a flag for further items.
struct List<T> {
    pub items: Vec<T>,
    pub more: bool,
    limit: usize,
    bytes: usize,
}

impl<T: Serialize> List<T> {
    /// Returns an empty list for at most `limit` items.
    pub fn new(limit: usize) -> List<T> {
        List { items: Vec::new(), more: false, limit, bytes: 0 }
    }

    /// Appends an item. Returns false if the list is full.
    pub fn push(&mut self, item: T) -> bool {
        let bytes = self.bytes + json_of(&item).len() + 1;
        // An empty list accepts an item of any size, so a client that pages through the list always advances.
        if self.items.len() >= self.limit || (bytes > REPORT_MAX_BYTES && !self.items.is_empty()) {
            self.more = true;
            return false;
        }
        self.bytes = bytes;
        self.items.push(item);
        true
    }

    /// Returns an empty list for the remaining items and bytes of `other`.
    pub fn rest_of<U>(limit: usize, other: &List<U>) -> List<T> {
        List { items: Vec::new(), more: other.more, limit: limit - other.items.len(), bytes: other.bytes }
    }
}

/// Requester of a report. HTTP and sessions of one host count separately, so neither blocks the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// Sessions of this host, over ZooKeeper's protocol.
    Sessions(IpAddr),
    Http(IpAddr),
}

impl Requester {
    fn of_host(self) -> Requester {
        match self {
            Requester::Sessions(addr) => Requester::Sessions(rate::host(addr)),
            Requester::Http(addr) => Requester::Http(rate::host(addr)),
        }
    }
}

/// Slots of concurrent reports, shared fairly among the requesters.
#[derive(Debug, Default)]
struct ReportSlots(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_superusers: usize,
    of_party: BTreeMap<Requester, usize>,
}

/// Used slot. Dropping frees the slot.
#[derive(Debug)]
struct Permit {
    slots: Arc<ReportSlots>,
    /// `None`: a slot for superusers.
    party: Option<Requester>,
}

impl ReportSlots {
    /// Takes a slot. A party may hold at most as many slots as remain free, so free slots remain for the next
    /// party. Superusers have additional slots.
    fn take(self: &Arc<Self>, party: Requester, is_super: bool) -> Option<Permit> {
        let mut taken = self.0.lock();
        if is_super && taken.by_superusers < REPORTS_FOR_SUPERUSERS {
            taken.by_superusers += 1;
            return Some(Permit { slots: self.clone(), party: None });
        }
        let party = party.of_host();
        let left = REPORTS_MAX - REPORTS_FOR_SUPERUSERS - taken.all;
        let own = taken.of_party.get(&party).copied().unwrap_or(0);
        if own >= left {
            return None;
        }
        taken.all += 1;
        taken.of_party.insert(party, own + 1);
        Some(Permit { slots: self.clone(), party: Some(party) })
    }

    #[cfg(test)]
    fn free(&self) -> usize {
        let taken = self.0.lock();
        REPORTS_MAX - taken.all - taken.by_superusers
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.slots.0.lock();
        let Some(party) = self.party else {
            taken.by_superusers -= 1;
            return;
        };
        taken.all -= 1;
        let own = taken.of_party.get_mut(&party).expect("Invariant: each used slot is counted for its party");
        *own -= 1;
        if *own == 0 {
            taken.of_party.remove(&party);
        }
    }
}

#[cfg(test)]
mod tests;
