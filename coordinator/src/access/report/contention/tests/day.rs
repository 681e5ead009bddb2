//! A day of 300 locks, drawn from a seed, with waits known by construction: each lock has one holder and
//! passes to the waiters in the order of their requests.

use std::collections::BTreeMap;

use super::*;

pub const LOCKS: usize = 300;
const CLIENTS: i64 = 40;
pub const DAY_MS: i64 = 86_400_000;

/// Random numbers from a seed (xorshift).
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.cast_unsigned()).cast_signed()
    }
}

/// One request for a lock, with its grant and release; the client measured `granted_ms - requested_ms`.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub lock: usize,
    pub client: i64,
    pub requested_ms: i64,
    pub granted_ms: i64,
    pub released_ms: i64,
}

impl Hold {
    pub fn path(&self) -> String {
        format!("/locks/job-{:03}", self.lock)
    }

    pub fn label(&self) -> String {
        format!("client-{:02}", self.client)
    }

    /// Returns the part of the client's wait inside the window.
    pub fn waited_in(&self, (from_ms, to_ms): (i64, i64)) -> i64 {
        (self.granted_ms.min(to_ms) - self.requested_ms.max(from_ms)).max(0)
    }
}

/// All requests of a day; times begin at 0.
pub struct Day(pub Vec<Hold>);

impl Day {
    pub fn draw(seed: u64) -> Day {
        let mut draw = Draw::new(seed);
        let mut holds = Vec::new();
        for lock in 0..LOCKS {
            let requests = 5 + draw.below(60);
            let mut times: Vec<i64> = (0..requests).map(|_| draw.below(DAY_MS - 1)).collect();
            times.sort_unstable();
            let (longest_ms, mut free_ms) = (2 * DAY_MS / requests, 0);
            for requested_ms in times {
                let granted_ms = requested_ms.max(free_ms);
                free_ms = granted_ms + 1 + draw.below(longest_ms);
                let client = draw.below(CLIENTS);
                holds.push(Hold { lock, client, requested_ms, granted_ms, released_ms: free_ms });
            }
        }
        Day(holds)
    }

    /// Returns the sum of the clients' own measurements for each lock with waits.
    pub fn waited_in(&self, window: (i64, i64)) -> BTreeMap<String, i64> {
        let mut sums = BTreeMap::new();
        for hold in self.0.iter().filter(|hold| hold.waited_in(window) > 0) {
            *sums.entry(hold.path()).or_insert(0) += hold.waited_in(window);
        }
        sums
    }

    /// Returns the waiting time for one lock by waiter and holder.
    pub fn pairs_in(&self, path: &str, (from_ms, to_ms): (i64, i64)) -> BTreeMap<(String, String), i64> {
        let of_lock: Vec<&Hold> = self.0.iter().filter(|hold| hold.path() == path).collect();
        let mut sums = BTreeMap::new();
        for waiter in &of_lock {
            for holder in &of_lock {
                let window = (from_ms.max(holder.granted_ms), to_ms.min(holder.released_ms));
                if waiter.waited_in(window) > 0 {
                    let pair = (waiter.label(), holder.label());
                    *sums.entry(pair).or_insert(0) += waiter.waited_in(window);
                }
            }
        }
        sums
    }

    /// Returns the entries of the history until the end of the day, in order.
    fn entries(&self) -> Vec<(Key, HistoryEvent)> {
        let mut entries = Vec::new();
        for (token, hold) in (1..).zip(&self.0) {
            let Hold { requested_ms, granted_ms, released_ms, .. } = *hold;
            let waited_ms = granted_ms - requested_ms;
            let end = PositionEnd {
                reason: EndReason::Released,
                waited_ms,
                held_ms: Some(released_ms - granted_ms),
                by: None,
            };
            for (at_ms, kind) in [
                (requested_ms, LockEventKind::Requested { ahead: 0 }),
                (granted_ms, LockEventKind::Granted { waited_ms }),
                (released_ms, LockEventKind::Released(end)),
            ] {
                entries.push(entry_of(&hold.path(), at_ms, &hold.label(), token, kind));
            }
        }
        entries.retain(|(key, _)| key.time_ms <= DAY_MS);
        entries
            .sort_by_key(|(key, event)| (key.time_ms, event.name() != "released", event.name() == "granted"));
        entries
    }

