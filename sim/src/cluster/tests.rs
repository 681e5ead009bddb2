//! Whole clusters under one chosen fault.

use std::time::Duration;

use rowlock_coordinator::config::RaftConfig;
use rowlock_env::choice::Choice;
use rowlock_env::rare::Rare;
use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use super::shape::choices_of;
use super::{Outcome, Plan, Scenario, run};

/// Runs with these faults, and demands that every promise is kept.
fn kept(seed: u64, seconds: u64, scenario: Scenario, script: &str) -> Outcome {
    let faults = Some(script.parse().expect("a script"));
    let outcome = run(&Plan { seed, seconds, scenario, script: faults, mutant: None, record: true });
    assert_eq!(outcome.violation, None, "seed {seed}: {script}");
    outcome
}

/// The leader's connections end with it, and it does not dial again: no node waits for its silence.
#[test]
fn a_killed_leader_has_a_successor_as_soon_as_it_has_not_dialed_again() {
    let raft = RaftConfig::default();
    let lease = Duration::from_millis(raft.heartbeat_ms * 3 / 2);
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
fn on_slow_disks_a_lost_leader_has_a_successor_within_five_terms() {
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

/// A new node asks the others how they stand while the leader already stores entries with it: that is no lost
/// data. These seeds of sixty met it.
#[test]
fn a_new_node_that_the_leader_finds_while_it_still_asks_comes_in() {
    let script =
        "0s partition node1 | node2 node3 for 1.3s\n1.3s clog node1 -> node2 node3 by 0s..400ms for 4s";
    for seed in [17, 19, 22, 60] {
        kept(seed, 8, Scenario::Calm, script);
    }
}

/// A node of a new cluster asks the others a second time when it takes part already. It may acknowledge its
/// first entries before their answers come, and has not lost them then (seed 302,944). These seeds of sixty
/// met it.
#[test]
fn a_node_that_acknowledges_entries_while_it_asks_who_it_is_goes_on() {
    let nodes = "node1 node2 node3";
    for (seed, most) in [(4, 400), (15, 400), (1, 30)] {
        kept(seed, 8, Scenario::Calm, &format!("0s clog {nodes} -> {nodes} by 0s..{most}ms for 4s"));
    }
}

/// A change of voters that its leader began and gave up is ended, also while an operator asks for it twice a
/// second: the node that answers has other things to do, too (seed 501,269).
#[test]
fn a_change_of_voters_is_ended_while_somebody_asks_for_it_again_and_again() {
    let script = "16.333s clog client1 -> leader by 124ms..181ms for 1ms\n20.6s add-voter node2\n\
                  20.715s clog leader -> follower1 by 228ms..2.217s for 1.8s";
    kept(501_269, 30, Scenario::All, script);
}

/// Clients of the old cluster go on believing what they believe, and all promises hold in the new one. The
/// node that comes back with its old disk is refused.
#[test]
fn a_restored_cluster_and_one_of_a_last_node_keep_all_promises() {
    let restored = "4s pause client1 for 9s\n5s restore-backup follower1 after 2s for 300ms";
    let recovered = "5s isolate follower1 for 2s\n6s recover follower1 for 1s\n8s add-voter node4";
    for (seed, script) in [(7, restored), (8, restored), (7, recovered), (8, recovered)] {
        kept(seed, 24, Scenario::Life, script);
    }
}

/// One change lets the new node vote and takes the lost one out. The run demands that the members are those
/// that the operator asked for, and that all of them serve.
#[test]
fn a_lost_node_is_replaced_while_clients_run() {
    for (seed, lost) in [(1, "follower1"), (2, "leader"), (3, "follower2")] {
        let script = format!("3s replace {lost} by node4\n5s isolate leader for 2s");
        let outcome = kept(seed, 12, Scenario::Calm, &script);
        let done = |it: &Happening| matches!(&it.what, What::Note { text, .. } if text.starts_with("done: put node 4"));
        assert!(outcome.record.iter().any(done), "seed {seed}: it was not replaced");
    }
}

/// A leader takes itself out of the members, and is cut off or loses power before the others know that. The
/// entry that says so may be in its log alone, so it must be able to lead again until they have it (openraft
/// 2091).
#[test]
fn a_leader_that_is_lost_while_it_is_removed_blocks_nothing() {
    for (seed, loss) in [(1, "isolate leader for 3s"), (2, "power-loss leader for 1s")] {
        for after_ms in [4, 9, 14] {
            let script = format!("3s remove leader\n{}ms {loss}", 3_000 + after_ms);
            let (script, scenario) = (Some(script.parse().expect("a script")), Scenario::Members);
            let plan = Plan { seed, seconds: 9, scenario, script, mutant: None, record: false };
            assert_eq!(run(&plan).violation, None, "{loss}, {after_ms} ms after");
        }
    }
}

/// A node applies what others have on their disks before it is in its own log. So the last node of a cluster
/// may have less than it has shown to its clients (found by seed 83).
#[test]
fn a_last_node_may_lack_what_it_had_applied() {
    let script = "3.383s recover follower2 for 814ms\n4.74s add-voter node6\n6.022s add-voter node5";
    kept(83, 12, Scenario::Life, script);
}

/// Two nodes of five have lost their data. The first one that is back may vote only when every voter answers
/// it, and the second one answers no client before it was removed, too: it was, but a minute later (seed
/// 22,532).
#[test]
fn two_nodes_of_five_that_lost_their_data_are_back_soon() {
    kept(22_532, 30, Scenario::Life, "4.69s wipe node5 for 9.581s\n5.43s wipe node3 for 2.093s");
}

/// A node joins and becomes a voter while another one is cut off, and loses its data just before that one
/// leads. The new leader has never met the old folder, so it refuses nothing; the others do (seed 61,088).
#[test]
fn a_wiped_voter_whose_old_folder_the_leader_has_never_met_has_its_log_again() {
    let script = "1s isolate node3 for 2s\n1200ms add-voter node4\n5s wipe node4 for 1500ms\n\
                  5500ms transfer node3";
    let outcome = kept(61_088, 8, Scenario::Members, script);
    assert_eq!(outcome.stats.rare.of(Rare::WipedTakenOut), 1, "it was taken out and in again");
    assert!(outcome.stats.rare.of(Rare::WipedPromoted) > 0, "it votes again, as it did before");
}

/// A node becomes a learner while the cluster takes another one in again that lost its data, and hears of the
/// old folder from the others. It meets the new one when that leads (seed 60,650).
#[test]
fn a_learner_that_knows_the_old_folder_of_the_leader_serves_all_the_same() {
    let script = "2s wipe node1 for 3s\n4s add-learner node4\n4500ms isolate node4 for 3s\n9s transfer node1";
    for seed in [60_650, 61_088] {
        let outcome = kept(seed, 12, Scenario::Members, script);
        assert!(outcome.stats.rare.of(Rare::WipedVotesAgain) > 0, "seed {seed}: node 1 can lead");
    }
}

/// One voter cannot be reached by the wiped node, and knows it by its old folder: it would refuse the node's
/// connections, and lead without it. It hears of the new folder when it is reached again, although the node
/// was a learner at first and does not ask for anything any more.
#[test]
fn a_wiped_voter_votes_again_when_each_voter_knows_its_new_folder_and_not_before() {
    let script = "1s add-voter node4\n4s partition node4 | follower1 for 16s\n5s wipe node4 for 1s";
    let outcome = kept(60_650, 40, Scenario::Members, script);
    let rare = &outcome.stats.rare;
    assert_eq!(rare.of(Rare::WipedTakenOut), 1, "it lost its data and comes again");
    let promoted = outcome.rare_since.iter().find(|(branch, _)| *branch == Rare::WipedPromoted);
    let (_, since) = promoted.expect("it votes again");
    assert!(*since >= Nanos::from_millis(20_000), "it votes again while it is cut off: {since}");
}

/// The snapshot that it got was older than its removal: by that it voted, and asked for no vote any more. The
/// leader that had taken it out was gone (seed 1,190,010).
#[test]
fn a_wiped_founder_that_gets_an_old_snapshot_asks_for_its_vote() {
    let script = "558ms kill node2 for 1807ms\n2130ms readdress node5 for 6468ms\n2306ms wipe node2 for 377ms\n\
                  6436ms slow-disk leader x200 for 3358ms\n9776ms kill leader for 74ms";
    let outcome = kept(1_190_010, 20, Scenario::Members, script);
    assert!(outcome.stats.rare.of(Rare::WipedVotesAgain) > 0, "it votes again");
}

/// The former folder of the first recovery is moved away. And a voter that was added after it comes back.
#[test]
fn a_last_node_is_recovered_twice() {
    let script = "1s recover node1 for 200ms\n2s add-voter node4\n18s recover node1 for 200ms";
    let outcome = kept(4, 24, Scenario::Life, script);
    let up = |it: &&Happening| matches!(it.what, What::Up { host } if host == HostId(3));
    assert!(outcome.record.iter().filter(up).count() > 1, "node 4 comes back");
}

/// Of a lock of the former cluster it says that it is not held (seed 1,170,013).
#[test]
fn a_question_from_before_a_recovery_may_be_answered_by_the_new_cluster() {
    kept(1_170_013, 8, Scenario::Life, "5558ms recover leader for 482ms");
}

/// It asked for two locks, and was asked for the one that it had while it waited for the other one. Later it
/// began to use it, although it had been taken away (seed 1,120,065).
#[test]
fn a_client_by_http_that_was_asked_for_a_lock_gives_it_up_in_time() {
    let script = "3491ms clog nodes -> node1 by 30ms..200ms for 1050ms\n4191ms pause node1 for 12427ms";
    kept(1_120_065, 16, Scenario::Stalls, script);
}

/// A wiped founder comes back with the `cluster.toml` of the beginning. Meanwhile a node has been added, and
/// leads: the founder is told by the others where it is (seed 60,543).
#[test]
fn a_wiped_voter_that_has_no_address_of_the_leader_is_told_it() {
    let script = "2s isolate node1 for 9s\n2s wipe node1 for 500ms\n3s add-voter node4\n7s transfer node4";
    let outcome = kept(60_543, 15, Scenario::Members, script);
    assert!(outcome.stats.rare.of(Rare::WipedVotesAgain) > 0, "it votes again");
}

/// Nodes get another port, one after the other, the first one twice: the others find them there when the
/// operator has said so, and no promise is broken.
#[test]
fn nodes_that_move_are_found_again() {
    let script = "3s readdress node1 for 300ms\n7s readdress leader for 1s\n12s readdress node1 for 2s\n\
                  17s readdress follower2 for 300ms\n20s kill follower1 for 1s";
    for seed in 1..=3 {
        kept(seed, 24, Scenario::Calm, script);
    }
}

/// A call for two locks that gives up takes one place back before the other one, which was granted meanwhile:
/// it waits for neither. The checker said that it did (seed 30,004).
#[test]
fn a_call_for_two_locks_that_gives_up_is_not_said_to_wait() {
    kept(30_004, 8, Scenario::Life, "3.59s disconnect client3");
}

/// A node that two faults have killed is started once when both end at the same moment (seed 71,319).
#[test]
fn who_was_killed_twice_is_started_once() {
    let script =
        "1s kill node1 for 1s\n1500ms kill node1 for 500ms\n3s kill node2 for 30s\n4s kill node2 for 30s";
    kept(1, 5, Scenario::Calm, script);
}

/// The power goes at one of the first disk operations of a start: a node that such an operation fails has not
/// stopped by itself (seed 79,145).
#[test]
fn a_node_whose_power_goes_while_it_starts_has_a_cause_to_stop() {
    for operation in [1, 4] {
        let script =
            format!("1s power-loss node2 for 1s\n1500ms power-loss node2 at-operation {operation} for 1s");
        kept(1, 3, Scenario::Calm, &script);
    }
}

/// The power of a follower goes at the moment that the script names, and the node is restarted soon after it,
/// not at the end of the time in which that moment was awaited.
#[test]
fn the_power_goes_at_the_moment_of_the_script_and_the_node_is_back_soon() {
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

/// A leader that is cut off answers no report of heartbeats. The other node reports to the successor at once,
/// however long the first report might still wait.
#[test]
fn heartbeats_go_to_a_new_leader_before_the_silent_one_is_given_up() {
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

/// The others elect a leader as when it is cut off, and all is well when they believe it again: the run
/// demands progress then. What two faults forbid is allowed when the second has ended.
#[test]
fn a_leader_that_the_others_do_not_believe_is_replaced_and_comes_back() {
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

/// What goes on elsewhere relies on sessions whose tasks are dropped, again and again.
const ENDS: &str = "2s end-runtime client1\n2200ms end-runtime client2\n2400ms end-runtime client3\n\
    2600ms return-from-main client4 for 1s\n4s end-runtime client1\n4200ms return-from-main client2 for 500ms\n\
    4400ms end-runtime client3\n5s end-runtime client4\n6s end-runtime client1\n6s end-runtime client2\n\
    6s return-from-main client3 for 1s";

#[test]
fn nothing_says_held_behind_the_end_of_its_clients_runtime() {
    for seed in 1..=3 {
        kept(seed, 8, Scenario::Calm, ENDS);
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_client_that_keeps_the_end_of_its_runtime_to_itself_is_found() {
    let found = (1..=40).find_map(|seed| {
        let (script, scenario) = (ENDS.parse().expect("a script"), Scenario::Calm);
        let mutant = Some(rowlock_env::mutant::Mutant::StopUnseen);
        run(&Plan { seed, seconds: 8, scenario, script: Some(script), mutant, record: false }).violation
    });
    assert!(found.is_some_and(|violation| violation.invariant.starts_with("mutual-exclusion")));
}

/// Between, another node leads, unless it is the one whose messages come late: that cannot hand over to whom
/// it does not reach.
#[test]
fn a_leader_that_nobody_hears_regains_its_leadership_from_another_node() {
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
fn rot_in_the_last_entry_of_a_log_that_rests_is_found_as_its_node_starts() {
    for seed in 1..=3 {
        let outcome = kept(seed, 8, Scenario::Calm, "3s rot-tail follower1 for 300ms");
        let says =
            |it: &Happening| matches!(&it.what, What::Note { text, .. } if text.contains("had been flushed"));
        assert!(outcome.record.iter().any(says), "seed {seed}");
    }
}

/// All clients come back at once, also while there is no leader, again and again.
#[test]
fn everybody_comes_back_at_once_and_no_promise_is_broken() {
    let storm = "2s reset nodes -> clients\n3s kill leader for 1s\n3s reset nodes -> clients\n\
                 3200ms reset nodes -> clients\n5s reset nodes -> clients\n5100ms isolate leader for 2s";
    for seed in 1..=2 {
        kept(seed, 10, Scenario::Calm, storm);
    }
}

/// The promises hold, and no node that runs stops over it. (One that starts needs room.)
#[test]
fn full_disks_stop_no_node_and_cost_no_promise() {
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

/// The leader's quorum answers its heartbeats without waiting for the disk. So with flushes of 1 to 3 s on
/// both followers writes are slow, and clients stay: they were cut off every 1.2 s.
#[test]
fn no_node_stops_serving_while_both_followers_flush_slowly() {
    let script = "2s slow-disk follower1 x10000 for 20s\n2s slow-disk follower2 x10000 for 20s";
    for seed in 1..=3 {
        let rare = &kept(seed, 24, Scenario::Calm, script).stats.rare;
        assert_eq!(rare.of(Rare::StoppedServing), 0, "seed {seed}: clients were cut off");
        assert!(rare.of(Rare::HeartbeatBeforeFlush) > 0, "seed {seed}: the disks were slow");
    }
}

/// A disk that does not answer for 10 to 30 s: its node lets its clients go while the others go on, a leader
/// hands over, and nothing is lost.
#[test]
fn a_node_whose_disk_does_not_answer_lets_its_clients_go_and_leads_no_longer() {
    for (seed, target) in [(1, "leader"), (2, "follower1")] {
        let script = format!("2s slow-disk {target} x100000 for 20s");
        let rare = &kept(seed, 34, Scenario::Calm, &script).stats.rare;
        assert!(rare.of(Rare::DiskHangs) > 0 && rare.of(Rare::StoppedServing) > 0, "seed {seed}");
        assert_eq!(rare.of(Rare::HandedOverForRoom) > 0, target == "leader", "seed {seed}");
    }
}

/// No workload fills the window of batches to the leader; a run whose seed enables it takes the window for
/// full.
#[test]
fn a_run_takes_the_choices_that_its_seed_enables_and_no_other() {
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

/// Connections break all the time, and the seed lets clients give requests up over that. Where a guard kept
/// its old belief, a client believed to write alone whom the log had made a reader.
#[test]
fn a_conversion_whose_outcome_is_lost_ends_the_belief_in_the_lock() {
    let slow =
        "0s clog clients -> nodes by 5ms..25ms for 20s\n0s clog nodes -> clients by 5ms..25ms for 20s\n";
    let resets: String =
        (0..60).map(|at| format!("{}ms reset nodes -> clients\n", 3_000 + at * 180)).collect();
    let rare = &kept(47, 14, Scenario::Calm, &format!("{slow}{resets}")).stats.rare;
    assert!(rare.of(Rare::ConversionUnknown) > 0 && rare.of_choice(Choice::GivenUpSoon) > 0);
}

/// With round trips of 200 ms the default timers elect no leader, or keep none. Each node says which timers
/// fit.
#[test]
fn nodes_that_are_too_far_apart_for_their_timers_say_which_fit() {
    let outcome = kept(1, 32, Scenario::Calm, "0s clog nodes -> nodes by 100ms..101ms for 30s");
    assert!(outcome.stats.rare.of(Rare::SlowLinkTold) > 0, "no node has warned");
}

/// Such a run is no behavior of `sim/model`: its rules refuse what was seen.
#[cfg(feature = "mutants")]
#[test]
fn the_rules_of_the_model_refuse_runs_with_mistakes_about_sessions() {
    use rowlock_env::mutant::Mutant;
    for mutant in [Mutant::ExpireEarly, Mutant::PongByItself, Mutant::DeadlineFromReceipt] {
        let scenario = Scenario::that_shows(mutant);
        let plan =
            |seed| Plan { seed, seconds: 20, scenario, script: None, mutant: Some(mutant), record: false };
        let refused = (0..30).filter_map(|seed| run(&plan(seed)).violation);
        assert!(refused.into_iter().any(|it| it.invariant == "session-expiry"), "{mutant}");
    }
}
