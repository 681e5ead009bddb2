//! What applying a command costs, in instructions and allocations: `cargo bench -p rowlock-state --bench
//! instructions`.
//!
//! Each node applies every command, so an instruction here counts three times in a cluster of three. No
//! client watches: what events cost is in the coordinator's benches.

#[path = "../../../../lab/instructions/harness.rs"]
mod harness;
mod world;

use std::path::Path;
use std::process::ExitCode;

use harness::{Case, measured};
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, SessionId, Version};
use rowlock_state::command::{Batch, Command};
use world::World;

/// Clients that take turns.
const SESSIONS: usize = 256;
/// Times that each of them does its part.
const ROUNDS: usize = 8;

const CASES: [Case; 25] = [
    case("acquire and release an own lock, 10^3 znodes", || own_locks(SESSIONS, 1_000)),
    case("acquire and release an own lock, 10^5 znodes", || own_locks(SESSIONS, 100_000)),
    on_request("acquire and release an own lock, 10^6 znodes", || own_locks(SESSIONS, 1_000_000)),
    case("acquire and release an own lock, 1 session", || own_locks(1, 1_000)),
    on_request("acquire and release an own lock, 20000 sessions", || own_locks(20_000, 1_000)),
    case("acquire and release any of 10^3 locks", || any_lock(256, 1_000, 20)),
    case("acquire and release any of 10^5 locks", || any_lock(256, 100_000, 20)),
    case("acquire and release any of 10^3 locks of 200 bytes", || any_lock(256, 1_000, 200)),
    case("acquire and release beside 1000 others of a session", || any_lock(1, 1_000, 20)),
    case("acquire an own lock", acquire_only),
    case("release an own lock", release_only),
    case("acquire and release under a snapshot", own_locks_under_a_snapshot),
    case("hand over to the next of 10", || hand_over(10)),
    case("hand over to the next of 1000", || hand_over(1_000)),
    on_request("hand over to the next of 10000", || hand_over(10_000)),
    case("take and leave a place by create and delete", recipe),
    case("create a znode", create),
    case("set a znode", set),
    case("delete a znode", delete),
    case("create a znode under a snapshot", create_under_a_snapshot),
    case("open and close a session", sessions),
    case("read a znode", read),
    case("encode a batch of 64 acquires, each", || encode(64)),
    case("decode a batch of 64 acquires, each", || decode(64)),
    case("decode a batch of 1 acquire", || decode(1)),
];

const fn case(name: &'static str, run: fn() -> u64) -> Case {
    Case { name, run, on_request: false }
}

const fn on_request(name: &'static str, run: fn() -> u64) -> Case {
    Case { name, run, on_request: true }
}

fn main() -> ExitCode {
    let table = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/instructions/state.txt"));
    harness::run("state", &CASES, Path::new(env!("CARGO_TARGET_TMPDIR")), table)
}

/// Cycles of clients that have a lock each, in turn, beside `others` znodes. The locks are there: the first
/// round made them.
fn own_locks(sessions: usize, others: usize) -> u64 {
    let mut world = World::new(sessions, others);
    let rounds = (SESSIONS * ROUNDS).div_ceil(sessions);
    cycles(&mut world, 1, |world, command| world.run(command));
    cycles(&mut world, rounds, |world, command| measured(|| world.run(command)))
}

fn cycles(world: &mut World, rounds: usize, run: impl Fn(&mut World, &world::Sent) -> Response) -> u64 {
    for _ in 0..rounds {
        for n in 0..world.sessions.len() {
            let acquire = world.acquire(n, &world::own_lock(n));
            let claim = world::held(run(world, &acquire));
            let release = world.release(n, claim);
            assert_eq!(run(world, &release), Response::Held(vec![true].into()));
        }
    }
    (rounds * world.sessions.len()) as u64
}

/// Clients take one of many locks, always another one, in one folder, each path so long; then they give them
/// back. One client alone has a lock of its own for each of as many tasks, and all but one are held.
fn any_lock(sessions: usize, locks: usize, path_len: usize) -> u64 {
    let mut world = World::new(sessions, 1_000);
    let folder = format!("/{}", "f".repeat(path_len.saturating_sub(12).max(5)));
    let lock = |n: usize| format!("{folder}/{:010}", n % locks);
    for n in 0..locks {
        let client = n % sessions;
        let acquire = world.acquire(client, &lock(n));
        let claim = world::held(world.run(&acquire));
        if sessions > 1 {
            let release = world.release(client, claim);
            world.run(&release);
        }
    }
    let mut last = None;
    for n in 0..SESSIONS * ROUNDS {
        // A stride of a prime.
        let (client, lock) = (n % sessions, lock(n * 7_919));
        if sessions == 1 {
            let (claim, _) = world.holder(&lock);
            let release = world.release(client, claim);
            last = Some(measured(|| world.run(&release)));
        }
        let acquire = world.acquire(client, &lock);
        let claim = world::held(measured(|| world.run(&acquire)));
        if sessions > 1 {
            let release = world.release(client, claim);
            last = Some(measured(|| world.run(&release)));
        }
    }
    assert_eq!(last, Some(Response::Held(vec![true].into())));
    (SESSIONS * ROUNDS) as u64
}

fn acquire_only() -> u64 {
    half_cycles(|world, acquire| measured(|| world.run(acquire)), |world, release| world.run(release))
}

fn release_only() -> u64 {
    half_cycles(|world, acquire| world.run(acquire), |world, release| measured(|| world.run(release)))
}

