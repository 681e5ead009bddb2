//! Sweep over the time of all locks of a report: positions, entries and gaps in, the document out.

use std::collections::BTreeMap;
use std::sync::Arc;

use rowlock_history::Key;
use rowlock_proto::report::{
    Contention, GapReason, LockEventKind, LockWaits, LostWaits, Slices, UnknownTime, WaitedBehind, WaitedBy,
    WaitingPair,
};
use rowlock_proto::report::{Gap, HistoryEvent, LockEvent};
use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::one_lock::{Behind, Budget, Client, LockSweep, Position, SliceSums};
use crate::access::report::List;
use crate::access::report::question::ClientKey;
use crate::limits::{CONTENTION_CLIENTS_SHOWN, CONTENTION_GAPS_MAX};

/// Number of equal parts of the requested time.
const SLICES: i64 = 60;

/// Names as numbers: one client has many positions.
#[derive(Debug, Default)]
struct Names {
    numbers: BTreeMap<Arc<str>, Client>,
    names: Vec<Arc<str>>,
}

impl Names {
    fn number(&mut self, name: &str, budget: &mut Budget) -> Client {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        let (name, number) = (Arc::<str>::from(name), Client::try_from(self.names.len()));
        let number = number.expect("Invariant: fewer names than bytes of the report");
        budget.bytes += name.len() + 2 * Budget::ENTRY_BYTES;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    fn name(&self, client: Client) -> String {
        self.names[client as usize].to_string()
    }
}

/// Parties of a position: label, address and session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Party<'a> {
    pub label: &'a str,
    pub address: Option<&'a str>,
    pub session: SessionId,
}

/// Part of the time between the report's newest moment and the reached one, with its sums.
#[derive(Debug)]
pub(super) struct Sweep {
    by: ClientKey,
    wants_pairs: bool,
    since_ms: i64,
    until_ms: i64,
    names: Names,
    locks: BTreeMap<String, LockSweep>,
    slices: SliceSums,
    budget: Budget,
    gaps: Vec<UnknownTime>,
    /// True until the entry before the last gap.
    is_in_gap: bool,
    lost: LostWaits,
}

impl Sweep {
    /// Makes a sweep from `until_ms` back to `since_ms`. `wants_pairs`: the report is on one lock.
    pub fn new((since_ms, until_ms): (i64, i64), by: ClientKey, wants_pairs: bool) -> Sweep {
        assert!(0 <= since_ms && since_ms <= until_ms, "the time begins before its end");
        Sweep {
            by,
            wants_pairs,
            since_ms,
            until_ms,
            names: Names::default(),
            locks: BTreeMap::new(),
            slices: SliceSums::new((since_ms, until_ms), SLICES),
            budget: Budget::default(),
            gaps: Vec::new(),
            is_in_gap: false,
            lost: LostWaits::default(),
        }
    }

    /// Returns true if the report has reached one of its bounds.
    pub fn is_full(&self) -> bool {
        self.budget.is_spent() || self.gaps.len() > CONTENTION_GAPS_MAX
    }

    /// Adds a position of the present queue.
    pub fn add_present(
        &mut self,
        lock: &str,
        party: Party<'_>,
        token: FencingToken,
        (requested_ms, granted_ms): (i64, Option<i64>),
    ) {
        let client = self.client(party);
        let position = Position { client, token, requested_ms, granted_ms, gave_up: false };
        self.at(lock, self.until_ms);
        self.add(lock, position);
    }

    /// Adds the next older entry of the history.
    pub fn add_entry(&mut self, key: Key, event: &HistoryEvent) {
        self.budget.steps += 1;
        if std::mem::take(&mut self.is_in_gap)
            && let Some(gap) = self.gaps.last_mut()
        {
            gap.from_ms = key.time_ms.min(gap.to_ms);
        }
        match event {
            HistoryEvent::Lock(event) => self.add_event(key.time_ms, event),
            HistoryEvent::Gap(gap) => self.add_gap(key.time_ms, *gap),
            _ => {}
        }
    }

