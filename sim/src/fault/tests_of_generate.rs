//! Properties of generated scripts, over many seeds.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_world::time::Nanos;

use super::*;

fn ground(nodes: usize) -> Ground {
    Ground {
        nodes,
        learners: 0,
        least_voters: None,
        clients: 4,
        begin: Nanos::from_millis(2_000),
        quiet: Nanos::from_millis(60_000),
    }
}

#[test]
fn a_seed_has_one_script_that_survives_its_text_form() {
    for seed in 0..300 {
        let script = generate(seed, &ground(3), &Mix::all());
        assert_eq!(script, generate(seed, &ground(3), &Mix::all()));
        assert_eq!(script.to_string().parse(), Ok(script));
    }
}

#[test]
fn faults_end_before_the_quiet_and_few_begin_early() {
    let mut founding: BTreeMap<Kind, u32> = BTreeMap::new();
    for seed in 0..500 {
        let script = generate(seed, &ground(3), &Mix::all());
        for step in script.steps() {
            if step.at < ground(3).begin {
                *founding.entry(step.fault.kind()).or_default() += 1;
            }
            assert!(step.ends().unwrap_or(step.at) <= ground(3).quiet, "seed {seed}: {step}");
        }
    }
    assert!(founding.keys().copied().eq([Kind::Clog, Kind::Kill]), "{founding:?}");
    assert!(founding.values().all(|seeds| (30..100).contains(seeds)), "{founding:?}");
}

#[test]
fn floods_of_all_kinds_come_one_after_another() {
    let (mut seen, mut slow): (BTreeMap<Torrent, u32>, u32) = Default::default();
    for seed in 0..100 {
        let script = generate(seed, &ground(3), &Mix::floods());
        let mut ebbs_at = Nanos(0);
        for step in script.steps() {
            let Fault::Flood { torrent, connections, .. } = step.fault else { continue };
            assert!(step.at >= ebbs_at && (1..=100).contains(&connections), "seed {seed}: {step}");
            ebbs_at = step.ends().expect("floods end");
            *seen.entry(torrent).or_default() += 1;
        }
        slow += u32::from(script.steps().iter().any(|step| step.fault.kind() == Kind::SlowProcessor));
    }
    assert!(Torrent::ALL.iter().all(|torrent| seen[torrent] > 30), "{seen:?}");
    assert!(slow > 90, "{slow}");
}

#[test]
fn every_kind_appears_and_each_seed_has_some_of_them_only() {
    let mut seen: BTreeMap<Kind, u32> = BTreeMap::new();
    let mut distinct = BTreeSet::new();
    for seed in 0..400 {
        let kinds: BTreeSet<Kind> =
            generate(seed, &ground(5), &Mix::all()).steps().iter().map(|step| step.fault.kind()).collect();
        assert!(kinds.len() < Kind::ALL.len(), "seed {seed} has everything");
        kinds.iter().for_each(|kind| *seen.entry(*kind).or_default() += 1);
        distinct.insert(kinds);
    }
    assert_eq!(
        seen.len(),
        Kind::ALL.len() - 4,
        "all but new choices, what is put back, and new clusters: {seen:?}"
    );
    assert!(seen.values().all(|n| *n > 20), "{seen:?}");
    assert!(distinct.len() > 300);
}

#[test]
fn new_clusters_open_sessions_before_the_next_fault() {
    let mut begun: BTreeMap<Kind, u32> = BTreeMap::new();
    for seed in 0..400 {
        let script = generate(seed, &ground(3), &Mix::life());
        let is_new = |step: &&Step| matches!(step.fault, Fault::RestoreBackup { .. } | Fault::Recover { .. });
        let mut free = ground(3).begin;
        for step in script.steps().iter().filter(is_new) {
            assert!(step.at >= free && step.ends().unwrap() <= ground(3).quiet, "seed {seed}: {script}");
            free = step.ends().unwrap();
            *begun.entry(step.fault.kind()).or_default() += 1;
        }
        let for_good =
            |step: &Step| step.ends().is_none() && !matches!(step.fault.targets()[..], [Target::Client(_)]);
        assert!(free == ground(3).begin || !script.steps().iter().any(for_good), "seed {seed}: {script}");
    }
    assert!(begun.values().all(|n| *n > 200) && begun.len() == 2, "{begun:?}");
}

