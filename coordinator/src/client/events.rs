//! What apply's events do on this node: watches fire, connections of sessions that moved or ended are told.
//!
//! In the flow: made for one batch, under the write lock of the state; so whoever reads the new state finds the events
//! in its outbox already. Must never do: wait, or look at a socket.

use rowlock_proto::SessionId;
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{Change, EventSink, SessionEnd};

use super::registry::Registry;
use crate::metrics::Metrics;
use crate::watch::WatchTable;

/// The event sink of apply. Dropping it brings the metrics up to date.
pub struct Dispatcher<'a> {
    watches: &'a mut WatchTable,
    registry: &'a Registry,
    metrics: &'a Metrics,
    fired_before: u64,
}

impl<'a> Dispatcher<'a> {
    /// For one batch; `watches` is locked (after the state) for as long.
    pub fn new(watches: &'a mut WatchTable, registry: &'a Registry, metrics: &'a Metrics) -> Self {
        let fired_before = watches.fired();
        Dispatcher { watches, registry, metrics, fired_before }
    }
}

impl EventSink for Dispatcher<'_> {
    fn changed(&mut self, change: &Change<'_>) {
        self.watches.fire(change);
    }

    fn session_opened(&mut self, _session: SessionId, _attachment: Attachment, _timeout_ms: u32) {
        self.metrics.sessions_opened_total.inc();
    }

    fn session_attached(&mut self, session: SessionId, attachment: Attachment, _timeout_ms: u32) {
        self.registry.session_attached(session, attachment);
    }

    fn session_ended(&mut self, session: SessionId, end: SessionEnd) {
        match end {
            SessionEnd::Closed => self.metrics.sessions_closed_total.inc(),
            SessionEnd::Expired => self.metrics.sessions_expired_total.inc(),
        }
        self.registry.session_ended(session);
    }
}

impl Drop for Dispatcher<'_> {
    fn drop(&mut self) {
        self.metrics.watch_fired_total.add(self.watches.fired() - self.fired_before);
        self.metrics.watches.set(self.watches.len() as u64);
    }
}
