//! Whole clusters under one chosen fault.

use std::time::Duration;

use rowlock_coordinator::config::RaftConfig;
use rowlock_env::choice::Choice;
use rowlock_env::rare::Rare;
use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use super::shape::choices_of;
use super::{Outcome, Plan, Scenario, run};

/// Runs a cluster with these faults, and demands that the run keeps every promise.
fn kept(seed: u64, seconds: u64, scenario: Scenario, script: &str) -> Outcome {
    let faults = Some(script.parse().expect("a script"));
    let outcome = run(&Plan { seed, seconds, scenario, script: faults, mutant: None, record: true });
    assert_eq!(outcome.violation, None, "seed {seed}: {script}");
    outcome
}

/// The leader's connections end with its process, and the process does not dial again: no node waits for the
/// timeout of a silent leader.
#[test]
fn a_killed_leader_is_replaced_once_it_fails_to_dial_again() {
    let raft = RaftConfig::default();
    let lease = Duration::from_millis(raft.heartbeat_ms * 5 / 4);
    let killed = Nanos::from_millis(3_000);
    for seed in 1..=3 {
        let outcome = kept(seed, 5, Scenario::Calm, "3s kill leader for 20s");
        let mut terms = outcome.record.iter().filter(|it| matches!(it.what, What::Leads { .. }));
        let next = terms.find(|it| it.at > killed).expect("another node leads");
        let took = next.at - killed;
        assert!(took >= lease && took < lease + Duration::from_millis(100), "seed {seed}: after {took:?}");
    }
}

/// Each flush takes up to 750 ms: a term lasts as long as its votes need.
#[test]
fn slow_disks_replace_a_lost_leader_within_five_terms() {
    for (seed, loss) in [(1, "kill leader for 11s"), (2, "pause leader for 11s"), (3, "kill leader for 11s")]
    {
        let outcome = kept(seed, 16, Scenario::Calm, &format!("2s slow-disk nodes x2500 for 14s\n3s {loss}"));
        let terms = outcome.record.iter().filter_map(|it| match it.what {
            What::Leads { term, .. } if it.at < Nanos::from_millis(13_000) => Some(term),
            _ => None,
        });
        let terms: Vec<u64> = terms.collect();
        assert!(terms.len() > 1 && terms[1] <= terms[0] + 5, "seed {seed}: {terms:?}");
    }
}

/// A new node asks its peers for their state while the leader already sends entries to the node: no data is
/// lost. These seeds of sixty had this order of events.
#[test]
fn a_new_node_that_already_gets_entries_while_it_asks_joins() {
    let script =
        "0s partition node1 | node2 node3 for 1.3s\n1.3s clog node1 -> node2 node3 by 0s..400ms for 4s";
    for seed in [17, 19, 22, 60] {
        kept(seed, 8, Scenario::Calm, script);
    }
}

/// A node of a new cluster asks its peers again after it has begun to take part. Its first acknowledgments
/// may precede the answers of the peers, and then no data is lost (seed 302,944). These seeds of sixty had
/// this order of events.
#[test]
fn a_node_that_acknowledges_entries_while_it_asks_continues() {
    let nodes = "node1 node2 node3";
    for (seed, most) in [(4, 400), (15, 400), (1, 30)] {
        kept(seed, 8, Scenario::Calm, &format!("0s clog {nodes} -> {nodes} by 0s..{most}ms for 4s"));
    }
}

/// A new leader ends a change of voters that an earlier leader abandoned, even while an operator repeats the
/// request twice a second (seed 501,269).
#[test]
fn an_abandoned_change_of_voters_ends_despite_repeated_requests() {
    let script = "16.333s clog client1 -> leader by 124ms..181ms for 1ms\n20.6s add-voter node2\n\
                  20.715s clog leader -> follower1 by 228ms..2.217s for 1.8s";
    kept(501_269, 30, Scenario::All, script);
}

/// The leader adds no voter whose log ends seconds earlier.
#[test]
fn a_learner_that_lags_votes_after_it_has_caught_up() {
    for late in ["slow-disk node4 x12000 for 9s", "isolate node4 for 8s"] {
        let script = format!("3s add-learner node4\n4s {late}\n7s add-voter node4");
        kept(101, 14, Scenario::All, &script);
    }
}

