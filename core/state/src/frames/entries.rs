//! Whole log entries: the commands of an entry share the budget of deadlock searches.

use std::sync::Arc;

use rowlock_frames::create;
use rowlock_proto::Request;
use rowlock_proto::lock::{Acquire, Owner};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, Version};

use super::world::World;
use crate::command::{Batch, Command};
use crate::steps;

/// Makes an owner with a position that asks again and again behind 10,000 other positions.
fn pipelined() -> (u64, usize) {
    let mut world = World::new();
    let named = |lock: &str, prefix: String, owner| {
        let acquire = Acquire { owner: Owner::Named(owner), ..Acquire::exclusive(lock, prefix) };
        Command::Client(Request::Acquire([acquire].into()))
    };
    for at in 0..10_000 {
        world.run(named("/l", format!("{at}-"), at));
    }
    world.run(named("/other", "o-".to_owned(), 77_777));
    let again = (0..400).map(|at| world.proposal(&Arc::default(), named("/l", format!("x{at}-"), 77_777)));
    let proposals = again.collect();
    let batch = Batch { time_ms: 1_000, proposals, ..Batch::default() };
    let batch = Batch::decode(&batch.encode()).unwrap();
    let mut machine = world.machine.clone();
    let (taken, steps) = steps::taken_by(|| {
        assert!(machine.takes(batch.ordinal));
        let apply = |proposal| machine.apply_stamped(batch.stamp(), proposal, &mut ()).result;
        let results: Vec<_> = batch.proposals.iter().map(apply).collect();
        results.iter().filter(|result| matches!(result, Ok(Response::QueuePositions(_)))).count()
    });
    machine.check().unwrap();
    (steps, taken)
}

#[test]
fn pipelined_acquires_share_the_search_budget_of_an_entry() {
    let (steps, all) = pipelined();
    assert_eq!(all, 400);
    assert!(steps < 200_000, "{steps} steps");
}

#[test]
fn a_circle_is_found_after_the_entrys_budget_is_used_up() {
    let mut world = World::new();
    let named = |lock: &str, prefix: &str, owner| {
        let acquire = Acquire { owner: Owner::Named(owner), ..Acquire::exclusive(lock, prefix) };
        Command::Client(Request::Acquire([acquire].into()))
    };
    world.run(named("/a", "a-", 1));
    world.run(named("/b", "b-", 2));
    world.run(named("/b", "w-", 1));
    world.machine.searched = 1_000_000;
    let Response::QueuePositions(positions) = world.run(named("/a", "w-", 2)) else {
        panic!("acquire gives queue positions")
    };
    assert!(
        matches!(&positions[..], [rowlock_proto::lock::QueuePosition::Deadlock(circle)] if circle.len() == 2)
    );
}

#[test]
fn a_delete_finds_a_znode_by_its_path_alone() {
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::Container] {
        let mut world = World::new();
        world.run(Command::Client(Request::Create2(create("/a", mode))));
        for path in ["//a", "///a", "/a/", "//", "a"] {
            let delete = Command::Client(Request::Delete { path: path.to_owned(), version: Version::ANY });
            let proposal = world.proposal(&Arc::default(), delete);
            let result = world.machine.apply(1_000, &proposal, &mut ()).result;
            world.machine.check().unwrap_or_else(|error| panic!("{mode:?} {path}: {error}"));
            assert!(result.is_err(), "{mode:?} {path}: {result:?}");
        }
    }
}
