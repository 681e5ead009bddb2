//! Predictions of the literature about each design, as assertions: a model that never loses what the real
//! design loses is wrong.

use rowlock_designs::design::Design;
use rowlock_designs::scenario::Scenario;
use rowlock_designs::table::{Cell, Summary, compare};
use rowlock_designs::{TTL, recipes, stage};

const SEEDS: u64 = 1;

fn measure(design: &str, scenario: Scenario) -> Summary {
    let designs = recipes::all();
    let chosen: Vec<&dyn Design> = designs.iter().map(|d| &**d).filter(|d| d.id() == design).collect();
    let mut table = compare(&chosen, &[scenario], SEEDS, |_| {});
    match table.rows.remove(0).cells.remove(0).1 {
        Cell::Measured(summary) => {
            let has_fault =
                !matches!(scenario, Scenario::Calm | Scenario::TwoClients | Scenario::HundredWaiters);
            assert_eq!(summary.faults, if has_fault { SEEDS } else { 0 }, "the fault finds its occasion");
            *summary
        }
        other => panic!("{design} in {}: {other:?}", scenario.id()),
    }
}

#[test]
fn no_design_but_the_printed_one_overlaps_in_calm() {
    for design in recipes::all() {
        let m = measure(design.id(), Scenario::Calm);
        assert_eq!(
            (m.windows, m.lost_plain) == (0, 0),
            design.id() != "zk-queue-as-printed",
            "{}",
            design.id()
        );
        assert_eq!(m.stuck, 0, "{}", design.id());
    }
}

#[test]
fn a_crash_between_setnx_and_expire_is_for_ever() {
    assert_eq!(measure("setnx-expire", Scenario::CrashBetween).stuck, SEEDS);
}

#[test]
fn wrong_releases_free_the_locks_of_others() {
    assert!(measure("set-nx-px-del", Scenario::HolderPause).windows > 0);
    assert_eq!(measure("set-nx-px-script", Scenario::HolderPause).windows, 0);
    assert!(measure("set-nx-px-get-del", Scenario::PauseBetween).windows > 0);
}

#[test]
fn only_renewal_protects_a_job_beyond_the_time_to_live() {
    assert!(measure("set-nx-px-script", Scenario::LongJob).windows > 0);
    assert!(measure("row-expiry", Scenario::LongJob).windows > 0);
    assert_eq!(measure("redisson", Scenario::LongJob).windows, 0);
    assert_eq!(measure("zk-queue", Scenario::LongJob).windows, 0);
}

#[test]
fn failover_of_asynchronous_replicas_gives_the_lock_away_twice() {
    assert!(measure("redisson-replicas", Scenario::PrimaryLost).windows > 0);
    assert!(
        measure("redisson-min-replicas", Scenario::PrimaryLost).windows > 0,
        "a gate is no acknowledgement"
    );
    assert_eq!(measure("redisson-wait", Scenario::PrimaryLost).windows, 0);
}

#[test]
fn two_primaries_in_a_partition_give_the_lock_away_twice() {
    assert!(measure("redisson-replicas", Scenario::Partition).windows > 0);
    assert_eq!(measure("zk-queue", Scenario::Partition).windows, 0);
}

#[test]
fn wall_clocks_that_jump_break_all_that_expires_by_them() {
    for design in ["client-timestamps", "set-nx-px-script", "redisson", "redlock", "row-expiry"] {
        assert!(measure(design, Scenario::ClockJump).windows > 0, "{design}");
    }
    assert_eq!(measure("zk-queue", Scenario::ClockJump).windows, 0);
}

#[test]
fn redlock_survives_a_lost_master_and_no_restart_without_fsync() {
    assert_eq!(measure("redlock", Scenario::PrimaryLost).windows, 0);
    assert!(measure("redlock", Scenario::PowerLoss).windows > 0);
    assert_eq!(measure("redlock-fsync", Scenario::PowerLoss).windows, 0);
}