    /// Adds the positions at the end of the day.
    fn add_present(&self, sweep: &mut Sweep) {
        for (token, hold) in (1..).zip(&self.0).filter(|(_, hold)| hold.released_ms > DAY_MS) {
            let party = Party { label: &hold.label(), address: None, session: SessionId(token) };
            let granted_ms = Some(hold.granted_ms).filter(|at_ms| *at_ms <= DAY_MS);
            sweep.add_present(&hold.path(), party, FencingToken(token), (hold.requested_ms, granted_ms));
        }
    }
}

#[test]
fn a_day_with_gaps_is_known_up_to_the_bounds_in_the_document() {
    for seed in 1..=20 {
        let (day, mut draw) = (Day::draw(seed), Draw::new(seed + 1_000));
        let first = draw.below(DAY_MS / 2);
        let second = first + DAY_MS / 8;
        let gaps = [(first, first + 1 + draw.below(3_600_000)), (second, second + 1 + draw.below(7_200_000))];
        let hidden = |at_ms: i64| gaps.iter().any(|(from, to)| (*from..=*to).contains(&at_ms));
        let mut sweep = Sweep::new((0, DAY_MS), ClientKey::Label, false);
        day.add_present(&mut sweep);
        let mut entries = day.entries();
        entries.retain(|(key, _)| !hidden(key.time_ms));
        entries.extend(gaps.iter().map(|(_, to_ms)| gap(*to_ms)));
        entries.sort_by_key(|(key, _)| key.time_ms);
        entries.iter().rev().for_each(|(key, event)| sweep.add_entry(*key, event));
        let found = sweep.document(0, None, Zxid(0), 10_000);
        // Of a wait between two moments of one gap no record is left.
        let in_gap = |hold: &&Hold| {
            let is_in = |(from, to): &(i64, i64)| hold.requested_ms >= *from && hold.granted_ms <= *to;
            gaps.iter().any(is_in)
        };
        let sum =
            |holds: &mut dyn Iterator<Item = &Hold>| holds.map(|hold| hold.waited_in((0, DAY_MS))).sum();
        let all: i64 = sum(&mut day.0.iter().filter(|hold| !in_gap(hold)));
        let (least, most) =
            (found.waited_ms + found.lost.at_least_ms, found.waited_ms + found.lost.at_most_ms);
        assert!(least <= all && all <= most, "seed {seed}: {least} <= {all} <= {most}");
        assert!(found.lost.waits > 0 && found.unknown_ms >= gaps.iter().map(|(from, to)| to - from).sum());
        let lost = |hold: &&Hold| hidden(hold.granted_ms) && hidden(hold.released_ms) && !in_gap(hold);
        let begun = |hold: &&Hold| !hidden(hold.requested_ms);
        let lost = day.0.iter().filter(|hold| lost(hold) && begun(hold)).count();
        assert_eq!(found.lost.waits, lost as u64, "seed {seed}");
    }
}

#[test]
fn a_day_without_gaps_is_known_to_the_millisecond() {
    let day = Day::draw(7);
    let mut sweep = Sweep::new((0, DAY_MS), ClientKey::Label, false);
    day.add_present(&mut sweep);
    day.entries().iter().rev().for_each(|(key, event)| sweep.add_entry(*key, event));
    let found = sweep.document(0, None, Zxid(0), 10_000);
    let shown = found.locks.iter().map(|of| (of.lock.clone(), of.waited_ms)).collect();
    assert_eq!(day.waited_in((0, DAY_MS)), shown);
}