/// Three nodes have the first half of the change when its leader dies.
#[test]
fn the_next_leader_ends_the_change_of_voters_of_a_dead_leader() {
    kept(101, 22, Scenario::All, "3s add-learner node4\n4.5s depose by kill x3 for 15s\n5s add-voter node4");
}

/// Clients of the old cluster keep their beliefs, and all promises hold in the new cluster. The new cluster
/// refuses a node that returns with its old disk.
#[test]
fn restored_and_recovered_clusters_keep_all_promises() {
    let restored = "4s pause client1 for 9s\n5s restore-backup follower1 after 2s for 300ms";
    let recovered = "5s isolate follower1 for 2s\n6s recover follower1 for 1s\n8s add-voter node4";
    for (seed, script) in [(7, restored), (8, restored), (7, recovered), (8, recovered)] {
        kept(seed, 24, Scenario::Life, script);
    }
}

/// One change makes the new node a voter and removes the lost node. The run demands that the members are the
/// requested members, and that all members serve.
#[test]
fn a_lost_node_is_replaced_while_clients_run() {
    for (seed, lost) in [(1, "follower1"), (2, "leader"), (3, "follower2")] {
        let script = format!("3s replace {lost} by node4\n5s isolate leader for 2s");
        let outcome = kept(seed, 12, Scenario::Calm, &script);
        let done = |it: &Happening| matches!(&it.what, What::Note { text, .. } if text.starts_with("done: replace node"));
        assert!(outcome.record.iter().any(done), "seed {seed}: it was not replaced");
    }
}

/// A leader removes itself from the members, and is cut off or loses power before its peers know about the
/// removal. The entry of the removal may be in the log of this leader alone, so the leader must be able to
/// lead again until the peers have the entry (openraft 2091).
#[test]
fn a_leader_that_is_lost_while_it_is_removed_blocks_nothing() {
    for (seed, loss) in [(1, "isolate leader for 3s"), (2, "power-loss leader for 1s")] {
        for after_ms in [4, 9, 14] {
            let script = format!("3s remove leader\n{}ms {loss}", 3_000 + after_ms);
            let (script, scenario) = (Some(script.parse().expect("a script")), Scenario::Calm);
            let plan = Plan { seed, seconds: 9, scenario, script, mutant: None, record: false };
            assert_eq!(run(&plan).violation, None, "{loss}, {after_ms} ms after");
        }
    }
}

/// A node applies entries that are on the disks of its peers before these entries are in its own log. So the
/// last node of a cluster may have less than it has shown to its clients (found by seed 83).
#[test]
fn a_last_node_may_lack_entries_that_it_had_applied() {
    let script = "3.383s recover follower2 for 814ms\n4.74s add-voter node6\n6.022s add-voter node5";
    kept(83, 12, Scenario::Life, script);
}

/// Two nodes of five have lost their data. The first node that returns may vote only after every voter has
/// answered, and the second node answers no client before its removal. The removal came a minute late (seed
/// 22,532).
#[test]
fn two_wiped_nodes_of_five_are_back_soon() {
    kept(22_532, 30, Scenario::Life, "4.69s wipe node5 for 9.581s\n5.43s wipe node3 for 2.093s");
}

/// A node becomes a voter while node 3 is cut off, and loses its data just before node 3 leads. The new
/// leader has never met the old folder and refuses nothing, while its peers refuse the new folder (seed
/// 61,088).
#[test]
fn a_wiped_voter_unknown_to_the_leader_gets_its_log_again() {
    let script = "1s isolate node3 for 2s\n1200ms add-voter node4\n5s wipe node4 for 1500ms\n\
                  5500ms transfer node3";
    let outcome = kept(61_088, 8, Scenario::Calm, script);
    assert_eq!(outcome.stats.rare.of(Rare::WipedTakenOut), 1, "the leader removed and readmitted the node");
    assert!(outcome.stats.rare.of(Rare::WipedPromoted) > 0, "it votes again, as it did before");
}

