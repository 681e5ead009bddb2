//! Compares the lock history of each node with the log: each stored event is an event of the log, and each
//! event of the log is stored, except where the history declares a gap with a cause.
//!
//! A history may begin late, since nodes remove old entries. It may end early: a killed node writes its last
//! events again when it starts.

use std::path::PathBuf;
use std::sync::Arc;

use rowlock_env::disk::Dir;
use rowlock_env::rng;
use rowlock_history::{Entry, Key, offline};
use rowlock_proto::lock_event::{Gap, GapReason};
use rowlock_proto::report::{HistoryEntry, HistoryEvent};
use rowlock_proto::{NodeId, Zxid};

use super::evidence::Evidence;
use super::folder::NodeLog;
use super::folder::{Unreadable, unreadable};
use super::promises::{HISTORIES, Promises};
use super::replay::Replayed;

/// Attempts to read a history whose node removes segments meanwhile.
const TRIES: u32 = 4;

/// Comparison of one history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    pub node: NodeId,
    /// Events that the history and the log have in common.
    pub events: u64,
    pub gaps: u64,
    /// Entries before the first judged entry of the log, or behind the last one.
    pub outside: u64,
    /// First difference from the log that breaks the promise.
    pub broken: Option<String>,
}

/// Compares the histories of all nodes with the log.
///
/// # Errors
/// A history cannot be read.
pub(super) fn compare(
    evidence: &Evidence,
    replayed: &Replayed,
    promises: &mut Promises,
) -> Result<Vec<Compared>, Unreadable> {
    let mut all = Vec::new();
    for log in &evidence.nodes {
        let (entries, covered) = read(log)?;
        let comparison = Comparison::new(log.node, log.may_have_installed, replayed);
        let compared = comparison.run(&entries, covered);
        promises.record(HISTORIES, compared.events, compared.broken.clone());
        all.push(compared);
    }
    Ok(all)
}

type History = (Vec<HistoryEntry>, Option<Zxid>);

/// Reads all entries of a node's history, and the zxid up to which the history is complete.
fn read(log: &NodeLog) -> Result<History, Unreadable> {
    let mut tries = 0;
    loop {
        tries += 1;
        match try_read(log) {
            Err(why) if tries == TRIES => {
                let hint = "to judge without the history, name a copy of the folder that lacks `history`";
                return Err(unreadable(&log.folder, format!("its history: {why}; {hint}")));
            }
            Err(_) => {}
            Ok(history) => return Ok(history),
        }
    }
}

fn try_read(log: &NodeLog) -> Result<History, String> {
    let mut entries = Vec::new();
    let scratch = scratch().map_err(|error| format!("a folder for copies: {error}"))?;
    let read = offline::read(&log.folder, &scratch, |Key { time_ms, zxid, .. }, Entry { event, .. }| {
        entries.push(HistoryEntry { time_ms, zxid, event });
    });
    let removed = scratch.remove_all();
    let covered = read.map_err(|error| error.to_string())?;
    removed.map_err(|error| format!("the copies cannot be removed: {error}"))?;
    Ok((entries, covered))
}

fn scratch() -> std::io::Result<Dir> {
    let path: PathBuf = std::env::temp_dir().join(format!("rowlock-judge-{:016x}", rng::u64()));
    Dir::create(&path)
}

/// Walk through a history, beside the events of the log.
struct Comparison<'a> {
    log: &'a [Arc<HistoryEntry>],
    /// Zxids before the first judged entry, and of the last one.
    judged: (Zxid, Zxid),
    may_have_installed: bool,
    /// Index of the next event of the log; `None` before the history's first event.
    next: Option<usize>,
    found: Compared,
}

impl<'a> Comparison<'a> {
    fn new(node: NodeId, may_have_installed: bool, replayed: &'a Replayed) -> Self {
        let found = Compared { node, events: 0, gaps: 0, outside: 0, broken: None };
        let (log, judged) = (&*replayed.events, replayed.zxids);
        Comparison { log, judged, may_have_installed, next: None, found }
    }

    fn run(mut self, entries: &[HistoryEntry], covered: Option<Zxid>) -> Compared {
        let compared = entries.iter().try_for_each(|entry| self.entry(entry));
        let compared = compared.and_then(|()| self.lacks_none(covered.unwrap_or_default()));
        let node = self.found.node;
        self.found.broken = compared.err().map(|what| format!("the history of node {node} {what}"));
        self.found
    }

    fn entry(&mut self, entry: &HistoryEntry) -> Result<(), String> {
        let (first, last) = self.judged;
        if entry.zxid <= first {
            self.next = Some(0);
            self.found.outside += 1;
            return Ok(());
        }
        if let HistoryEvent::Gap(gap) = &entry.event {
            return self.gap(entry, *gap);
        }
        if entry.zxid > last {
            self.found.outside += 1;
            return Ok(());
        }
        let from = self.next.unwrap_or_else(|| self.log.partition_point(|event| event.zxid < entry.zxid));
        let ahead = self.log[from..].iter().take_while(|event| event.zxid <= entry.zxid);
        let at = ahead.into_iter().position(|event| **event == *entry);
        let at = from + at.ok_or_else(|| format!("has {}, which is not in the log there", text(entry)))?;
        if let Some(lacked) = self.next.and_then(|next| self.log[next..at].first()) {
            return Err(format!("lacks {}, and declares no gap", text(lacked)));
        }
        self.next = Some(at + 1);
        self.found.events += 1;
        Ok(())
    }

