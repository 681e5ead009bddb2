//! Streams of lock events.
//!
//! A stream begins with what the history has of the past, if its client says up to where it knows that, and
//! goes on with the feed. Both are taken at one moment of the state, so nothing falls between them. Events
//! are encoded once for all streams, and streams that are many collect them for a moment.
//!
//! Invariant: a client that is given a checkpoint, and all entries before it, has missed nothing up to there
//! that it may see, except where an entry says that there is a gap.

use std::sync::Arc;

use rowlock_env::busy::{self, Work};
use rowlock_env::time::{self, Instant};
use rowlock_proto::Zxid;
use rowlock_proto::report::{HistoryEntry, HistoryEvent};
use rowlock_types::limits::{API_WATCH_BATCH, API_WATCH_KEEPALIVE_EVERY, API_WATCH_PIECE};
use rowlock_types::metrics::Metrics;

use super::call::Call;
use super::pace::Pace;
use super::shares::HeldShare;
use super::{Api, Caller, Refusal};
use crate::delivery::lock_feed::{FeedEntry, Reading};
use crate::report::question::{Scope, WatchQuestion};
use crate::report::{Past, Span, shown};
use crate::zk::ClientContext;

/// Events that a stream sends together.
#[derive(Debug)]
pub struct Told {
    /// The events in the order of their changes.
    pub entries: Vec<Arc<FeedEntry>>,
    /// All that happened up to this change has been told. `None`: the last change's entries go on.
    pub checkpoint: Option<Zxid>,
}

/// A stream. Dropping it ends it.
pub struct Watch {
    context: ClientContext,
    caller: Caller,
    scope: Scope,
    reading: Reading,
    begin: Option<Told>,
    /// All up to this change has been told.
    told: Zxid,
    /// Not before then is more told.
    pause_until: Instant,
    /// Of all streams of the node.
    pace: Arc<Pace>,
    _place: Counted,
}

struct Counted {
    metrics: Arc<Metrics>,
    _place: HeldShare,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.api_watches.dec();
    }
}

impl Api {
    /// Begins a stream of what happens from now on, or from behind `question.after`.
    ///
    /// # Errors
    /// [`Refusal::Full`]; [`Refusal::Bad`]: there was no change `after` yet.
    pub async fn watch(&self, caller: &Caller, question: WatchQuestion) -> Result<Watch, Refusal> {
        self.check_serving()?;
        let WatchQuestion { scope, after } = question;
        let full = Refusal::Full("too many streams of all clients, or of this one, at this node");
        let place = self.watches.take(caller).ok_or(full)?;
        let metrics = self.context.metrics.clone();
        metrics.api_watches.inc();
        let place = Counted { metrics, _place: place };
        // So that a node that lags behind knows what the client has seen elsewhere.
        Call::new(self, caller).sync().await?;
        let (reading, frozen) = {
            let state = self.context.replica.state.read();
            (self.context.registry.feed.read(), state.freeze())
        };
        let last = frozen.machine().last_zxid();
        let after = after.unwrap_or(last);
        if after > last {
            return Err(Refusal::Bad(format!("there was no change {} yet", after.0)));
        }
        let past =
            self.context.reports.since(&frozen, &scope, Span { after, last }, &caller.identities).await;
        let (context, caller) = (self.context.clone(), caller.clone());
        let (pause_until, pace) = (time::now(), self.pace.clone());
        let (begin, told, _place) = (None, last, place);
        let mut watch = Watch { context, caller, scope, reading, begin, told, pause_until, pace, _place };
        watch.begin = Some(watch.beginning(past, Span { after, last }));
        Ok(watch)
    }
}

impl Watch {
    fn beginning(&self, past: Past, span: Span) -> Told {
        let Past { mut entries, missing } = past;
        if let Some(reason) = missing {
            let time_ms = entries.first().map_or_else(|| self.time_ms(), |entry| entry.time_ms);
            // What is there of the first change may be its end.
            let last = entries.first().map_or(span.last, |entry| entry.zxid);
            entries.insert(0, self.gap(reason, time_ms, Span { last, ..span }));
        }
        let entries = entries.into_iter().map(|entry| Arc::new(FeedEntry::from(entry))).collect();
        Told { entries, checkpoint: Some(span.last) }
    }

    fn gap(&self, reason: &str, time_ms: i64, span: Span) -> HistoryEntry {
        self.context.metrics.api_watch_gaps_total.inc();
        let event = HistoryEvent::Gap { reason: reason.to_owned(), from_zxid: span.after, missing: None };
        HistoryEntry { time_ms, zxid: span.last.max(span.after), event }
    }

    fn time_ms(&self) -> i64 {
        self.context.replica.state.read().time_ms()
    }

    /// Waits for what comes next; without entries, that nothing has happened for a while. `None`: the node
    /// does not serve any more, and another one is to be asked.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Told> {
        if let Some(begin) = self.begin.take() {
            return Some(begin);
        }
        let sign_at = time::now() + API_WATCH_KEEPALIVE_EVERY;
        time::sleep_until(self.pause_until).await;
        loop {
            if !self.context.status.borrow().serving {
                return None;
            }
            let is_quiet = time::now() >= sign_at;
            let told = self.look();
            if !told.entries.is_empty() || is_quiet {
                return Some(told);
            }
            if told.checkpoint.is_some() {
                let _ = time::timeout_at(sign_at, self.reading.ready()).await;
            }
        }
    }

    /// Begins the pause behind a piece with this number of bytes.
    pub fn sends(&mut self, bytes: usize) {
        let work = busy::spent() + API_WATCH_PIECE + Work::SentByte.cost(bytes as u64);
        let streams = self.context.registry.feed.readers();
        self.pause_until = time::now() + self.pace.pause(work, streams);
    }

    /// Collects the events that are available now.
    fn look(&mut self) -> Told {
        let state = self.context.replica.state.read();
        let piece = self.reading.take(API_WATCH_BATCH);
        let told = self.told;
        // Under the read lock of the state all its events are in the feed.
        let checkpoint = match piece.events.last() {
            _ if piece.is_last => Some(state.last_zxid()),
            Some(event) if piece.is_whole => Some(event.at.0.zxid),
            _ => None,
        };
        let news = piece.events.iter().map(|event| &**event).filter(|event| event.at.0.zxid > told);
        let mut entries = shown(news, &state, &self.scope, &self.caller.identities);
        let time_ms = state.time_ms();
        drop(state);
        if piece.has_missed {
            let last = piece.events.first().map_or(told, |event| event.at.0.zxid);
            let gap = self.gap("too-slow", time_ms, Span { after: told, last });
            entries.insert(0, Arc::new(FeedEntry::from(gap)));
        }
        assert!(entries.is_sorted_by_key(|entry| entry.zxid), "they are told in order");
        self.told = checkpoint.map_or(told, |checkpoint| checkpoint.max(told));
        Told { entries, checkpoint: checkpoint.map(|_| self.told) }
    }
}