/// A node becomes a learner while the cluster readmits node 1, which lost its data. The learner hears of the
/// old folder from its peers, and meets the new folder when node 1 leads (seed 60,650).
#[test]
fn a_learner_that_knows_the_leaders_old_folder_serves() {
    let script = "2s wipe node1 for 3s\n4s add-learner node4\n4500ms isolate node4 for 3s\n9s transfer node1";
    for seed in [60_650, 61_088] {
        let outcome = kept(seed, 12, Scenario::Calm, script);
        assert!(outcome.stats.rare.of(Rare::WipedVotesAgain) > 0, "seed {seed}: node 1 can lead");
    }
}

/// The wiped node cannot reach one voter, which knows the old folder only: this voter would refuse the node's
/// connections, and lead without the node. After the partition the voter hears of the new folder, although
/// the node has become a learner meanwhile and asks no more.
#[test]
fn a_wiped_voter_votes_again_once_all_voters_know_its_folder() {
    let script = "1s add-voter node4\n4s partition node4 | follower1 for 16s\n5s wipe node4 for 1s";
    let outcome = kept(60_650, 40, Scenario::Calm, script);
    let rare = &outcome.stats.rare;
    assert_eq!(rare.of(Rare::WipedTakenOut), 1, "it lost its data and comes again");
    let promoted = outcome.rare_since.iter().find(|(branch, _)| *branch == Rare::WipedPromoted);
    let (_, since) = promoted.expect("it votes again");
    assert!(*since >= Nanos::from_millis(20_000), "it votes again while it is cut off: {since}");
}

/// The founder's snapshot was older than its removal: the founder was a voter according to the snapshot, and
/// so did not ask for its vote. The leader that had removed the founder was gone (seed 1,190,010).
#[test]
fn a_wiped_founder_that_gets_an_old_snapshot_asks_for_its_vote() {
    let script = "558ms kill node2 for 1807ms\n2130ms readdress node5 for 6468ms\n2306ms wipe node2 for 377ms\n\
                  6436ms slow-disk leader x200 for 3358ms\n9776ms kill leader for 74ms";
    let outcome = kept(1_190_010, 20, Scenario::Calm, script);
    assert!(outcome.stats.rare.of(Rare::WipedVotesAgain) > 0, "it votes again");
}

/// The second recovery moves the previous folder of the first recovery away, and a voter added in between
/// returns.
#[test]
fn a_last_node_is_recovered_twice() {
    let script = "1s recover node1 for 200ms\n2s add-voter node4\n18s recover node1 for 200ms";
    let outcome = kept(4, 24, Scenario::Life, script);
    let up = |it: &&Happening| matches!(it.what, What::Up { host } if host == HostId(3));
    assert!(outcome.record.iter().filter(up).count() > 1, "node 4 comes back");
}

/// The new cluster answers that a lock of the former cluster is not held (seed 1,170,013).
#[test]
fn a_new_cluster_may_answer_a_question_from_before_its_recovery() {
    kept(1_170_013, 8, Scenario::Life, "5558ms recover leader for 482ms");
}

/// The client waited for the second of two locks, and had a question about the first. Later the client began
/// to use the first lock, although the cluster had revoked the lock (seed 1,120,065).
#[test]
fn an_http_client_gives_up_a_questioned_lock_in_time() {
    let script = "3491ms clog nodes -> node1 by 30ms..200ms for 1050ms\n4191ms pause node1 for 12427ms";
    kept(1_120_065, 16, Scenario::Calm, script);
}

/// A wiped founder returns with the `cluster.toml` of the beginning. Meanwhile an added node leads: the
/// founder learns the address of this leader from its peers (seed 60,543).
#[test]
fn a_wiped_voter_learns_the_address_of_an_unknown_leader() {
    let script = "2s isolate node1 for 9s\n2s wipe node1 for 500ms\n3s add-voter node4\n7s transfer node4";
    let outcome = kept(60_543, 15, Scenario::Calm, script);
    assert!(outcome.stats.rare.of(Rare::WipedVotesAgain) > 0, "it votes again");
}

/// Nodes change their ports in turn, the first node twice: their peers find the nodes after the operator has
/// reported the new addresses.
#[test]
fn nodes_that_move_are_found_again() {
    let script = "3s readdress node1 for 300ms\n7s readdress leader for 1s\n12s readdress node1 for 2s\n\
                  17s readdress follower2 for 300ms\n20s kill follower1 for 1s";
    for seed in 1..=3 {
        kept(seed, 24, Scenario::Calm, script);
    }
}

