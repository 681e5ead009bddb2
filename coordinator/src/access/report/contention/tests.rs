//! The computation, against waits known by construction, with gaps and without.

mod day;

use rowlock_proto::lock::Mode;
use rowlock_proto::report::{
    Contention, EndReason, Gap, HistoryEvent, LockEvent, LockEventKind, PositionEnd, WaitedBehind,
    WaitingPair,
};
use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::*;
use crate::access::report::question::ClientKey;
use day::Draw;
pub(in crate::access::report) use day::{DAY_MS, Day};

/// An entry about `/locks/l`; the zxid is the time.
fn entry(at_ms: i64, label: &str, token: i64, kind: LockEventKind) -> (Key, HistoryEvent) {
    entry_of("/locks/l", at_ms, label, token, kind)
}

fn entry_of(lock: &str, at_ms: i64, label: &str, token: i64, kind: LockEventKind) -> (Key, HistoryEvent) {
    let event = LockEvent {
        kind,
        lock: lock.to_owned(),
        path: format!("{lock}/{token}"),
        token: FencingToken(token),
        session: SessionId(token),
        label: label.to_owned(),
        address: None,
        mode: Mode::Exclusive,
        acquired: true,
    };
    (Key { time_ms: at_ms, zxid: Zxid(at_ms), ordinal: 0 }, HistoryEvent::Lock(event))
}

fn requested(at_ms: i64, label: &str, token: i64) -> (Key, HistoryEvent) {
    entry(at_ms, label, token, LockEventKind::Requested { ahead: 0 })
}

fn granted(at_ms: i64, label: &str, token: i64, waited_ms: i64) -> (Key, HistoryEvent) {
    entry(at_ms, label, token, LockEventKind::Granted { waited_ms })
}

fn ended(at_ms: i64, label: &str, token: i64, waited_ms: i64, held_ms: Option<i64>) -> (Key, HistoryEvent) {
    let end = PositionEnd { reason: EndReason::Released, waited_ms, held_ms, by: None };
    entry(at_ms, label, token, LockEventKind::ended(end))
}

fn gap(to_ms: i64) -> (Key, HistoryEvent) {
    let gap = Gap { from_zxid: Zxid(0), missing: Some(7), reason: GapReason::TooFast };
    (Key { time_ms: to_ms, zxid: Zxid(to_ms), ordinal: 1 }, HistoryEvent::Gap(gap))
}

/// Returns the document on one lock, from entries in the order of their times.
fn report(window: (i64, i64), entries: &[(Key, HistoryEvent)]) -> Contention {
    let mut sweep = Sweep::new(window, ClientKey::Label, true);
    entries.iter().rev().for_each(|(key, event)| sweep.add_entry(*key, event));
    sweep.document(window.0, None, Zxid(0), 100)
}

/// Returns waiter, holder and time of all pairs of the only lock.
fn pairs(found: &Contention) -> Vec<(String, String, i64)> {
    assert_eq!(found.locks.len(), 1);
    let of = |pair: &'_ WaitingPair| -> (String, String, i64) {
        let WaitedBehind { holder, unknown, waited_ms } = &pair.behind;
        let without = if *unknown { "?" } else { "-" };
        (pair.waiter.clone(), holder.clone().unwrap_or_else(|| without.to_owned()), *waited_ms)
    };
    let mut found: Vec<_> = found.locks[0].pairs.iter().map(of).collect();
    // Equal times have no order that a reader sees.
    found.sort_by(|one, other| other.2.cmp(&one.2).then_with(|| one.cmp(other)));
    found
}

fn rows(rows: &[(&str, &str, i64)]) -> Vec<(String, String, i64)> {
    rows.iter().map(|(waiter, holder, ms)| ((*waiter).to_owned(), (*holder).to_owned(), *ms)).collect()
}

#[test]
fn each_moment_of_a_wait_counts_behind_the_holder_of_that_moment() {
    let found = report(
        (0, 10_000),
        &[
            ended(5_000, "a", 1, 0, Some(4_000)),
            // `b` waits since 2,000 and `c` since 3,000; no client holds the lock from 5,000 to 5,500.
            ended(7_500, "b", 2, 3_500, Some(2_000)),
            ended(9_000, "c", 3, 4_500, Some(1_500)),
        ],
    );
    let expected =
        [("b", "a", 3_000), ("c", "a", 2_000), ("c", "b", 2_000), ("b", "-", 500), ("c", "-", 500)];
    assert_eq!(pairs(&found), rows(&expected));
    let lock = &found.locks[0];
    assert_eq!((lock.requests, lock.waits, lock.longest_ms, lock.gave_up), (3, 2, 4_500, 0));
    assert_eq!((lock.waited_ms, found.waited_ms), (8_000, 8_000), "the pairs add up to the waits");
    let behind: Vec<_> = lock.behind.iter().map(|of| (of.holder.as_deref(), of.waited_ms)).collect();
    assert_eq!(behind, [(Some("a"), 5_000), (Some("b"), 2_000), (None, 1_000)]);
    let waiting: Vec<_> = lock.waiting.iter().map(|of| (of.waiter.as_str(), of.waited_ms)).collect();
    assert_eq!(waiting, [("c", 4_500), ("b", 3_500)]);
}

