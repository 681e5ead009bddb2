//! Says of requests that took long where the time went: a line each in the node's log, at most one a second.
//!
//! A request that is not slow pays for one comparison here. What the line says comes with the answer
//! ([`Way`]). Must never do: change or delay what is answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::entry_times::EntryStages;
use rowlock_env::rate::LogLimiter;
use rowlock_env::time::Instant;
use rowlock_proto::SessionId;
use rowlock_types::metrics::Metrics;

use crate::audit::text;
use crate::trace::TraceParent;
use crate::way::{Stages, Way};

/// Shared by all that answer clients, and by apply.
pub struct SlowRequests {
    threshold: Duration,
    requests_log: LogLimiter,
    entries_log: LogLimiter,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
pub(crate) struct Answered<'a> {
    pub op: &'static str,
    /// The lock's or the znode's, if it has one.
    pub path: Option<&'a str>,
    pub way: Option<&'a Way>,
    pub session: SessionId,
    pub client: SocketAddr,
    pub trace: Option<&'a TraceParent>,
    pub received: Instant,
    pub replied: Instant,
}

impl SlowRequests {
    /// What takes `threshold` is told; `None`: nothing is.
    pub fn new(threshold: Option<Duration>, metrics: Arc<Metrics>) -> SlowRequests {
        let (requests_log, entries_log) = (LogLimiter::default(), LogLimiter::default());
        SlowRequests { threshold: threshold.unwrap_or(Duration::MAX), requests_log, entries_log, metrics }
    }

    /// Whether a request that took so long is to be told of.
    pub(crate) fn is_slow(&self, took: Duration) -> bool {
        took >= self.threshold
    }

    /// Counts a slow request, and tells of it unless one has been told of in this second.
    pub(crate) fn tell(&self, request: &Answered<'_>) {
        let took = request.replied.saturating_since(request.received);
        debug_assert!(self.is_slow(took), "only what is slow is told");
        self.metrics.slow_requests_total.inc();
        let Some(left_out) = self.requests_log.admit() else { return };
        let Answered { op, path, way, session, client, trace, received, replied } = *request;
        let stages = way.map(|way| way.stages(received, replied));
        let of = |part: fn(&Stages) -> Duration| stages.as_ref().map(|stages| ms(part(stages)));
        tracing::warn!(
            op,
            path = path.map(text),
            took_ms = ms(took),
            queue_ms = of(|it| it.queue),
            forward_ms = of(|it| it.forward),
            flush_ms = stages.and_then(|it| it.flush).map(ms),
            quorum_ms = of(|it| it.quorum),
            apply_ms = of(|it| it.apply),
            outbox_ms = of(|it| it.outbox),
            entry = way.map(|way| way.entry.index),
            %session,
            %client,
            traceparent = trace.map(tracing::field::display),
            left_out,
            "slow request"
        );
    }

    /// Tells of a log entry that was in this node's log for long before it was applied. The node of a slow
    /// request and the leader name the same entry.
    pub(crate) fn entry(&self, entry: &EntryStages, commands: usize, ended: Instant) {
        let took = ended.saturating_since(entry.appended);
        if !entry.known || !self.is_slow(took) {
            return;
        }
        let Some(left_out) = self.entries_log.admit() else { return };
        tracing::warn!(
            entry = entry.index,
            commands,
            took_ms = ms(took),
            flush_ms = entry.flush().map(ms),
            quorum_ms = ms(entry.quorum()),
            apply_ms = ms(ended.saturating_since(entry.begun)),
            left_out,
            "slow log entry"
        );
    }
}

/// Milliseconds with as many digits as people read.
fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
