//! Log lines for slow requests, with the duration of each stage; at most one line per second.
//!
//! A fast request costs one comparison. The stages come with the reply ([`WriteTimeline`]). Must never do:
//! change or delay a reply.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::entry_times::EntryStages;
use rowlock_env::rate::LogLimiter;
use rowlock_env::time::Instant;
use rowlock_metrics::Metrics;
use rowlock_proto::SessionId;

use crate::node::audit::text;
use crate::node::trace::TraceParent;
use crate::node::way::{Stages, WriteTimeline};

/// Shared by apply and all tasks that answer clients.
pub struct SlowRequests {
    threshold: Duration,
    requests_log: LogLimiter,
    entries_log: LogLimiter,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
pub(crate) struct SlowRequest<'a> {
    pub op: &'static str,
    /// Path of the lock or znode of a read; a write has its path in the timeline.
    pub path: Option<&'a str>,
    pub timeline: Option<&'a WriteTimeline>,
    pub session: SessionId,
    pub client: SocketAddr,
    pub trace: Option<&'a TraceParent>,
    pub received: Instant,
    pub replied: Instant,
}

impl SlowRequests {
    /// Returns a logger for requests of at least `threshold`; `None` disables the log lines.
    pub fn new(threshold: Option<Duration>, metrics: Arc<Metrics>) -> SlowRequests {
        let (requests_log, entries_log) = (LogLimiter::default(), LogLimiter::default());
        SlowRequests { threshold: threshold.unwrap_or(Duration::MAX), requests_log, entries_log, metrics }
    }

    pub(crate) fn is_slow(&self, took: Duration) -> bool {
        took >= self.threshold
    }

    /// Counts a slow request and logs the request, at most one per second.
    pub(crate) fn log_request(&self, request: &SlowRequest<'_>) {
        let took = request.replied.saturating_since(request.received);
        debug_assert!(self.is_slow(took), "only what is slow is told");
        self.metrics.slow_requests_total.inc();
        let Some(left_out) = self.requests_log.admit() else { return };
        let SlowRequest { op, path, timeline, session, client, trace, received, replied } = *request;
        let stages = timeline.map(|timeline| timeline.stages(received, replied));
        let path = path.or_else(|| timeline?.path.as_deref());
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
            entry = timeline.map(|timeline| timeline.entry.index),
            %session,
            %client,
            traceparent = trace.map(tracing::field::display),
            left_out,
            "slow request"
        );
    }

    /// Logs an entry with a long time between its append and its apply on this node. A follower's line of a
    /// slow request and the leader's line have the same entry number.
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

/// Returns milliseconds with three decimals.
fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