    fn add_event(&mut self, at_ms: i64, event: &LockEvent) {
        let LockEvent { lock, token, session, label, address, kind, .. } = event;
        let party = Party { label, address: address.as_deref(), session: *session };
        let has_gap = !self.gaps.is_empty();
        let is_missing = |sweep: &Sweep| has_gap && sweep.locks.get(lock).is_none_or(|one| !one.has(*token));
        let (waited_ms, held_ms, gave_up) = match kind {
            LockEventKind::Abandoned(end) => (end.waited_ms, None, true),
            LockEventKind::Released(end) | LockEventKind::Lost(end) => (end.waited_ms, end.held_ms, false),
            LockEventKind::Granted { waited_ms } => {
                // The end of the hold is in a gap: the wait before the hold is known.
                let is_new = is_missing(self);
                if has_gap {
                    self.at(lock, at_ms).may_lack_holders = false;
                }
                if is_new {
                    let client = self.client(party);
                    let requested_ms = at_ms.saturating_sub(*waited_ms);
                    let position =
                        Position { client, token: *token, requested_ms, granted_ms: None, gave_up: false };
                    self.add(lock, position);
                }
                return;
            }
            LockEventKind::Requested { .. } => {
                if is_missing(self) {
                    self.lose_wait(at_ms);
                }
                return;
            }
            LockEventKind::Converted | LockEventKind::Asked { .. } => return,
        };
        let granted_ms = held_ms.map(|held_ms| at_ms.saturating_sub(held_ms));
        let requested_ms = granted_ms.unwrap_or(at_ms).saturating_sub(waited_ms);
        let client = self.client(party);
        self.at(lock, at_ms).may_lack_holders = false;
        self.add(lock, Position { client, token: *token, requested_ms, granted_ms, gave_up });
    }

    /// Counts a wait from `at_ms` that ends in a gap.
    fn lose_wait(&mut self, at_ms: i64) {
        let (Some(newest), Some(oldest)) = (self.gaps.first(), self.gaps.last()) else { return };
        self.lost.waits += 1;
        self.lost.at_least_ms += (oldest.from_ms - at_ms).max(0);
        self.lost.at_most_ms += (newest.to_ms - at_ms).max(0);
    }

    fn add_gap(&mut self, at_ms: i64, gap: Gap) {
        let to_ms = at_ms.clamp(self.since_ms, self.until_ms);
        for lock in self.locks.values_mut() {
            lock.advance(to_ms, &mut self.slices, &mut self.budget);
            lock.may_lack_holders = true;
            self.budget.steps += 1;
        }
        let Gap { reason, missing, .. } = gap;
        self.gaps.push(UnknownTime { from_ms: self.since_ms, to_ms, reason, missing });
        self.is_in_gap = true;
    }

    /// Moves the lock back to `at_ms`.
    fn at(&mut self, lock: &str, at_ms: i64) -> &mut LockSweep {
        if !self.locks.contains_key(lock) {
            let mut new = LockSweep::new(self.until_ms, self.wants_pairs);
            new.may_lack_holders = !self.gaps.is_empty();
            self.budget.bytes += lock.len() + 8 * Budget::ENTRY_BYTES;
            self.locks.insert(lock.to_owned(), new);
        }
        let found = self.locks.get_mut(lock).expect("Invariant: inserted above");
        found.advance(at_ms, &mut self.slices, &mut self.budget);
        found
    }

    fn add(&mut self, lock: &str, position: Position) {
        let found = self.locks.get_mut(lock).expect("Invariant: the lock was moved back before");
        found.add(position, &mut self.budget);
    }

    fn client(&mut self, party: Party<'_>) -> Client {
        let (label, address) = (party.label, party.address.unwrap_or_default());
        let wanted: &[&str] = match self.by {
            ClientKey::Label => &[label, address],
            ClientKey::Address => &[address],
            ClientKey::Session => &[],
        };
        match wanted.iter().find(|name| !name.trim().is_empty()) {
            Some(name) => self.names.number(name, &mut self.budget),
            None => self.names.number(&party.session.to_string(), &mut self.budget),
        }
    }

