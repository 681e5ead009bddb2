//! Timelines of writes, and log lines for slow requests with the duration of each stage; at most one line per
//! second.
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

/// Time stamps from the intake to the outbox of the reply.
///
/// Most time stamps belong to the log entry and are copied from the entry, so a write costs a few words of
/// memory and no clock read of its own.
#[derive(Clone, Debug)]
pub struct WriteTimeline {
    /// Time at the intake.
    pub taken: Instant,
    /// Stages of the log entry, on this node.
    pub entry: EntryStages,
    /// Time of apply, with the precision of a few commands.
    pub answered: Instant,
    /// Path of the lock or znode; for several paths, the first.
    pub path: Option<String>,
}

/// Durations of a write's stages (`rowlock_metrics::Stage`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Wait for the intake.
    pub queue: Duration,
    /// Wait until the entry was in this node's log.
    pub forward: Duration,
    /// Flush of this node; `None`: the quorum did not need this flush.
    pub flush: Option<Duration>,
    /// Wait until the entry's apply began.
    pub quorum: Duration,
    /// Wait until the command was applied.
    pub apply: Duration,
    /// Wait until the reply was encoded.
    pub outbox: Duration,
}

impl WriteTimeline {
    /// Returns the stages of a write received at `received` and answered at `replied`. The sum is the time
    /// between both, up to clock differences between threads.
    pub fn stages(&self, received: Instant, replied: Instant) -> Stages {
        let EntryStages { appended, begun, .. } = self.entry;
        Stages {
            queue: self.taken.saturating_since(received),
            forward: appended.saturating_since(self.taken),
            flush: self.entry.flush(),
            quorum: self.entry.quorum(),
            apply: self.answered.saturating_since(begun),
            outbox: replied.saturating_since(self.answered),
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_consensus::entry_times::EntryTimes;
    use rowlock_env::time;

    use super::*;

    #[test]
    fn stages_of_a_write_add_up_to_its_duration() {
        let ms = Duration::from_millis;
        let (times, received) = (EntryTimes::default(), time::now() - ms(50));
        times.appended(7, 7);
        times.flushed(7);
        let begun = time::now() + ms(30);
        let entry = times.take(7, begun);
        let timeline = WriteTimeline { taken: received + ms(10), entry, answered: begun + ms(4), path: None };
        let replied = begun + ms(9);
        let Stages { queue, forward, flush, quorum, apply, outbox } = timeline.stages(received, replied);
        assert_eq!((queue, apply, outbox), (ms(10), ms(4), ms(5)));
        assert!(forward >= ms(40) && quorum >= ms(30) && flush.is_some());
        let all = queue + forward + flush.unwrap() + quorum + apply + outbox;
        assert_eq!(all, replied.saturating_since(received));
    }
}
