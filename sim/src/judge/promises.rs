//! The promises that committed entries and the nodes' logs can show, each with its checker, the number of
//! judged facts, and the first breach.

use crate::fact_recorder::REFERENCE_NODE;
use crate::history::node::NodeFact;
use crate::history::{Book, Fact};
use crate::invariants::{self, Invariant};

/// Promise of the comparison of histories with the log.
pub(super) const HISTORIES: &str = "lock-events";
/// Promises about the logs of nodes.
const OF_LOGS: [&str; 3] = ["log-matching", "committed-never-changes", "votes-never-go-back"];

/// A promise with its checker.
pub struct Promise {
    name: &'static str,
    /// `None`: the histories are compared without facts.
    checker: Option<Box<dyn Invariant>>,
    /// Kind of the judged facts.
    unit: &'static str,
    judged: u64,
    broken: Option<String>,
}

impl std::fmt::Debug for Promise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, judged, broken) = (self.name(), self.judged, &self.broken);
        f.debug_struct("Promise")
            .field("name", &name)
            .field("judged", &judged)
            .field("broken", broken)
            .finish()
    }
}

impl Promise {
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn observe(&mut self, fact: &Fact, book: &Book, place: impl Fn() -> String) {
        let Some(checker) = self.checker.as_mut().filter(|_| self.broken.is_none()) else { return };
        self.judged += u64::from(counted(self.name).1(fact));
        self.broken = checker.observe(fact, book).err().map(|what| format!("{what} ({})", place()));
    }

    /// Returns the number of judged facts, and their kind.
    pub fn judged(&self) -> (u64, &'static str) {
        (self.judged, self.unit)
    }

    /// Returns the first breach of the promise.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }
}

/// All promises that are judged, with their checkers, and the book of the judged facts.
pub(super) struct Promises(Vec<Promise>, Book);

impl Promises {
    pub(super) fn of_a_log() -> Self {
        let promise = |name: &'static str, checker| {
            let unit = counted(name).0;
            Promise { name, checker, unit, judged: 0, broken: None }
        };
        let checkers = invariants::of_a_log().into_iter();
        let mut all: Vec<Promise> = checkers.map(|checker| promise(checker.name(), Some(checker))).collect();
        all.push(promise(HISTORIES, None));
        Promises(all, Book::default())
    }

    pub(super) fn into_list(self) -> Vec<Promise> {
        self.0
    }

    /// Passes the state before the first judged entry to the checkers.
    pub(super) fn start(&mut self, facts: &[Fact]) {
        let place = || "in the state before the first entry".to_owned();
        facts.iter().for_each(|fact| self.observe(fact, place));
        self.0.iter_mut().for_each(|promise| promise.judged = 0);
    }

    /// Passes a fact about committed entries to the checkers whose promise is not broken. `place` returns the
    /// position of the fact, for a person.
    pub(super) fn observe(&mut self, fact: &Fact, place: impl Fn() -> String) {
        self.0.iter_mut().for_each(|promise| promise.observe(fact, &self.1, &place));
        self.1.record(fact);
    }

    /// Passes a fact about the log of a node to the checkers of logs. No node records the digest of its state
    /// after each entry, so these facts show nothing about states.
    pub(super) fn observe_log(&mut self, fact: &Fact, place: impl Fn() -> String) {
        let of_logs = self.0.iter_mut().filter(|promise| OF_LOGS.contains(&promise.name));
        of_logs.for_each(|promise| promise.observe(fact, &self.1, &place));
        self.1.record(fact);
    }

    /// Counts judged facts of a promise, and records a breach that was found without its checker.
    pub(super) fn record(&mut self, name: &str, judged: u64, broken: Option<String>) {
        let promise = self.0.iter_mut().find(|promise| promise.name() == name);
        let promise = promise.expect("Invariant: the promise is among the checkers");
        promise.judged += judged;
        promise.broken = promise.broken.take().or(broken);
    }
}

type IsJudged = fn(&Fact) -> bool;

fn is_about_node(fact: &Fact, is_meant: impl Fn(&NodeFact) -> bool) -> bool {
    matches!(fact, Fact::Node { what, .. } if is_meant(what))
}

/// Returns which facts count as judged by a checker.
fn counted(name: &str) -> (&'static str, IsJudged) {
    match name {
        "mutual-exclusion" | "fifo" | "no-lost-wakeup" | "fencing-monotonic" => {
            ("grants", |fact| matches!(fact, Fact::Entitled { .. }))
        }
        "no-deadlock" => ("queue positions", |fact| matches!(fact, Fact::Queued { .. })),
        "ephemeral-lifetime" => ("ended sessions", |fact| matches!(fact, Fact::SessionEnded { .. })),
        "questions" => ("questions", |fact| matches!(fact, Fact::Questioned { .. })),
        "the-oracle-agrees" | "session-order" | "exactly-once" | "bounded" => {
            ("commands", |fact| matches!(fact, Fact::Committed { .. }))
        }
        "replica-equality" => {
            ("digests of nodes", |fact| matches!(fact, Fact::Replica { node, .. } if *node != REFERENCE_NODE))
        }
        "log-matching" => {
            ("entries of nodes", |fact| is_about_node(fact, |what| matches!(what, NodeFact::Appended { .. })))
        }
        "committed-never-changes" => ("committed entries of nodes", |fact| {
            is_about_node(fact, |what| matches!(what, NodeFact::Applied { .. }))
        }),
        "votes-never-go-back" => {
            ("votes", |fact| is_about_node(fact, |what| matches!(what, NodeFact::Voted { .. })))
        }
        // Counted by the comparison itself.
        _ => ("events of histories", |_| false),
    }
}