fn half_cycles(
    acquire: impl Fn(&mut World, &world::Sent) -> Response,
    release: impl Fn(&mut World, &world::Sent) -> Response,
) -> u64 {
    let mut world = World::new(SESSIONS, 1_000);
    cycles(&mut world, 1, |world, command| world.run(command));
    for _ in 0..ROUNDS {
        let held: Vec<_> = (0..SESSIONS)
            .map(|n| {
                let command = world.acquire(n, &world::own_lock(n));
                world::held(acquire(&mut world, &command))
            })
            .collect();
        for (n, claim) in held.into_iter().enumerate() {
            let command = world.release(n, claim);
            assert_eq!(release(&mut world, &command), Response::Held(vec![true].into()));
        }
    }
    (SESSIONS * ROUNDS) as u64
}

/// Every part of the state that a command touches is shared with a snapshot that was taken just before.
fn own_locks_under_a_snapshot() -> u64 {
    let mut world = World::new(SESSIONS, 100_000);
    cycles(&mut world, 1, |world, command| world.run(command));
    let mut done = 0;
    for _ in 0..4 {
        let frozen = world.machine.freeze();
        done += cycles(&mut world, 1, |world, command| measured(|| world.run(command)));
        drop(frozen);
    }
    done
}

/// One of `queue` clients holds a lock, the others wait. The holder releases, and queues up again.
fn hand_over(queue: usize) -> u64 {
    let mut world = World::new(queue, 1_000);
    let lock = world::own_lock(0);
    for n in 0..queue {
        let acquire = world.acquire(n, &lock);
        world.run(&acquire);
    }
    for round in 0..SESSIONS * ROUNDS {
        let n = round % queue;
        let claim = world.holder(&lock);
        assert_eq!(claim.1, world.sessions[n]);
        let release = world.release(n, claim.0);
        assert_eq!(measured(|| world.run(&release)), Response::Held(vec![true].into()));
        let acquire = world.acquire(n, &lock);
        measured(|| world.run(&acquire));
    }
    (SESSIONS * ROUNDS) as u64
}

/// What a client of ZooKeeper's recipe does, without its reads.
fn recipe() -> u64 {
    let mut world = World::new(SESSIONS, 1_000);
    let rounds = SESSIONS * ROUNDS;
    for round in 0..rounds {
        let n = round % SESSIONS;
        let path = format!("{}/{}", world::own_lock(n), world.prefix());
        let create = world.send(n, create_command(path, CreateMode::EphemeralSequential));
        let Response::PathStat(path, _) = measured(|| world.run(&create)) else { unreachable!("it creates") };
        let delete = world.send(n, Command::Client(Request::Delete { path, version: Version::ANY }));
        measured(|| world.run(&delete));
    }
    rounds as u64
}

fn create_command(path: String, mode: CreateMode) -> Command {
    let create = Create { path, data: Some(world::DATA), acl: Some(Acl::shared_open()), flags: mode.flags() };
    Command::Client(Request::Create2(create))
}

fn create() -> u64 {
    create_in(&mut World::new(1, 10_000))
}

fn create_under_a_snapshot() -> u64 {
    let mut world = World::new(1, 10_000);
    let _frozen = world.machine.freeze();
    create_in(&mut world)
}

fn create_in(world: &mut World) -> u64 {
    for n in 0..2_000 {
        let create = world.send(0, create_command(world::other(n * 3, "new"), CreateMode::Persistent));
        measured(|| world.run(&create));
    }
    2_000
}

fn set() -> u64 {
    let mut world = World::new(1, 10_000);
    for n in 0..2_000 {
        let path = world::other(n * 3, "");
        let set = SetData { path, data: Some(world::DATA), version: Version::ANY };
        let set = world.send(0, Command::Client(Request::SetData(set)));
        measured(|| world.run(&set));
    }
    2_000
}

fn delete() -> u64 {
    let mut world = World::new(1, 10_000);
    for n in 0..2_000 {
        let path = world::other(n * 3, "");
        let delete = world.send(0, Command::Client(Request::Delete { path, version: Version::ANY }));
        measured(|| world.run(&delete));
    }
    2_000
}

fn sessions() -> u64 {
    let mut world = World::new(SESSIONS, 1_000);
    for _ in 0..1_000 {
        let open = world.send_as(SessionId::NONE, world::open_session());
        let session = measured(|| world.open(&open));
        let close = world.send_as(session, Command::Client(Request::CloseSession));
        measured(|| world.run(&close));
    }
    1_000
}

fn read() -> u64 {
    let world = World::new(1, 10_000);
    for n in 0..2_000 {
        let path = world::other(n * 3, "");
        let read = measured(|| world.machine.get_data(&path, &[]));
        assert!(read.is_ok());
    }
    2_000
}

fn batch(commands: usize) -> Batch {
    let mut world = World::new(commands, 0);
    let proposals = (0..commands).map(|n| world.acquire(n, &world::own_lock(n)).proposal).collect();
    Batch { time_ms: 1_700_000_000_000, proposals, ..Batch::default() }
}

fn encode(commands: usize) -> u64 {
    let batch = batch(commands);
    for _ in 0..100 {
        measured(|| batch.encode());
    }
    (100 * commands) as u64
}

fn decode(commands: usize) -> u64 {
    let bytes = batch(commands).encode();
    for _ in 0..100 {
        measured(|| Batch::decode_shared(&bytes).expect("decodes"));
    }
    (100 * commands) as u64
}