#[test]
fn holders_that_share_the_lock_share_the_waiting() {
    let found = report(
        (0, 10_000),
        &[
            ended(4_000, "reader 1", 1, 0, Some(4_000)),
            ended(4_000, "reader 2", 2, 0, Some(4_000)),
            ended(5_000, "writer", 3, 4_000, Some(1_000)),
        ],
    );
    assert_eq!(pairs(&found), rows(&[("writer", "reader 1", 2_000), ("writer", "reader 2", 2_000)]));
    let behind: Vec<i64> = found.locks[0].behind.iter().map(|of| of.waited_ms).collect();
    assert_eq!(behind, [2_000, 2_000], "the sums by holder are those of the pairs");
}

#[test]
fn only_the_requested_time_counts_with_the_positions_of_this_moment() {
    let mut sweep = Sweep::new((1_000, 3_000), ClientKey::Label, true);
    let party = |label, address| Party { label, address, session: SessionId(9) };
    sweep.add_present("/locks/l", party(" ", Some("10.0.0.7")), FencingToken(1), (0, Some(0)));
    sweep.add_present("/locks/l", party("w", None), FencingToken(2), (500, None));
    let (key, event) = ended(2_000, "v", 3, 200, None);
    sweep.add_entry(key, &event);
    let found = sweep.document(1_000, None, Zxid(0), 100);
    assert_eq!(pairs(&found), rows(&[("w", "10.0.0.7", 2_000), ("v", "10.0.0.7", 200)]));
    let lock = &found.locks[0];
    assert_eq!((lock.requests, lock.waits, lock.longest_ms, lock.gave_up), (2, 2, 2_500, 1));
    assert_eq!(found.slices.step_ms, 34);
    assert_eq!(found.slices.waited_ms.iter().flatten().sum::<i64>(), 2_200);
}

#[test]
fn a_late_beginning_is_unknown_time_and_has_no_slices() {
    let entries = [ended(9_000, "a", 1, 0, Some(9_000)), ended(9_500, "b", 2, 8_000, Some(500))];
    let mut sweep = Sweep::new((0, 10_000), ClientKey::Label, false);
    entries.iter().rev().for_each(|(key, event)| sweep.add_entry(*key, event));
    let found = sweep.document(6_000, Some(GapReason::Trimmed), Zxid(0), 100);
    assert_eq!((found.from_ms, found.unknown_ms, found.cut), (6_000, 6_000, Some(GapReason::Trimmed)));
    assert_eq!((found.waited_ms, found.locks[0].longest_ms), (3_000, 8_000));
    let known = found.slices.waited_ms.iter().filter(|slice| slice.is_some()).count();
    assert_eq!((found.slices.waited_ms.len(), known), (60, 25), "{:?}", found.slices);
    assert!(found.locks[0].pairs.is_empty());
}

#[test]
fn a_gap_hides_holders_and_ends_of_waits_and_the_document_says_how_much() {
    let found = report(
        (0, 10_000),
        &[
            requested(1_000, "lost", 7),
            ended(2_000, "early", 1, 0, Some(2_000)),
            granted(2_500, "hidden", 2, 500),
            requested(2_600, "b", 3),
            // Missing: the end of `hidden` and `lost`, and all of a third client.
            gap(6_000),
            ended(8_000, "a", 4, 0, Some(1_000)),
            ended(9_000, "b", 3, 5_400, Some(1_000)),
        ],
    );
    let [of] = &found.gaps[..] else { panic!("{found:?}") };
    assert_eq!((of.from_ms, of.to_ms, of.missing, found.unknown_ms), (2_600, 6_000, Some(7), 3_400));
    // The lock was free from 2,000 to 2,500, and has unknown holders afterwards; from 6,000 on it was free.
    let expected = [("b", "?", 3_400), ("b", "-", 1_000), ("b", "a", 1_000), ("hidden", "-", 500)];
    assert_eq!(pairs(&found), rows(&expected));
    assert_eq!((found.lost.waits, found.lost.at_least_ms, found.lost.at_most_ms), (1, 1_600, 5_000));
    let known = [requested(1_000, "lost", 7), ended(9_000, "lost", 7, 7_000, Some(1_000))];
    assert_eq!(report((0, 10_000), &known).lost, Default::default(), "no gap, nothing is lost");
}

