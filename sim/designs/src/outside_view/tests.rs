//! Small histories with their measurements.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn view() -> (OutsideView, impl Fn(u64)) {
    let now = Arc::new(AtomicU64::new(0));
    let seen = now.clone();
    let view = OutsideView::new(Arc::new(move || Nanos::from_millis(seen.load(Ordering::Relaxed))));
    (0..4).for_each(|c| view.starts(ClientId(c)));
    (view, move |ms| now.store(ms, Ordering::Relaxed))
}

const A: ClientId = ClientId(0);
const B: ClientId = ClientId(1);
const C: ClientId = ClientId(2);

#[test]
fn two_beliefs_at_once_are_a_window_as_long_as_both_last() {
    let (o, at) = view();
    o.wants(A);
    o.holds(A, None);
    at(100);
    o.wants(B);
    o.holds(B, None);
    at(130);
    o.lets_go(A);
    at(200);
    o.lets_go(B);
    let m = o.finish(Duration::MAX);
    assert_eq!((m.windows, m.overlap), (1, Duration::from_millis(30)));
}

#[test]
fn a_hand_over_at_one_instant_is_no_window() {
    let (o, at) = view();
    o.holds(A, None);
    at(10);
    o.holds(B, None);
    o.lets_go(A);
    assert_eq!(o.finish(Duration::MAX).windows, 0);
}

#[test]
fn a_holder_that_stands_still_counts_from_when_it_goes_on() {
    let (o, at) = view();
    o.holds(A, None);
    o.pauses(A, true);
    at(1_000);
    o.holds(B, None);
    at(2_000);
    o.pauses(A, false);
    at(2_005);
    o.lets_go(A);
    o.released(A, Released::Freed);
    let m = o.finish(Duration::MAX);
    assert_eq!((m.windows, m.overlap, m.false_releases), (1, Duration::from_millis(5), 1));
}

#[test]
fn a_grant_past_an_earlier_living_request_overtakes() {
    let (o, at) = view();
    o.wants(A);
    at(500);
    o.wants(B);
    at(600);
    o.holds(B, None);
    o.lets_go(B);
    o.wants(C);
    o.dies(A);
    o.holds(C, None);
    assert_eq!(o.finish(Duration::MAX).overtakes, 1);
}

#[test]
fn a_wanted_lock_without_a_holder_is_stuck_at_the_end() {
    let (o, at) = view();
    o.wants(A);
    o.holds(A, None);
    o.fault_begins();
    o.dies(A);
    o.wants(B);
    at(60_000);
    let m = o.finish(Duration::from_secs(30));
    assert!(m.is_stuck);
    assert_eq!((m.unavailable, m.recovery), (Duration::from_secs(60), None));
}

#[test]
fn order_is_not_asked_for_across_a_cut() {
    let (o, at) = view();
    o.wants(A);
    o.cuts_off(A, true);
    at(1_000);
    o.wants(B);
    o.holds(B, None);
    o.lets_go(B);
    o.cuts_off(A, false);
    at(2_000);
    o.wants(C);
    o.holds(C, None);
    assert_eq!(o.finish(Duration::MAX).overtakes, 0);
}

#[test]
fn who_waits_all_along_while_others_are_served_starves() {
    let (o, at) = view();
    o.wants(A);
    at(40_000);
    o.wants(B);
    o.holds(B, None);
    let m = o.finish(Duration::from_secs(30));
    assert_eq!((m.starved, m.is_stuck), (1, false));
}