    /// Goes back to the beginning of the known time and returns the document. `cut`: why the known time
    /// begins after the requested one.
    pub fn document(mut self, from_ms: i64, cut: Option<GapReason>, zxid: Zxid, limit: usize) -> Contention {
        let from_ms = from_ms.clamp(self.since_ms, self.until_ms);
        for gap in &mut self.gaps {
            gap.from_ms = gap.from_ms.max(from_ms);
        }
        self.gaps.retain(|gap| gap.to_ms > from_ms || gap.from_ms > from_ms);
        let mut waits = Vec::new();
        for (path, mut lock) in std::mem::take(&mut self.locks) {
            lock.advance(from_ms, &mut self.slices, &mut self.budget);
            if lock.waits > 0 || lock.waited_ms > 0.0 {
                waits.push((path, lock));
            }
        }
        waits.sort_by(|(_, one), (_, other)| other.waited_ms.total_cmp(&one.waited_ms));
        let sum = |number: fn(&LockSweep) -> u64| waits.iter().map(|(_, lock)| number(lock)).sum();
        let (requests, waiting) = (sum(|lock| lock.requests), sum(|lock| lock.waits));
        let waited: f64 = waits.iter().map(|(_, lock)| lock.waited_ms).sum();
        let (lock_count, mut list) = (waits.len() as u64, List::new(limit));
        for (path, lock) in waits {
            if !list.push(self.lock_waits(path, lock, limit)) {
                break;
            }
        }
        let SliceSums { step_ms, sums, .. } = &self.slices;
        let is_known = |at: usize| self.since_ms + (at as i64 + 1) * step_ms > from_ms;
        let in_slice = |(at, sum): (usize, &f64)| is_known(at).then_some(whole(*sum));
        let waited_ms = sums.iter().enumerate().map(in_slice).collect();
        let in_gaps: i64 = self.gaps.iter().map(|gap| gap.to_ms - gap.from_ms).sum();
        Contention {
            zxid,
            since_ms: self.since_ms,
            from_ms,
            until_ms: self.until_ms,
            cut: cut.filter(|_| from_ms > self.since_ms),
            unknown_ms: from_ms - self.since_ms + in_gaps,
            gaps: self.gaps,
            lost: self.lost,
            waited_ms: whole(waited),
            requests,
            waits: waiting,
            lock_count,
            slices: Slices { step_ms: *step_ms, waited_ms },
            locks: list.items,
            more: list.more,
        }
    }

    fn lock_waits(&self, lock: String, mut swept: LockSweep, limit: usize) -> LockWaits {
        let [waiters, holders] = swept.sums();
        let behind = |behind: Behind, ms: f64| WaitedBehind {
            holder: if let Behind::Holder(client) = behind { Some(self.names.name(client)) } else { None },
            unknown: behind == Behind::Unknown,
            waited_ms: whole(ms),
        };
        let others = [(Behind::NoHolder, swept.no_holder_ms), (Behind::Unknown, swept.unknown_ms)];
        let holders = holders.into_iter().map(|(client, ms)| (Behind::Holder(client), ms)).chain(others);
        let shown = if self.wants_pairs { limit } else { CONTENTION_CLIENTS_SHOWN };
        let pairs = longest(swept.pairs.take().unwrap_or_default(), limit);
        LockWaits {
            lock,
            waited_ms: whole(swept.waited_ms),
            requests: swept.requests,
            waits: swept.waits,
            gave_up: swept.gave_up,
            longest_ms: swept.longest_ms,
            behind: longest(holders, shown).into_iter().map(|(who, ms)| behind(who, ms)).collect(),
            waiting: longest(waiters, shown)
                .into_iter()
                .map(|(who, ms)| WaitedBy { waiter: self.names.name(who), waited_ms: whole(ms) })
                .collect(),
            pairs: pairs
                .into_iter()
                .map(|((waiter, who), ms)| WaitingPair {
                    waiter: self.names.name(waiter),
                    behind: behind(who, ms),
                })
                .collect(),
        }
    }
}

/// Returns the longest times of at least half a millisecond, the longest first.
fn longest<T: Ord>(times: impl IntoIterator<Item = (T, f64)>, limit: usize) -> Vec<(T, f64)> {
    let mut times: Vec<_> = times.into_iter().filter(|(_, ms)| *ms >= 0.5).collect();
    times.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    times.truncate(limit);
    times
}

fn whole(ms: f64) -> i64 {
    ms.round() as i64
}