#[test]
fn an_unflushed_lock_is_granted_again_after_a_power_loss() {
    assert!(measure("set-nx-px-script", Scenario::PowerLoss).windows > 0);
    assert_eq!(measure("set-nx-px-script-fsync", Scenario::PowerLoss).windows, 0);
}

#[test]
fn a_row_without_expiry_stays_when_its_holder_dies() {
    assert_eq!(measure("row", Scenario::HolderCrash).stuck, SEEDS);
    assert_eq!(measure("row-expiry", Scenario::HolderCrash).stuck, 0);
}

#[test]
fn one_znode_wakes_a_herd_and_the_queue_wakes_one_in_its_order() {
    let (herd, queue) =
        (measure("zk-one-znode", Scenario::HundredWaiters), measure("zk-queue", Scenario::HundredWaiters));
    assert!(herd.wasted_per_release() > 80.0);
    assert!(queue.wasted_per_release() < 0.1);
    assert_eq!(queue.overtakes, 0);
    assert!(queue.messages_per_release() < herd.messages_per_release() / 20.0);
    assert!(measure("redisson", Scenario::HundredWaiters).wasted_per_release() > 80.0, "a message wakes all");
}

#[test]
fn the_right_queue_never_overlaps() {
    for scenario in Scenario::ALL.into_iter().filter(|s| *s != Scenario::PauseBetween) {
        let m = measure("zk-queue", scenario);
        assert_eq!((m.windows, m.stuck, m.lost_fenced), (0, 0, 0), "{}", scenario.id());
        assert_eq!(m.lost_plain > 0, scenario == Scenario::HolderPause, "{}", scenario.id());
        assert_eq!(m.overtakes, 0, "{}", scenario.id());
    }
}

#[test]
fn a_release_lost_by_a_failover_starves_the_other_clients() {
    assert!(measure("redisson-replicas", Scenario::PrimaryLost).starved > 0);
}

#[test]
fn waiting_for_all_replicas_is_safe_and_unavailable() {
    let m = measure("redisson-wait-all", Scenario::PrimaryLost);
    assert_eq!(m.windows, 0);
    assert!(m.unavailable > TTL);
}

#[test]
fn a_dead_clients_znode_stays_until_its_session_has_timed_out() {
    let recovery = measure("zk-queue", Scenario::HolderCrash).recovery.expect("it recovers");
    assert!(recovery + std::time::Duration::from_secs(2) > TTL);
}

#[test]
fn the_printed_class_grants_by_timeout() {
    let m = measure("zk-queue-as-printed", Scenario::Calm);
    assert!(m.wait_p50 >= TTL && m.windows > 0);
}

#[test]
fn a_wake_up_taken_for_a_grant_overlaps_when_a_waiter_dies() {
    assert!(measure("zk-queue-wake-is-grant", Scenario::WaiterDies).windows > 0);
}

#[test]
fn a_watch_before_its_latch_loses_the_wake_up() {
    assert_eq!(measure("zk-queue-watch-before-latch", Scenario::TwoClients).stuck, SEEDS);
    assert_eq!(measure("zk-queue-watch-before-latch", Scenario::CutBetween).stuck, SEEDS);
}

#[test]
fn a_refused_watchdog_notifies_no_client() {
    let m = measure("redisson", Scenario::ClockJump);
    assert!(m.renewals_refused > 0 && m.told == 0);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let designs = recipes::all();
    for design in designs.iter().filter(|d| ["redisson-replicas", "zk-queue"].contains(&d.id())) {
        let run = |seed| stage::run(&**design, Scenario::PrimaryLost, seed, false).expect("no halt");
        let (one, again, other) = (run(1), run(1), run(2));
        assert_eq!((one.fingerprint, &one.measured), (again.fingerprint, &again.measured));
        assert_ne!(one.fingerprint, other.fingerprint);
    }
}
