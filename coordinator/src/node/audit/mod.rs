//! Audit log: operations of clients at this node, one JSON document per line.
//!
//! In the flow: the task of a client passes a record to [`Audit`]; the line waits in a bounded queue, and the
//! writer task (`writer`) appends the line to the file. No client waits for the file: with a full queue or
//! disk the record is dropped, counted and logged, and the node continues.
//!
//! Invariant: `serde_json` encodes each line, so no name, path or label of a client can end the line or add a
//! second line. Must never do: record data of znodes, passwords or tokens.

mod note;
mod writer;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::rate::{Bucket, LogLimiter};
use rowlock_env::time;
use rowlock_metrics::Metrics;
use rowlock_proto::{NodeId, Right};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::limits::{AUDIT_QUEUE_MAX, AUDIT_STRANGERS_PER_SECOND};
use crate::node::moment;
pub use note::{Client, who as named};
pub(crate) use note::{Note, asker, paths, text};
pub use writer::{AuditWriter, Settings};

/// Kinds of records, as in `[audit]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// Successful and failed authentication.
    Auth,
    Acl,
    /// Requests of operators: reconfig, forceRelease, start and stop of the node.
    Admin,
    /// Refusals for lack of a permission or an identity.
    Denied,
    /// Acquires and releases by lock requests.
    Locks,
    /// Creates, changes and deletes of znodes.
    Writes,
}

/// Line of the file.
#[derive(Debug, Serialize)]
pub(crate) struct AuditRecord<'a> {
    pub event: Event,
    pub op: &'a str,
    /// Paths of the request; may be empty.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub paths: &'a [String],
    /// Further details of the request.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub detail: &'a str,
    /// `ok`, or the name of the error.
    pub result: &'a str,
    /// Missing right on a lock, the reason of the refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Right>,
    #[serde(flatten)]
    pub client: Client,
}

impl<'a> AuditRecord<'a> {
    /// Creates the record of a successful request, without paths and details.
    pub fn new(event: Event, op: &'a str, client: Client) -> AuditRecord<'a> {
        AuditRecord { event, op, paths: &[], detail: "", result: OK, missing: None, client }
    }

    /// Logs operators' requests, also without an audit log. Refused requests are not logged: unauthenticated
    /// clients could flood the log.
    fn log(&self) {
        let Some(address) = self.client.address.filter(|_| self.event == Event::Admin) else { return };
        if [OK, "unknown"].contains(&self.result) {
            let AuditRecord { op, detail, result, .. } = self;
            let (who, on) = (self.client.who.join(","), self.paths.join(","));
            tracing::info!(op, on, detail, result, who, %address, "operator request");
        }
    }
}

#[derive(Serialize)]
struct WrittenRecord<'a> {
    time: String,
    node: u64,
    #[serde(flatten)]
    record: &'a AuditRecord<'a>,
}

/// Receiver of records. Without an audit log the receiver drops all records.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<AuditState>>);

struct AuditState {
    node: NodeId,
    events: BTreeSet<Event>,
    lines: mpsc::Sender<String>,
    /// Rate limit for records of unauthenticated clients.
    strangers: Mutex<Bucket>,
    missing_log: LogLimiter,
    metrics: Arc<Metrics>,
}

impl Audit {
    /// Opens the file; the caller must run the returned writer. Blocking.
    ///
    /// # Errors
    /// Path, and the reason for the failure.
    pub fn open(
        settings: Settings,
        events: BTreeSet<Event>,
        node: NodeId,
        metrics: Arc<Metrics>,
    ) -> io::Result<(Audit, AuditWriter)> {
        let (lines, queue) = mpsc::channel(AUDIT_QUEUE_MAX);
        let writer = AuditWriter::open(settings, queue, metrics.clone())?;
        Ok((Audit(Some(Arc::new(AuditState::new(node, events, lines, metrics)))), writer))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn wants(&self, event: Event) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.events.contains(&event))
    }

    /// Records an event if `[audit]` selects its kind. Never waits.
    pub(crate) fn record(&self, record: &AuditRecord<'_>) {
        record.log();
        let Some(inner) = self.0.as_ref().filter(|inner| inner.events.contains(&record.event)) else {
            return;
        };
        // Without this limit, unauthenticated clients could displace other clients' records from the rotated
        // files.
        if record.client.has_proven_nothing()
            && record.result != OK
            && !inner.strangers.lock().take(time::now())
        {
            inner.metrics.audit_dropped_total.inc();
            return;
        }
        let line = WrittenRecord { time: moment::rfc3339(time::wall_ms()), node: inner.node.0, record };
        let mut text = serde_json::to_string(&line).expect("Invariant: a record has nothing but texts");
        text.push('\n');
        match inner.lines.try_send(text) {
            Ok(()) => inner.metrics.audit_records_total.inc(),
            Err(_) => inner.missing(),
        }
    }
}

/// Result of a successful request.
pub(crate) const OK: &str = "ok";

impl AuditState {
    fn new(
        node: NodeId,
        events: BTreeSet<Event>,
        lines: mpsc::Sender<String>,
        metrics: Arc<Metrics>,
    ) -> AuditState {
        let strangers = Mutex::new(Bucket::new(AUDIT_STRANGERS_PER_SECOND, AUDIT_STRANGERS_PER_SECOND));
        AuditState { node, events, lines, strangers, missing_log: LogLimiter::default(), metrics }
    }

    fn missing(&self) {
        self.metrics.audit_dropped_total.inc();
        if let Some(suppressed) = self.missing_log.admit() {
            tracing::error!(suppressed, "dropped audit records: the queue of the audit log is full");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an audit log whose lines stay in the queue.
    pub(super) fn audit(events: &[Event]) -> (Audit, mpsc::Receiver<String>) {
        let (lines, queue) = mpsc::channel(AUDIT_QUEUE_MAX);
        let inner = AuditState::new(NodeId(1), events.iter().copied().collect(), lines, Arc::default());
        (Audit(Some(Arc::new(inner))), queue)
    }

    pub(super) fn next(lines: &mut mpsc::Receiver<String>) -> Option<serde_json::Value> {
        lines.try_recv().ok().map(|line| serde_json::from_str(&line).unwrap())
    }

    fn failed(who: Vec<String>) -> AuditRecord<'static> {
        let client = Client { who, address: Some("10.0.0.1:5".parse().unwrap()), ..Client::default() };
        AuditRecord {
            detail: "digest",
            result: "AuthFailed",
            ..AuditRecord::new(Event::Auth, "auth", client)
        }
    }

    #[test]
    fn unauthenticated_clients_cannot_fill_the_audit_log() {
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
        // On a slow machine the loop takes long enough for new tokens.
        assert!(written > u64::from(AUDIT_STRANGERS_PER_SECOND) && dropped > 0, "{written} {dropped}");
        let mut last = None;
        while let Some(line) = next(&mut lines) {
            last = Some(line);
        }
        assert_eq!(last.unwrap()["who"][0], "x509:CN=a");
    }

    #[test]
    fn full_queue_drops_and_counts_records_without_waiting() {
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