#[test]
fn a_majority_of_every_membership_keeps_its_disks() {
    let mut lost_at_all = 0;
    for nodes in [1, 3, 5] {
        for seed in 0..1_000 {
            let script = generate(seed, &ground(nodes), &Mix::all());
            let (gone, memberships) = outcome_of(nodes, &script);
            lost_at_all += gone.len();
            for voters in memberships {
                let lost = gone.iter().filter(|node| node.is_none_or(|node| voters.contains(&node))).count();
                assert!(
                    lost * 2 < voters.len(),
                    "{nodes} nodes, seed {seed}: {voters:?} without {gone:?}\n{script}"
                );
            }
        }
    }
    assert!(lost_at_all > 300, "only {lost_at_all} nodes were lost");
}

#[test]
fn flushes_fail_on_one_node_at_a_time() {
    for seed in 0..500 {
        let script = generate(seed, &ground(3), &Mix::only(&[Kind::SyncFailure]));
        let mut free = Nanos(0);
        for step in script.steps().iter().filter(|step| step.fault.kind() == Kind::SyncFailure) {
            assert!(step.at >= free, "seed {seed}: {script}");
            free = step.ends().unwrap();
        }
    }
}

#[test]
fn over_budget_scripts_take_more_than_a_minority_and_say_so() {
    let mix = Mix::only(&[Kind::BitRot, Kind::LoseDisk]).over_budget();
    let script = generate(1, &ground(3), &mix.at_pace(Pace::PerMinute(20)));
    assert!(script.is_over_budget());
    assert!(outcome_of(3, &script).0.len() >= 2, "{script}");
}

#[test]
fn a_calm_mix_has_no_faults() {
    assert_eq!(generate(1, &ground(3), &Mix::calm()), Script::default());
}

/// Returns the nodes that are gone or have a damaged disk at the end (`None`: a node named by its role), and
/// all memberships that may have been in force.
fn outcome_of(nodes: usize, script: &Script) -> (Vec<Option<usize>>, Vec<BTreeSet<usize>>) {
    let mut gone: Vec<Option<usize>> = Vec::new();
    let mut memberships: Vec<BTreeSet<usize>> = vec![(1..=nodes).collect()];
    for step in script.steps() {
        let mut voters = memberships.last().unwrap().clone();
        let target = match &step.fault {
            Fault::LoseDisk { target } | Fault::BitRot { target, .. } => Some(target),
            Fault::Kill { target, down: Down::ForGood }
            | Fault::PowerLoss { target, down: Down::ForGood, .. }
            | Fault::SyncFailure { target, down: Down::ForGood } => Some(target),
            Fault::AddVoter { node } => {
                assert!(voters.insert(*node));
                memberships.push(voters);
                None
            }
            Fault::Replace { target, node } => {
                let Target::Node(lost) = target else { panic!("by role: {script}") };
                voters.insert(*node);
                memberships.push(voters.clone());
                voters.remove(lost);
                memberships.push(voters);
                Some(target)
            }
            Fault::Remove { target: Target::Node(node) } => {
                voters.remove(node);
                memberships.push(voters);
                None
            }
            _ => None,
        };
        match target {
            Some(Target::Node(node)) if !gone.contains(&Some(*node)) => gone.push(Some(*node)),
            Some(Target::Leader | Target::Follower(_)) => gone.push(None),
            Some(Target::AllNodes) => panic!("all for good: {script}"),
            _ => {}
        }
    }
    (gone, memberships)
}