#[test]
fn a_report_without_waits_lists_no_lock() {
    let found = report((0, 9), &[granted(5, "a", 1, 0), ended(6, "a", 1, 0, Some(1)), gap(8)]);
    assert_eq!((found.locks.len(), found.waited_ms, found.requests), (0, 0, 0));
    assert_eq!(report((0, 0), &[]).slices.waited_ms, []);
}

#[test]
fn a_sweep_ends_at_its_bounds() {
    let mut sweep = Sweep::new((0, 10_000), ClientKey::Label, false);
    let mut at_ms = 10_000;
    while !sweep.is_full() {
        at_ms -= 1;
        let (key, event) = gap(at_ms);
        sweep.add_entry(key, &event);
    }
    assert_eq!(at_ms, 10_000 - 101);
    let mut sweep = Sweep::new((0, 10_000), ClientKey::Label, false);
    let mut count = 0;
    while !sweep.is_full() {
        count += 1;
        let party = Party { label: &format!("{count:0200}"), address: None, session: SessionId(0) };
        sweep.add_present("/locks/l", party, FencingToken(count), (0, None));
    }
    assert!((50_000..200_000).contains(&count), "{count} waiters are full");
}

/// Positions of one lock at random times, some of them shared.
fn drawn(rng: &mut Draw) -> Vec<(usize, i64, Option<i64>, i64)> {
    let mut below = |bound: i64| rng.below(bound);
    (0..12)
        .map(|n| {
            let requested_ms = below(150);
            let granted_ms = (below(5) > 0).then(|| requested_ms + below(60));
            let end_ms = granted_ms.unwrap_or(requested_ms) + below(60);
            (n % 4, requested_ms, granted_ms, end_ms)
        })
        .collect()
}

#[test]
fn sums_of_random_positions_are_those_of_a_count_at_each_millisecond() {
    const WINDOW: (i64, i64) = (40, 170);
    let mut waited_in_all = 0;
    for seed in 0..300 {
        let positions = drawn(&mut Draw::new(seed));
        let mut expected = std::collections::BTreeMap::new();
        for at in WINDOW.0..WINDOW.1 {
            let holds = |(_, _, granted, end): &&(usize, i64, Option<i64>, i64)| {
                granted.is_some_and(|granted| granted <= at) && at < *end
            };
            let holders: Vec<usize> = positions.iter().filter(holds).map(|of| of.0).collect();
            for (waiter, requested, granted, end) in &positions {
                if *requested > at || at >= granted.unwrap_or(*end) {
                    continue;
                }
                waited_in_all += 1;
                for holder in &holders {
                    *expected.entry((*waiter, Some(*holder))).or_insert(0.0) += 1.0 / holders.len() as f64;
                }
                if holders.is_empty() {
                    *expected.entry((*waiter, None)).or_insert(0.0) += 1.0;
                }
            }
        }
        let mut entries: Vec<(Key, HistoryEvent)> = Vec::new();
        let mut sweep = Sweep::new(WINDOW, ClientKey::Label, true);
        for (token, (client, requested, granted, end)) in (1..).zip(&positions) {
            let label = client.to_string();
            let (waited, held) = (granted.unwrap_or(*end) - requested, granted.map(|granted| end - granted));
            if *end > WINDOW.1 {
                let party = Party { label: &label, address: None, session: SessionId(0) };
                let granted = granted.filter(|granted| *granted <= WINDOW.1);
                if *requested <= WINDOW.1 {
                    sweep.add_present("/locks/l", party, FencingToken(token), (*requested, granted));
                }
            } else {
                entries.push(ended(*end, &label, token, waited, held));
            }
        }
        entries.sort_by_key(|(key, _)| std::cmp::Reverse(*key));
        let meant = entries.iter().filter(|(key, _)| key.time_ms >= WINDOW.0);
        meant.for_each(|(key, event)| sweep.add_entry(*key, event));
        let found = sweep.document(WINDOW.0, None, Zxid(0), 1_000);
        let found: std::collections::BTreeMap<_, i64> = pairs(&found)
            .into_iter()
            .map(|(waiter, holder, ms)| ((waiter.parse().unwrap(), holder.parse().ok()), ms))
            .collect();
        for (pair, ms) in &expected {
            let found = *found.get(pair).unwrap_or(&0) as f64;
            assert!((found - ms).abs() < 0.51, "seed {seed}, {pair:?}: {found}, {ms}");
        }
        assert!(found.keys().all(|pair| expected.contains_key(pair)), "seed {seed}: {found:?}");
    }
    assert!(waited_in_all > 10_000, "{waited_in_all}");
}
