//! Checks that runs reach the rarer client operations, counted by the clients' frames.

use std::collections::BTreeSet;

use rowlock_world::rng::Rng;
use rowlock_world::time::HostId;
use rowlock_world::trace::What;

use super::super::membership::Membership;
use super::super::run::{Plan, run, theme_stream};
use super::super::scenario::Scenario;
use super::super::shape::Shape;
use super::theme::{Operation, Profile, Theme};

/// Runs that must reach all operations together.
const RUNS_MAX: usize = 8;

/// Returns the first seed from `from` on whose run has the property.
fn seed_with(from: u64, is_wanted: impl Fn(&Theme, &[Profile]) -> bool) -> u64 {
    let is_so = |seed: &u64| {
        let mut rng = theme_stream(*seed);
        let theme = Theme::of(&mut rng, Membership::new(&Shape::of(&mut Rng::new(1)), 0));
        let profiles: Vec<Profile> = (0..4).map(|_| Profile::of(&mut rng, &theme, HostId(0))).collect();
        is_wanted(&theme, &profiles)
    };
    (from..).find(is_so).expect("there are many seeds")
}

/// Returns the names of all client frames of a run that keeps every promise.
fn sent(seed: u64, seconds: u64) -> BTreeSet<String> {
    let (scenario, script) = (Scenario::Calm, Some("".parse().expect("a script")));
    let outcome = run(&Plan { seed, seconds, scenario, script, mutant: None, record: true });
    assert_eq!(outcome.violation, None, "seed {seed}");
    let label = |what: What| if let What::Sent { label, .. } = what { Some(label) } else { None };
    outcome.record.into_iter().filter_map(|happening| label(happening.what)).collect()
}

#[test]
fn plain_clients_work_on_lock_znodes_and_rearm_watches() {
    let all =
        |profiles: &[Profile], is: fn(&Profile) -> bool| profiles.iter().filter(|it| is(it)).count() > 1;
    let mut wanted = vec![
        "delete /locks/lock0",
        "create2 /locks/lock0",
        "createContainer /locks/lock0",
        "setData /locks/lock0",
        "create2 /locks/lock0/_c_",
        "multi",
        "convert",
        "sessionOptions",
        "addWatch",
        "removeWatches",
        "setWatches2",
        "event NodeChildrenChanged /data",
    ];
    let (mut seed, mut runs) = (0, 0);
    while !wanted.is_empty() {
        assert!(runs < RUNS_MAX, "{wanted:?}: in none of {runs} runs");
        seed = 1 + seed_with(seed, |theme, profiles| {
            theme.has(Operation::Upgrade)
                && all(profiles, |it| it.sides.queues)
                && all(profiles, |it| it.sides.follows)
        });
        let sent = sent(seed - 1, 10);
        wanted.retain(|wanted| {
            let is_there = |label: &String| match wanted.ends_with("_c_") {
                true => label.contains(wanted),
                false => label.split(", ").any(|label| label == *wanted),
            };
            !sent.iter().any(is_there)
        });
        runs += 1;
    }
}

#[test]
fn floods_of_writes_are_answered_in_order() {
    let seed = seed_with(0, |_, profiles| profiles.iter().filter(|it| it.sides.floods).count() > 1);
    let sent = sent(seed, 8);
    assert!(sent.iter().any(|label| label.contains("setData /flood-")), "seed {seed}: {sent:?}");
}

#[test]
fn the_largest_frames_are_answered_under_the_same_leader() {
    let seed = seed_with(0, |_, profiles| profiles.iter().filter(|it| it.sides.frames).count() > 1);
    let sent = sent(seed, 10);
    assert!(sent.iter().any(|label| label.contains("/frames")), "seed {seed}: {sent:?}");
}

#[test]
fn event_followers_change_nodes_and_page_through_histories() {
    let mut wanted = vec!["/v1/watch?", "after=", "&before=", "event: ", "/v1/queue?", "/v1/locks?"];
    // Starts at the first seed that reaches everything, so that the test is short.
    let (mut seed, mut runs) = (3, 0);
    while !wanted.is_empty() {
        assert!(runs < RUNS_MAX, "{wanted:?}: in none of {runs} runs");
        seed = 1 + seed_with(seed, |_, profiles| profiles.iter().filter(|it| it.sides.events).count() > 1);
        let sent = sent(seed - 1, 4);
        wanted.retain(|wanted| !sent.iter().any(|label| label.contains(wanted)));
        runs += 1;
    }
}

#[test]
fn programs_lock_states_and_operators_end_holds_and_sessions() {
    let mut wanted =
        vec!["LOCK /v1/terraform/prod", "UNLOCK /v1/terraform/prod", "/holders/0", "/holders/", "operate"];
    let (mut seed, mut runs) = (0, 0);
    while !wanted.is_empty() {
        assert!(runs < RUNS_MAX, "{wanted:?}: in none of {runs} runs");
        seed = 1 + seed_with(seed, |theme, profiles| {
            let locks = profiles.iter().filter(|it| it.sides.states).count() > 1;
            locks && theme.has(Operation::End) && theme.has(Operation::Force)
        });
        let sent = sent(seed - 1, 10);
        wanted.retain(|wanted| !sent.iter().any(|label| label.contains(wanted)));
        runs += 1;
    }
}
