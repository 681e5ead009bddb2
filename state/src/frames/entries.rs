//! Whole log entries: those of older versions are applied as they were, and what searches for deadlocks is
//! shared.

use std::sync::Arc;

use rowlock_frames::create;
use rowlock_proto::lock::{Acquire, Owner};
use rowlock_proto::request::{Create, Op};
use rowlock_proto::{CreateMode, ErrorCode, Version};

use super::world::World;
use crate::command::{Batch, Command, Ordinal, Rules};
use crate::outcome::Outcome;
use crate::steps;

/// Entries as the log has them: of version 3, which has no numbers, and of the version 4 that shared no
/// searches.
fn older(batch: &Batch) -> [Vec<u8>; 2] {
    assert_eq!((batch.ordinal, batch.rules), (Ordinal::default(), Rules::First));
    let newest = batch.encode().to_vec();
    let [4, flags, 0, 0, body @ ..] = &newest[..] else { panic!("not version 4: {newest:?}") };
    [[&[3, *flags], body].concat(), newest]
}

#[test]
fn dear_entries_of_older_versions_replay_as_they_were_applied() {
    let world = World::new();
    let (deep, long) = ("/a".repeat(2_000), format!("/{}", "n".repeat(10_000)));
    let commands = [
        Command::Acquire(vec![Acquire::exclusive(deep.clone(), "p-")]),
        Command::Create { create: create(&long, CreateMode::Persistent), ttl_ms: None },
        Command::Multi(vec![Op::Create(Create { flags: 3, ..create("/e", CreateMode::Persistent) }); 100]),
    ];
    for command in &commands[..2] {
        let price = world.price(&Arc::default(), command.clone());
        assert_eq!(price, Err(ErrorCode::BadArguments), "it may not enter the log any more");
    }
    let proposals = commands.map(|command| world.proposal(&Arc::default(), command)).to_vec();
    let batch = Batch { time_ms: 1_000, rules: Rules::First, proposals, ..Batch::default() };
    let mut digests = Vec::new();
    for bytes in older(&batch) {
        let batch = Batch::decode(&bytes).unwrap();
        let mut machine = world.machine.clone();
        assert!(machine.takes(batch.ordinal));
        for proposal in &batch.proposals {
            machine.apply_stamped(batch.stamp(), proposal, &mut ()).result.unwrap();
        }
        machine.check().unwrap();
        assert!(machine.lock_queue(&deep).is_some() && machine.exists(&long, &[]).is_ok());
        digests.push(machine.digest());
    }
    assert_eq!(digests[0], digests[1]);
}

/// An owner that has a place, and comes again and again behind 10,000 others.
fn pipelined(rules: Rules) -> (u64, usize) {
    let mut world = World::new();
    let named = |lock: &str, prefix: String, owner| {
        let acquire = Acquire { owner: Owner::Named(owner), ..Acquire::exclusive(lock, prefix) };
        Command::Acquire(vec![acquire])
    };
    for at in 0..10_000 {
        world.run(named("/l", format!("{at}-"), at));
    }
    world.run(named("/other", "o-".to_owned(), 77_777));
    let again = (0..400).map(|at| world.proposal(&Arc::default(), named("/l", format!("x{at}-"), 77_777)));
    let proposals = again.collect();
    let batch = Batch { time_ms: 1_000, rules, proposals, ..Batch::default() };
    let batch = Batch::decode(&batch.encode()).unwrap();
    let mut machine = world.machine.clone();
    let (taken, steps) = steps::taken_by(|| {
        assert!(machine.takes(batch.ordinal));
        let apply = |proposal| machine.apply_stamped(batch.stamp(), proposal, &mut ()).result;
        let results: Vec<_> = batch.proposals.iter().map(apply).collect();
        results.iter().filter(|result| matches!(result, Ok(Outcome::PlaceStates(_)))).count()
    });
    machine.check().unwrap();
    (steps, taken)
}

#[test]
fn pipelined_acquires_behind_many_waiters_share_what_they_may_search() {
    let (alone, all) = pipelined(Rules::First);
    assert_eq!(all, 400);
    assert!(alone > 400 * 10_000, "so it was: {alone} steps");
    let (shared, all) = pipelined(Rules::Second);
    assert_eq!(all, 400);
    assert!(shared < 200_000, "{shared} steps");
    println!("400 acquires behind 10,000 waiters: {alone} steps before, {shared} now");
}

#[test]
fn a_circle_is_found_behind_a_search_that_has_used_up_the_entrys_share() {
    let mut world = World::new();
    let named = |lock: &str, prefix: &str, owner| {
        let acquire = Acquire { owner: Owner::Named(owner), ..Acquire::exclusive(lock, prefix) };
        Command::Acquire(vec![acquire])
    };
    world.run(named("/a", "a-", 1));
    world.run(named("/b", "b-", 2));
    world.run(named("/b", "w-", 1));
    world.machine.searched = 1_000_000;
    let Outcome::PlaceStates(place_states) = world.run(named("/a", "w-", 2)) else {
        panic!("acquire gives place states")
    };
    assert!(
        matches!(&place_states[..], [rowlock_proto::lock::PlaceState::Deadlock(circle)] if circle.len() == 2)
    );
}

#[test]
fn a_delete_finds_a_znode_by_its_path_alone() {
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::Container] {
        let mut world = World::new();
        world.run(Command::Create { create: create("/a", mode), ttl_ms: None });
        for path in ["//a", "///a", "/a/", "//", "a"] {
            let delete = Command::Delete { path: path.to_owned(), version: Version::ANY };
            let proposal = world.proposal(&Arc::default(), delete);
            for rules in [Rules::First, Rules::Second] {
                let mut machine = world.machine.clone();
                let stamp = Batch { rules, ..Batch::default() }.stamp();
                let result = machine.apply_stamped(stamp, &proposal, &mut ()).result;
                machine.check().unwrap_or_else(|error| panic!("{mode:?} {path} {rules:?}: {error}"));
                // So old entries had it.
                let was_found = rules == Rules::First && path == "//a";
                assert_eq!(result.is_ok(), was_found, "{mode:?} {path} {rules:?}: {result:?}");
            }
        }
    }
}