/// A node that two faults have killed is started once when both end at the same moment (seed 71,319).
#[test]
fn a_node_killed_twice_is_started_once() {
    let script =
        "1s kill node1 for 1s\n1500ms kill node1 for 500ms\n3s kill node2 for 30s\n4s kill node2 for 30s";
    kept(1, 5, Scenario::Calm, script);
}

/// The power goes at one of the first disk operations of a start: the failed operation does not count as a
/// stop without cause (seed 79,145).
#[test]
fn a_power_loss_during_the_start_is_a_cause_to_stop() {
    for operation in [1, 4] {
        let script =
            format!("1s power-loss node2 for 1s\n1500ms power-loss node2 at-operation {operation} for 1s");
        kept(1, 3, Scenario::Calm, &script);
    }
}

/// The power of a follower goes at the moment that the script names, and the restart follows soon, rather
/// than after the time limit of the moment.
#[test]
fn the_power_goes_at_the_scripts_moment_with_a_quick_restart() {
    for moment in ["at-message", "at-flush", "at-operation"] {
        let script = format!("3s power-loss follower1 {moment} 2 for 100ms");
        let outcome = kept(3, 8, Scenario::Calm, &script);
        let mut after = outcome.record.iter().skip_while(|it| it.at < Nanos::from_millis(3_000));
        let down = after.find_map(|it| match it.what {
            What::Down { host, how: "power lost" } => Some((it.at, host)),
            _ => None,
        });
        let (down, node) = down.expect("the power goes");
        let up = after.find(|it| matches!(it.what, What::Up { host } if host == node)).expect("it is back");
        assert!(down < Nanos::from_millis(5_500), "{moment}: at {down}");
        assert_eq!(up.at - down, Duration::from_millis(100), "{moment}");
    }
}

/// A leader that is cut off answers no report of heartbeats. The node reports to the successor at once,
/// although the first report may still wait.
#[test]
fn heartbeats_go_to_a_new_leader_despite_a_silent_old_one() {
    let cut = Nanos::from_millis(3_000);
    for seed in 1..=2 {
        let outcome = kept(seed, 5, Scenario::Calm, "3s isolate leader for 20s");
        let mut later = outcome.record.iter().filter(|it| it.at > cut);
        let elected = later.find_map(|it| match it.what {
            What::Leads { host, .. } => Some((it.at, host)),
            _ => None,
        });
        let (elected, leader) = elected.expect("somebody leads again");
        let is_report =
            |what: &What| matches!(what, What::Sent { to, label, .. } if *to == leader && label == "touches");
        let reported = later.find(|it| is_report(&it.what)).expect("the other node reports");
        let took = reported.at - elected;
        assert!(took < Duration::from_millis(100), "seed {seed}: after {took:?}");
    }
}

/// The followers elect a leader as after a cut, and the old leader rejoins when trust returns: the run
/// demands progress then. A link with two faults recovers when the second fault has ended.
#[test]
fn a_distrusted_leader_is_replaced_and_comes_back() {
    let distrusted = Nanos::from_millis(3_000);
    for seed in 1..=3 {
        let script = "3s distrust leader -> follower1 follower2 for 5s\n4s distrust nodes -> client1 for 1s";
        let outcome = kept(seed, 10, Scenario::Calm, script);
        let leads = |it: &&Happening| matches!(it.what, What::Leads { .. });
        let next = outcome.record.iter().filter(leads).find(|it| it.at > distrusted);
        let next = next.expect("another one leads");
        assert!(next.at - distrusted < Duration::from_secs(3), "seed {seed}: {}", next.at);
    }
}

/// Drops the tasks of sessions repeatedly, while the remaining clients work.
const ENDS: &str = "2s end-runtime client1\n2200ms end-runtime client2\n2400ms end-runtime client3\n\
    2600ms return-from-main client4 for 1s\n4s end-runtime client1\n4200ms return-from-main client2 for 500ms\n\
    4400ms end-runtime client3\n5s end-runtime client4\n6s end-runtime client1\n6s end-runtime client2\n\
    6s return-from-main client3 for 1s";

