use super::*;

#[test]
fn grace_counts_down_in_seconds_and_restarts_per_leader() {
    let (mut grace, begin) = (Grace::default(), Instant::now());
    let at = |ms| begin + Duration::from_millis(ms);
    assert_eq!(grace.left(0, 1, at(0)), 0);
    assert_eq!(grace.left(40_000, 1, at(0)), 40);
    assert_eq!(grace.left(40_000, 1, at(12_500)), 28);
    assert_eq!(grace.left(40_000, 1, at(60_000)), 1, "the leader has not ended it");
    assert_eq!(grace.left(40_000, 2, at(60_000)), 40, "another leader");
    assert_eq!(grace.left(0, 2, at(61_000)), 0);
}

#[test]
fn node_with_hung_disk_is_left_behind_when_others_commit() {
    let (mut hang, begin) = (Hang::default(), Instant::now());
    let at = |s| begin + Duration::from_secs(s);
    assert_eq!(hang.update(None, 5, at(0)), (false, false));
    assert_eq!(hang.update(Some(at(1)), 5, at(1)), (false, false));
    assert_eq!(hang.update(Some(at(9)), 7, at(12)), (false, false), "slow, and each write ends");
    assert_eq!(hang.update(Some(at(9)), 7, at(19)), (true, false), "the cluster stands still");
    assert_eq!(hang.update(Some(at(9)), 6, at(19)), (true, false), "this node leads, and knows less");
    assert_eq!(hang.update(Some(at(9)), 8, at(20)), (true, true));
    assert_eq!(hang.update(Some(at(20)), 9, at(21)), (false, false), "it has ended");
}

#[test]
fn commits_stall_when_an_entry_waits_and_none_is_committed() {
    let (mut stall, begin) = (Stall::default(), Instant::now());
    let mut update = |s, last, committed| stall.update(last, committed, begin + Duration::from_secs(s));
    assert!(!update(0, 7, 7) && !update(60, 7, 7), "nothing waits");
    assert!(!update(61, 8, 7) && !update(65, 9, 7));
    assert!(update(66, 9, 7));
    assert!(!update(67, 9, 8), "slow is not stalled");
    assert!(!update(71, 9, 8) && update(72, 9, 8));
}

#[test]
fn outage_is_logged_again_every_ten_seconds() {
    let (mut outage, begin) = (Outage::default(), Instant::now());
    let mut logged = |ms: u64, serving| {
        outage.update(serving, begin + Duration::from_millis(ms)).map(|lasts| lasts.as_secs())
    };
    let first: Vec<u64> = (0..700).filter_map(|n| logged(n * 50, false)).collect();
    assert_eq!(first, [10, 20, 30]);
    assert_eq!(logged(65_000, false), Some(65), "late, and once");
    assert_eq!(logged(69_000, false), None);
    assert_eq!(logged(70_000, false), Some(70));
    assert_eq!(logged(80_000, true), None);
    assert_eq!(logged(81_000, false), None, "another one begins");
    assert_eq!(logged(91_000, false), Some(10));
}