    fn gap(&mut self, entry: &HistoryEntry, gap: Gap) -> Result<(), String> {
        self.found.gaps += 1;
        let has_cause = match gap.reason {
            GapReason::TooFast | GapReason::Lost | GapReason::NoSpace => true,
            GapReason::Snapshot => self.may_have_installed,
            _ => false,
        };
        if !has_cause {
            let (from, reason) = (gap.from_zxid, gap.reason);
            return Err(format!(
                "declares a gap from {from} to {} because of {reason:?}, which its node did not have",
                entry.zxid
            ));
        }
        self.lacks_none(gap.from_zxid)?;
        let behind = self.log.partition_point(|event| event.zxid <= entry.zxid);
        self.next = Some(self.next.unwrap_or(0).max(behind));
        Ok(())
    }

    /// Checks that the history has all events up to this zxid.
    fn lacks_none(&self, upto: Zxid) -> Result<(), String> {
        let lacked = self.next.and_then(|next| self.log.get(next)).filter(|event| event.zxid <= upto);
        lacked.map_or(Ok(()), |event| Err(format!("lacks {}, and declares no gap", text(event))))
    }
}

/// Returns an event as a person names it.
fn text(entry: &HistoryEntry) -> String {
    match entry.event.lock() {
        Some(event) => {
            let (kind, lock, token, session) = (event.kind.name(), &event.lock, event.token, event.session);
            format!("{kind} {lock} token {token} of session {session} at {}", entry.zxid)
        }
        None => format!("a gap up to {}", entry.zxid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Fact;
    use crate::history::text::history;

    const LOG: &str = "event 5 requested; event 5 granted; event 6 requested token=6; event 7 released; \
                       event 7 granted token=6; event 9 released token=6";

    fn entries(text: &str) -> Vec<Arc<HistoryEntry>> {
        let facts = history(text).into_iter();
        facts.filter_map(|fact| if let Fact::LockEvent(entry) = fact { Some(entry) } else { None }).collect()
    }

    /// Compares a history of the log's events with these numbers, and of a gap up to zxid 7 for each `-`.
    fn compared(numbers: &str, gap: Gap, covered: i64) -> Compared {
        let replayed = Replayed { events: entries(LOG), zxids: (Zxid(4), Zxid(9)), ..Replayed::default() };
        let entry = |word: &str| match word {
            "-" => HistoryEntry { time_ms: 0, zxid: Zxid(7), event: HistoryEvent::Gap(gap) },
            number => HistoryEntry::clone(&replayed.events[number.parse::<usize>().unwrap()]),
        };
        let entries: Vec<HistoryEntry> = numbers.split_whitespace().map(entry).collect();
        Comparison::new(NodeId(1), false, &replayed).run(&entries, Some(Zxid(covered)))
    }

    fn gap(from: i64, reason: GapReason) -> Gap {
        Gap { from_zxid: Zxid(from), missing: None, reason }
    }

    #[test]
    fn a_history_may_begin_late_end_early_and_have_gaps_with_a_cause() {
        let too_fast = gap(5, GapReason::TooFast);
        for (numbers, covered, events) in [
            ("0 1 2 3 4 5", 9, 6),
            ("2 3 4 5", 9, 4),
            ("0 1 2", 6, 3),
            ("0 1 - 5", 9, 3),
            ("- 5", 9, 1),
            ("", 0, 0),
        ] {
            let compared = compared(numbers, too_fast, covered);
            assert_eq!((compared.events, compared.broken), (events, None), "{numbers}");
        }
    }

    #[test]
    fn a_missing_event_an_invented_one_and_a_gap_without_cause_are_breaches() {
        let too_fast = gap(5, GapReason::TooFast);
        for (numbers, declared, covered, why) in [
            ("0 2", too_fast, 6, "lacks granted"),
            ("0 1 2", too_fast, 9, "lacks released"),
            ("0 1 1", too_fast, 5, "has granted"),
            ("0 3 2", too_fast, 6, "lacks granted"),
            ("0 -", too_fast, 5, "lacks granted"),
            ("0 1 - 5", gap(5, GapReason::Snapshot), 9, "because of Snapshot"),
            ("0 1 - 5", gap(5, GapReason::TooSlow), 9, "because of TooSlow"),
        ] {
            let broken = compared(numbers, declared, covered).broken;
            assert!(broken.as_ref().is_some_and(|broken| broken.contains(why)), "{numbers}: {broken:?}");
        }
    }
}