#[test]
fn no_guard_is_held_after_the_end_of_its_clients_runtime() {
    for seed in 1..=3 {
        kept(seed, 8, Scenario::Calm, ENDS);
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_client_that_hides_the_end_of_its_runtime_is_found() {
    let found = (1..=40).find_map(|seed| {
        let (script, scenario) = (ENDS.parse().expect("a script"), Scenario::Calm);
        let mutant = Some(rowlock_env::mutant::Mutant::StopUnseen.into());
        run(&Plan { seed, seconds: 8, scenario, script: Some(script), mutant, record: false }).violation
    });
    assert!(found.is_some_and(|violation| violation.invariant.starts_with("mutual-exclusion")));
}

/// Another node leads in between. If this is the node with the delayed messages, the run does not count: the
/// node cannot hand over to a leader out of its reach.
#[test]
fn an_unheard_leader_regains_the_lead_from_another_node() {
    let lost = Nanos::from_millis(3_000);
    let mut regained = false;
    for seed in 1..=30 {
        let outcome = kept(seed, 8, Scenario::Calm, "3s regain follower1 after 100ms for 3s");
        let leads = |it: &Happening| match it.what {
            What::Leads { host, .. } => Some((it.at, host)),
            _ => None,
        };
        let all: Vec<(Nanos, HostId)> = outcome.record.iter().filter_map(leads).collect();
        let Some((_, before)) = all.iter().rfind(|(at, _)| *at <= lost) else { continue };
        let after: Vec<HostId> = all.iter().filter(|(at, _)| *at > lost).map(|(_, host)| *host).collect();
        regained = after.len() >= 2 && after[0] != *before && after[1] == *before;
        if regained {
            break;
        }
    }
    assert!(regained, "none of the leaders regained it");
}

#[test]
fn rot_in_the_last_entry_is_found_at_the_start_of_the_node() {
    for seed in 1..=3 {
        let outcome = kept(seed, 8, Scenario::Calm, "3s rot-tail follower1 for 300ms");
        let says =
            |it: &Happening| matches!(&it.what, What::Note { text, .. } if text.contains("had been flushed"));
        assert!(outcome.record.iter().any(says), "seed {seed}");
    }
}

/// All clients reconnect at the same time, repeatedly, also without a leader.
#[test]
fn reconnect_storms_of_all_clients_break_no_promise() {
    let storm = "2s reset nodes -> clients\n3s kill leader for 1s\n3s reset nodes -> clients\n\
                 3200ms reset nodes -> clients\n5s reset nodes -> clients\n5100ms isolate leader for 2s";
    for seed in 1..=2 {
        kept(seed, 10, Scenario::Calm, storm);
    }
}

/// Full disks break no promise and stop no running node. (A node that starts needs room.)
#[test]
fn full_disks_stop_no_node_and_break_no_promise() {
    let scripts = [
        (1, "3s disk-full nodes but 40KiB for 6s"),
        (2, "3s disk-full nodes for 6s"),
        (3, "3s disk-full leader but 40KiB for 6s"),
        (4, "300ms disk-full nodes for 6s"),
    ];
    let mut refused = 0;
    for (seed, script) in scripts {
        let outcome = kept(seed, 12, Scenario::Calm, script);
        let stops =
            |it: &&Happening| matches!(&it.what, What::Note { text, .. } if text.contains("disk is full"));
        assert_eq!(outcome.record.iter().find(stops), None, "seed {seed}: a node stops");
        refused += outcome.stats.rare.of(Rare::GrowthRefusedForRoom);
    }
    assert!(refused > 0, "nothing was refused on full disks");
}

/// The leader's quorum answers heartbeats without waiting for the disk. So flushes of 1 to 3 s on both
/// followers slow down writes but cut off no clients. Without this, each client was cut off every 1.2 s.
#[test]
fn no_node_stops_serving_while_both_followers_flush_slowly() {
    let script = "2s slow-disk follower1 x10000 for 20s\n2s slow-disk follower2 x10000 for 20s";
    for seed in 1..=3 {
        let rare = &kept(seed, 24, Scenario::Calm, script).stats.rare;
        assert_eq!(rare.of(Rare::StoppedServing), 0, "seed {seed}: clients were cut off");
        assert!(rare.of(Rare::HeartbeatBeforeFlush) > 0, "seed {seed}: the disks were slow");
    }
}

/// The disk hangs for 10 to 30 s: the node disconnects its clients while its peers serve, a leader hands
/// over, and no data is lost.
#[test]
fn a_node_with_a_hung_disk_drops_its_clients_and_leadership() {
    for (seed, target) in [(1, "leader"), (2, "follower1")] {
        let script = format!("2s slow-disk {target} x100000 for 20s");
        let rare = &kept(seed, 34, Scenario::Calm, &script).stats.rare;
        assert!(rare.of(Rare::DiskHangs) > 0 && rare.of(Rare::StoppedServing) > 0, "seed {seed}");
        assert_eq!(rare.of(Rare::HandedOverForRoom) > 0, target == "leader", "seed {seed}");
    }
}

/// No workload fills the window of batches to the leader; if the seed enables this choice, the run treats the
/// window as full.
#[test]
fn a_run_takes_exactly_the_choices_of_its_seed() {
    let fills = |seed: &u64| choices_of(*seed).contains(&Choice::ForwardWindowFull);
    for (seed, is_filled) in [((1..).find(fills), true), ((1..).find(|seed| !fills(seed)), false)] {
        let (seed, scenario) = (seed.expect("a quarter of the seeds fills it"), Scenario::Calm);
        let plan = Plan { seed, seconds: 8, scenario, script: None, mutant: None, record: false };
        let outcome = run(&plan);
        assert_eq!(outcome.violation, None, "seed {seed}");
        let rare = &outcome.stats.rare;
        assert_eq!(rare.of_choice(Choice::ForwardWindowFull) > 0, is_filled, "seed {seed}");
        assert_eq!(rare.of(Rare::ForwardWindowFull) > 0, is_filled, "seed {seed}");
    }
}

/// Connections break all the time, and some seeds let clients give up requests after a break. When a guard
/// kept its old belief, a client believed to be the only writer although the log had made the client a
/// reader.
#[test]
fn a_conversion_with_unknown_outcome_ends_the_belief() {
    let slow =
        "0s clog clients -> nodes by 5ms..25ms for 20s\n0s clog nodes -> clients by 5ms..25ms for 20s\n";
    let resets: String =
        (0..60).map(|at| format!("{}ms reset nodes -> clients\n", 3_000 + at * 180)).collect();
    let is_lost = |seed| {
        let rare = &kept(seed, 14, Scenario::Calm, &format!("{slow}{resets}")).stats.rare;
        rare.of(Rare::ConversionUnknown) > 0 && rare.of_choice(Choice::GivenUpSoon) > 0
    };
    assert!((3..40).any(is_lost), "no conversion was under way when its client gave up");
}

/// With round trips of 200 ms the default timers elect no leader, or keep none. Each node logs timers that
/// fit.
#[test]
fn nodes_too_far_apart_for_their_timers_log_fitting_timers() {
    let outcome = kept(1, 32, Scenario::Calm, "0s clog nodes -> nodes by 100ms..101ms for 30s");
    assert!(outcome.stats.rare.of(Rare::SlowLinkTold) > 0, "no node has warned");
}

/// A run with these mutants is no behavior of `sim/model`, so the rules of the model refuse the observed
/// facts.
#[cfg(feature = "mutants")]
#[test]
fn the_rules_of_the_model_refuse_runs_with_session_mutants() {
    use rowlock_env::mutant::Mutant;

    use super::Faults;

    for mutant in [Mutant::ExpireEarly, Mutant::PongByItself, Mutant::DeadlineFromReceipt] {
        let faults = Faults::that_show(mutant);
        let (scenario, mistake) = (faults.scenario(), Some(mutant.into()));
        let plan = |seed| Plan { seed, seconds: 20, scenario, script: None, mutant: mistake, record: false };
        let refused = (0..30).filter_map(|nth| run(&plan(faults.seed(0, nth))).violation);
        assert!(refused.into_iter().any(|it| it.invariant == "session-expiry"), "{mutant}");
    }
}
