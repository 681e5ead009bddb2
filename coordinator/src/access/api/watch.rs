//! Streams of lock events.
//!
//! A stream begins with entries from the history, if the client sent its last checkpoint, and continues with
//! the live feed. Both are read under one lock of the state, so no event falls between them. Each event is
//! encoded once for all streams; with many streams, each stream pauses between batches to collect events.
//!
//! Invariant: a client with a checkpoint and all entries before that checkpoint has missed no visible event
//! up to the checkpoint, except where an entry reports a gap.

use std::sync::Arc;

use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Metrics;
use rowlock_proto::Zxid;
use rowlock_proto::report::{Gap, GapReason, HistoryEntry, HistoryEvent};

use super::call::Call;
use super::handle::{Pace, Slot};
use super::{Api, Caller, Refusal};
use crate::access::lock_feed::{FeedEntry, Reading};
use crate::access::report::question::{Scope, WatchQuestion};
use crate::access::report::{Past, Span, shown};
use crate::limits::{API_WATCH_BATCH, API_WATCH_KEEPALIVE_EVERY, API_WATCH_PIECE};
use crate::node::zk::ClientContext;

#[derive(Debug)]
pub struct EventBatch {
    /// Events in the order of their changes.
    pub entries: Vec<Arc<FeedEntry>>,
    /// Change up to which the stream is complete. `None`: entries of the last change continue in the next
    /// batch.
    pub checkpoint: Option<Zxid>,
}

/// Stream of one client. Dropping the stream closes it.
pub struct Watch {
    context: ClientContext,
    caller: Caller,
    scope: Scope,
    reading: Reading,
    begin: Option<EventBatch>,
    /// Change up to which all events were sent.
    sent: Zxid,
    /// Earliest time of the next batch.
    pause_until: Instant,
    /// Shared by all streams of the node.
    pace: Arc<Pace>,
    _place: Counted,
}

struct Counted {
    metrics: Arc<Metrics>,
    _place: Slot,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.api_watches.dec();
    }
}

impl Api {
    /// Opens a stream of events after the present change, or after `question.after`.
    ///
    /// # Errors
    /// [`Refusal::Full`]; [`Refusal::Bad`]: `after` is newer than the newest change.
    pub async fn watch(&self, caller: &Caller, question: WatchQuestion) -> Result<Watch, Refusal> {
        self.check_serving()?;
        let WatchQuestion { scope, after } = question;
        let full = Refusal::Full("too many streams of this client or of all clients at this node");
        let place = self.watches.take(caller).ok_or(full)?;
        let metrics = self.context.metrics.clone();
        metrics.api_watches.inc();
        let place = Counted { metrics, _place: place };
        // A node with lag first applies all changes that the client may have seen elsewhere.
        Call::new(self, caller).sync().await?;
        let (reading, frozen) = {
            let state = self.context.replica.state.read();
            (self.feed.read(), state.freeze())
        };
        let last = frozen.machine().last_zxid();
        let after = after.unwrap_or(last);
        if decides!("stream-begins-ahead", after > last) {
            return Err(Refusal::Bad(format!("there was no change {} yet", after.0)));
        }
        let past = self.reports.since(&frozen, &scope, Span { after, last }, &caller.identities).await;
        let (context, caller) = (self.context.clone(), caller.clone());
        let (pause_until, pace) = (time::now(), self.pace.clone());
        let (begin, sent, _place) = (None, last, place);
        let mut watch = Watch { context, caller, scope, reading, begin, sent, pause_until, pace, _place };
        watch.begin = Some(watch.beginning(past, Span { after, last }));
        Ok(watch)
    }
}

impl Watch {
    fn beginning(&self, past: Past, span: Span) -> EventBatch {
        let Past { mut entries, missing } = past;
        if let Some(reason) = missing {
            let time_ms = entries.first().map_or_else(|| self.time_ms(), |entry| entry.time_ms);
            // The history may hold only the last entries of the first change.
            let last = entries.first().map_or(span.last, |entry| entry.zxid);
            entries.insert(0, self.gap(reason, time_ms, Span { last, ..span }));
        }
        let entries = entries.into_iter().map(|entry| Arc::new(FeedEntry::from(entry))).collect();
        EventBatch { entries, checkpoint: Some(span.last) }
    }

    fn gap(&self, reason: GapReason, time_ms: i64, span: Span) -> HistoryEntry {
        let event = HistoryEvent::Gap(Gap { reason, from_zxid: span.after, missing: None });
        HistoryEntry { time_ms, zxid: span.last.max(span.after), event }
    }

    fn time_ms(&self) -> i64 {
        self.context.replica.state.read().time_ms()
    }

    /// Waits for the next batch. A batch without entries is a keepalive after a quiet period. Returns `None`
    /// when the node no longer serves; the client must connect to another node.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost.
    pub async fn next(&mut self) -> Option<EventBatch> {
        if let Some(begin) = self.begin.take() {
            return Some(begin);
        }
        let keepalive_at = time::now() + API_WATCH_KEEPALIVE_EVERY;
        time::sleep_until(self.pause_until).await;
        loop {
            if !self.context.status.borrow().serving {
                return None;
            }
            let is_quiet = time::now() >= keepalive_at;
            let batch = self.collect();
            if !batch.entries.is_empty() || is_quiet {
                return Some(batch);
            }
            if batch.checkpoint.is_some() {
                let _ = time::timeout_at(keepalive_at, self.reading.ready()).await;
            }
        }
    }

    /// Begins the pause after a batch of `bytes` encoded bytes.
    pub fn begin_pause(&mut self, bytes: usize) {
        let work = busy::spent() + API_WATCH_PIECE + Work::SentByte.cost(bytes as u64);
        let streams = self.reading.streams();
        self.pause_until = time::now() + self.pace.pause(work, streams);
    }

    fn collect(&mut self) -> EventBatch {
        let state = self.context.replica.state.read();
        let piece = self.reading.take(API_WATCH_BATCH);
        let sent = self.sent;
        // While the read lock of the state is held, the feed contains all events of the state.
        let checkpoint = match piece.events.last() {
            _ if piece.is_last => Some(state.last_zxid()),
            Some(event) if piece.is_whole => Some(event.zxid()),
            _ => None,
        };
        let news = piece
            .events
            .iter()
            .map(|event| &**event)
            .filter(|event| decides!("streamed-event-is-new", event.zxid() > sent));
        let mut entries = shown(news, &state, &self.scope, &self.caller.identities);
        let time_ms = state.time_ms();
        drop(state);
        if decides!("stream-has-missed-events", piece.has_missed) {
            let last = piece.events.first().map_or(sent, |event| event.zxid());
            let gap = self.gap(GapReason::TooSlow, time_ms, Span { after: sent, last });
            entries.insert(0, Arc::new(FeedEntry::from(gap)));
        }
        assert!(entries.is_sorted_by_key(|entry| entry.zxid), "entries are in zxid order");
        self.sent = checkpoint.map_or(sent, |checkpoint| checkpoint.max(sent));
        EventBatch { entries, checkpoint: checkpoint.map(|_| self.sent) }
    }
}
