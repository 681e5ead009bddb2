//! The audit log: who has done what at this node, one JSON document a line.
//!
//! In the flow: the task that serves a client tells [`Audit`] what happened; the line waits in a bounded
//! queue, and a task of its own writes it (`writer`). No task waits for the file: where the queue or the disk
//! is full, records are missing, which is counted and told, and the node goes on.
//!
//! Invariant: a line is made by `serde_json`, so that no name, path or label of a client can end it or add a
//! second one. Must never do: record data of znodes, passwords or tokens.

mod note;
mod subject;
mod writer;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_types::limits::{AUDIT_QUEUE_MAX, AUDIT_STRANGERS_PER_SECOND};
use rowlock_types::metrics::Metrics;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::complaints::Complaints;
use crate::moment;
pub(crate) use note::{Note, paths};
pub(crate) use subject::{Client, text};
pub use writer::{Settings, Writer};

/// What is recorded, as `[audit]` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// A client proves who it is, or fails to.
    Auth,
    /// An ACL is changed.
    Acl,
    /// What operators do: reconfig, forceRelease, starts and stops of the node.
    Admin,
    /// Something was refused for lack of a permission or a proof.
    Denied,
    /// Locks are taken and given back by requests for locks.
    Locks,
    /// Znodes are created, changed and deleted.
    Writes,
}

impl Event {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Event::Auth => "auth",
            Event::Acl => "acl",
            Event::Admin => "admin",
            Event::Denied => "denied",
            Event::Locks => "locks",
            Event::Writes => "writes",
        }
    }
}

/// One line of the file.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'a> {
    /// What kind of thing happened.
    pub event: Event,
    /// What was done: the request's name.
    pub op: &'a str,
    /// On what; empty: it has no path.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub paths: &'a [String],
    /// What else is to be known of it.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub detail: &'a str,
    /// `ok`, or the name of the error.
    pub result: &'a str,
    /// Who has done it.
    #[serde(flatten)]
    pub client: Client,
}

/// A record with when and where.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    node: u64,
    #[serde(flatten)]
    record: &'a Record<'a>,
}

/// Takes records. Without an audit log it wants none.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Inner>>);

struct Inner {
    node: NodeId,
    events: BTreeSet<Event>,
    lines: mpsc::Sender<String>,
    strangers: Mutex<Strangers>,
    complaints: Mutex<Complaints>,
    metrics: Arc<Metrics>,
}

/// What those cause who have proven nothing, in this second.
#[derive(Default)]
struct Strangers {
    since: Option<Instant>,
    count: u32,
}

impl Audit {
    /// Opens the file and starts nothing: the writer is to be run. Blocks.
    ///
    /// # Errors
    /// The file, and why it cannot be written.
    pub fn open(
        settings: Settings,
        events: BTreeSet<Event>,
        node: NodeId,
        metrics: Arc<Metrics>,
    ) -> Result<(Audit, Writer), String> {
        let (lines, queue) = mpsc::channel(AUDIT_QUEUE_MAX);
        let writer = Writer::open(settings, queue, metrics.clone())?;
        let (strangers, complaints) = (Mutex::default(), Mutex::default());
        let inner = Inner { node, events, lines, strangers, complaints, metrics };
        Ok((Audit(Some(Arc::new(inner))), writer))
    }

    /// Whether anything is recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether events of this kind are recorded.
    pub(crate) fn wants(&self, event: Event) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.events.contains(&event))
    }

    /// Records it, if such events are wanted. Never waits.
    pub(crate) fn record(&self, record: &Record<'_>) {
        let Some(inner) = self.0.as_ref().filter(|inner| inner.events.contains(&record.event)) else {
            return;
        };
        // Else strangers could push out of the files what others have done.
        if record.client.has_proven_nothing()
            && record.result != OK
            && !inner.strangers.lock().may(time::now())
        {
            inner.metrics.audit_dropped_total.inc();
            return;
        }
        let line = Line { time: moment::rfc3339(time::wall_ms()), node: inner.node.0, record };
        let mut text = serde_json::to_string(&line).expect("Invariant: a record has nothing but texts");
        text.push('\n');
        match inner.lines.try_send(text) {
            Ok(()) => inner.metrics.audit_records_total.inc(),
            Err(_) => inner.missing(),
        }
    }
}

/// The result of what has happened.
pub(crate) const OK: &str = "ok";

impl Inner {
    fn missing(&self) {
        self.metrics.audit_dropped_total.inc();
        if let Some(suppressed) = self.complaints.lock().may_complain() {
            tracing::error!(suppressed, "records are missing in the audit log: its queue is full");
        }
    }
}

impl Strangers {
    fn may(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_since(since) >= Duration::from_secs(1)) {
            *self = Strangers { since: Some(now), count: 0 };
        }
        self.count += 1;
        self.count <= AUDIT_STRANGERS_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An audit log that keeps its lines.
    pub(super) fn audit(events: &[Event]) -> (Audit, mpsc::Receiver<String>) {
        let (lines, queue) = mpsc::channel(AUDIT_QUEUE_MAX);
        let (strangers, complaints) = (Mutex::default(), Mutex::default());
        let (events, metrics) = (events.iter().copied().collect(), Arc::default());
        let inner = Inner { node: NodeId(1), events, lines, strangers, complaints, metrics };
        (Audit(Some(Arc::new(inner))), queue)
    }

    pub(super) fn next(lines: &mut mpsc::Receiver<String>) -> Option<serde_json::Value> {
        lines.try_recv().ok().map(|line| serde_json::from_str(&line).unwrap())
    }

    fn failed(who: Vec<String>) -> Record<'static> {
        let client = Client { who, address: Some("10.0.0.1:5".parse().unwrap()), ..Client::default() };
        Record { event: Event::Auth, op: "auth", paths: &[], detail: "digest", result: "AuthFailed", client }
    }

    #[test]
    fn strangers_cannot_fill_the_log_and_others_are_recorded_meanwhile() {
        let (audit, mut lines) = audit(&[Event::Auth]);
        let strangers = || failed(vec!["ip:10.0.0.1".to_owned()]);
        let all = u64::from(2 * AUDIT_STRANGERS_PER_SECOND);
        for _ in 0..all {
            audit.record(&strangers());
        }
        audit.record(&failed(vec!["x509:CN=a".to_owned()]));
        let metrics = &audit.0.as_ref().unwrap().metrics;
        let (written, dropped) = (metrics.audit_records_total.get(), metrics.audit_dropped_total.get());
        assert_eq!(written + dropped, all + 1);
        // A slow machine needs more than a second for it.
        assert!(written > u64::from(AUDIT_STRANGERS_PER_SECOND) && dropped > 0, "{written} {dropped}");
        let mut last = None;
        while let Some(line) = next(&mut lines) {
            last = Some(line);
        }
        assert_eq!(last.unwrap()["who"][0], "x509:CN=a");
    }

    #[test]
    fn records_for_which_the_queue_has_no_room_are_counted_and_nobody_waits() {
        let (audit, mut lines) = audit(&[Event::Auth]);
        for _ in 0..AUDIT_QUEUE_MAX + 10 {
            audit.record(&failed(vec!["x509:CN=a".to_owned()]));
        }
        let metrics = &audit.0.as_ref().unwrap().metrics;
        assert_eq!(metrics.audit_dropped_total.get(), 10);
        assert!(next(&mut lines).is_some());
        audit.record(&failed(vec!["x509:CN=a".to_owned()]));
        assert_eq!(metrics.audit_dropped_total.get(), 10);
    }
}
