//! Commands that end much at once: a session with its znodes, a hold, and all overlong holds of a lock. The
//! leader never refuses these commands, so earlier limits bound their work.

use std::sync::Arc;

use rowlock_frames::create;
use rowlock_proto::Request;
use rowlock_proto::lock::{
    ASK_BY_MAX_BYTES, ASK_REASON_MAX_BYTES, Acquire, Ask, Attempt, Claim, Mode, QueuePosition,
};
use rowlock_proto::request::Op;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, SessionId, Version};

use super::tests::{World, state_bytes};
use crate::ASKED_MAX;
use crate::command::{Command, Proof, Proposal, Stamp};
use crate::cost::{COMMAND_STEPS_MAX, END_GRANTS_MAX, EPHEMERALS_MAX, QUEUE_PLACES_MAX};
use crate::steps::{self, LEAVE};

const FULL: Result<(), ErrorCode> = Err(ErrorCode::QuotaExceeded);

fn price(world: &World, command: Command) -> Result<(), ErrorCode> {
    world.price(&Arc::default(), command).map(drop)
}

fn made(path: &str, mode: CreateMode) -> Command {
    Command::Client(Request::Create2(create(path, mode)))
}

/// Applies a command of the session. Asserts that the command takes no more steps than its price, and no more
/// than a command may, beside grants at a session's end.
fn ends(world: &mut World, command: Command) {
    let what = format!("{command:?}");
    let cost = world.price(&Arc::default(), command.clone()).unwrap();
    let (result, steps) = steps::taken_by(|| world.apply(&Arc::default(), command));
    result.unwrap();
    world.machine.check().unwrap();
    println!("{what:.60}: {steps} steps of {}", cost.steps);
    let most = COMMAND_STEPS_MAX + LEAVE * END_GRANTS_MAX as u64;
    assert!(steps <= cost.steps && cost.steps <= most, "{what}: {steps} of {}", cost.steps);
}

/// Creates ephemeral znodes below a znode up to the session's limit.
fn fill(world: &mut World, parent: &str) -> usize {
    for count in 0.. {
        let next = made(&format!("{parent}/{count}"), CreateMode::Ephemeral);
        if price(world, next.clone()).is_err() {
            assert_eq!(price(world, next), FULL);
            return count;
        }
        world.run(next);
    }
    unreachable!("a session's znodes have an end")
}

#[test]
fn one_command_can_delete_all_ephemerals_of_a_session() {
    let mut world = World::new();
    let place = || Command::Client(Request::Acquire([Acquire::exclusive("/lock", "p-")].into()));
    world.run(place());
    assert_eq!(fill(&mut world, ""), EPHEMERALS_MAX - 1);
    assert_eq!(price(&world, place()), Ok(()), "it has this place already");
    assert_eq!(
        price(&world, Command::Client(Request::Acquire([Acquire::exclusive("/lock", "other-")].into()))),
        FULL
    );
    assert_eq!(price(&world, made("/p", CreateMode::Persistent)), Ok(()));
    ends(&mut world, Command::Client(Request::CloseSession));
}

#[test]
fn a_session_has_fewer_ephemerals_if_their_paths_are_deep() {
    let mut world = World::new();
    for levels in 1..=250 {
        world.run(made(&"/a".repeat(levels), CreateMode::Persistent));
    }
    let count = fill(&mut world, &"/a".repeat(250));
    assert!((1_000..EPHEMERALS_MAX).contains(&count), "{count}");
    ends(&mut world, Command::Client(Request::CloseSession));
}

fn reader(prefix: &str) -> Acquire {
    Acquire { mode: Mode::Shared, ..Acquire::exclusive("/l", prefix) }
}

/// Fills a lock's queue with readers of another session that wait for this session's hold. Returns the hold.
fn queue(world: &mut World) -> (SessionId, Claim) {
    let Response::QueuePositions(positions) =
        world.run(Command::Client(Request::Acquire([Acquire::exclusive("/l", "holder-")].into())))
    else {
        panic!("acquire gives queue positions")
    };
    let [QueuePosition::Held(claim)] = &positions[..] else { panic!("{positions:?}") };
    let holder = std::mem::take(&mut world.session);
    world.session = world.open();
    for at in 1..QUEUE_PLACES_MAX - 1 {
        world.run(Command::Client(Request::Acquire([reader(&format!("r{at}-"))].into())));
    }
    world.session = world.open();
    world.run(Command::Client(Request::Acquire([reader("last-")].into())));
    (std::mem::replace(&mut world.session, holder), claim.clone())
}

#[test]
fn a_queue_has_as_many_places_as_one_command_can_grant() {
    let mut world = World::new();
    let (last, claim) = queue(&mut world);
    assert_eq!(price(&world, Command::Client(Request::Acquire([reader("new-")].into()))), FULL);
    let plain = |name: &str| made(&format!("/l/{name}"), CreateMode::EphemeralSequential);
    assert_eq!(price(&world, plain("x-__READ__-")), FULL);
    let many = Op::Create(create("/m/x-__READ__-", CreateMode::EphemeralSequential));
    assert_eq!(price(&world, Command::Client(Request::Multi(vec![many; 10_000]))), Ok(()));
    assert_eq!(price(&world, plain("x-lock-")), Ok(()), "an exclusive place is granted alone");
    let holder = std::mem::replace(&mut world.session, last);
    assert_eq!(
        price(&world, Command::Client(Request::Acquire([reader("last-")].into()))),
        Ok(()),
        "it has this place already"
    );
    world.session = holder;
    let before = world.machine.clone();
    let gone = |path: &str| Command::Client(Request::Delete { path: path.to_owned(), version: Version::ANY });
    for command in [
        Command::Client(Request::Release([claim.clone()].into())),
        Command::Client(Request::ForceRelease(claim.clone())),
        Command::Client(Request::Abandon(vec![Attempt {
            lock: "/l".to_owned(),
            prefix: "holder-".to_owned(),
        }])),
        gone(&claim.path),
        Command::Client(Request::Multi(vec![Op::Delete {
            path: claim.path.to_string(),
            version: Version::ANY,
        }])),
    ] {
        world.machine = before.clone();
        ends(&mut world, command);
        assert_eq!(world.machine.counts().lock_waiters, 0);
    }
}

#[test]
fn overlong_holds_end_within_the_steps_of_one_command() {
    let mut world = World::new();
    for at in 0..QUEUE_PLACES_MAX / 2 {
        world.run(Command::Client(Request::Acquire(
            [Acquire { max_hold_ms: 1, ..reader(&format!("h{at}-")) }].into(),
        )));
    }
    world.run(Command::Client(Request::Acquire([Acquire::exclusive("/l", "writer-")].into())));
    for at in 1..QUEUE_PLACES_MAX / 2 {
        world.run(Command::Client(Request::Acquire([reader(&format!("r{at}-"))].into())));
    }
    let (_, price) = ends_due(&mut world, "/l");
    assert_eq!(world.machine.counts().lock_holders, 1, "the writer's");
    assert!(price <= COMMAND_STEPS_MAX);
}

/// Applies `LockDue` at its price. Returns the steps taken, and the price.
fn ends_due(world: &mut World, lock: &str) -> (u64, u64) {
    let command = Command::LockDue { lock: lock.to_owned() };
    let proposal = Proposal { session: SessionId::NONE, ..world.proposal(&Arc::default(), command) };
    let cost = world.machine.price(&proposal).expect("what is due is never refused");
    let stamp = Stamp { time_ms: 1_000_000, ..Stamp::default() };
    let (result, steps) = steps::taken_by(|| world.machine.apply_stamped(stamp, &proposal, &mut ()).result);
    result.unwrap();
    world.machine.check().unwrap();
    println!("{lock:.20}: {steps} steps of {}", cost.steps);
    assert!(steps <= cost.steps, "{steps} of {}", cost.steps);
    (steps, cost.steps)
}

#[test]
fn overlong_holds_of_a_deep_queue_end_within_one_command() {
    let mut world = World::new();
    let lock = "/a".repeat(240);
    for levels in 1..=240 {
        world.run(made(&"/a".repeat(levels), CreateMode::Persistent));
    }
    let hold = |at: usize| {
        Command::Client(Request::Acquire(
            [Acquire {
                mode: Mode::Shared,
                max_hold_ms: 1,
                ..Acquire::exclusive(lock.clone(), format!("h{at}-"))
            }]
            .into(),
        ))
    };
    let mut count = 0;
    // Two sessions, to stay within the limit of a session's znodes.
    while price(&world, hold(count)).is_ok() {
        world.run(hold(count));
        count += 1;
        if count == 1_500 {
            world.session = world.open();
        }
    }
    assert_eq!(price(&world, hold(count)), FULL);
    assert!((2_000..QUEUE_PLACES_MAX).contains(&count), "{count}");
    let (_, price) = ends_due(&mut world, &lock);
    assert_eq!(world.machine.counts().lock_holders, 0);
    // In addition: the lookup of the lock itself.
    assert!(price <= COMMAND_STEPS_MAX + 5_000, "{price}");
}

#[test]
fn a_queue_of_long_names_has_fewer_places_and_ends_at_its_price() {
    let mut world = World::new();
    let hold = |name: usize, at: usize| {
        Command::Client(Request::Acquire(
            [Acquire { max_hold_ms: 1, ..reader(&format!("{at:n>name$}")) }].into(),
        ))
    };
    let mut count = 0;
    // Short names come last, to use up the limit left by long names.
    for name in [4_000, 1] {
        while price(&world, hold(name, count)).is_ok() {
            world.run(hold(name, count));
            count += 1;
            if count % 5_000 == 0 {
                world.session = world.open();
            }
        }
        assert_eq!(price(&world, hold(name, count)), FULL);
        assert!(name == 1 || count < QUEUE_PLACES_MAX * 4 / 5, "{count}");
    }
    let (_, price) = ends_due(&mut world, "/l");
    assert_eq!(world.machine.counts().lock_holders, 0);
    assert!(price <= 2 * COMMAND_STEPS_MAX, "{price}");
}

/// Makes a session that holds three locks, with `readers` waiting readers for each.
fn holder_of_three(readers: usize) -> World {
    let mut world = World::new();
    let locks = ["/l/1", "/l/2", "/l/3"];
    world.run(Command::Client(Request::Acquire(
        locks.map(|lock| Acquire::exclusive(lock, "holder-")).into_iter().collect(),
    )));
    let holder = world.session;
    for lock in locks {
        world.session = world.open();
        for at in 0..readers {
            let reader = Acquire { mode: Mode::Shared, ..Acquire::exclusive(lock, format!("r{at}-")) };
            world.run(Command::Client(Request::Acquire([reader].into())));
        }
    }
    world.session = holder;
    world
}

#[test]
fn a_sessions_end_leaves_excess_grants_to_further_commands() {
    let readers = END_GRANTS_MAX * 3 / 4;
    let mut world = holder_of_three(readers);
    ends(&mut world, Command::Client(Request::CloseSession));
    let counts = world.machine.counts();
    assert_eq!((counts.lock_holders, counts.lock_waiters), (readers as u64, 2 * readers as u64));
    let due = |world: &World| world.machine.locks_due(1_000_000).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(due(&world), ["/l/2", "/l/3"], "the leader learns of them");
    // A newcomer does not overtake waiters.
    world.session = world.open();
    world.run(Command::Client(Request::Acquire([Acquire::exclusive("/l/2", "new-")].into())));
    assert_eq!(world.machine.counts().lock_holders, readers as u64);
    for lock in due(&world) {
        ends_due(&mut world, &lock);
    }
    assert!(due(&world).is_empty());
    let counts = world.machine.counts();
    assert_eq!((counts.lock_holders, counts.lock_waiters), (3 * readers as u64, 1));
}

#[test]
fn the_end_of_a_session_grants_all_where_that_is_little() {
    let mut world = holder_of_three(100);
    ends(&mut world, Command::Client(Request::CloseSession));
    assert_eq!(world.machine.counts().lock_waiters, 0);
}

#[test]
fn the_end_of_a_holder_is_priced_with_the_grants_that_follow() {
    let price_with = |readers: usize| {
        let world = holder_of_three(readers);
        world.price(&Arc::default(), Command::Client(Request::CloseSession)).unwrap().steps
    };
    assert_eq!(price_with(100) - price_with(0), 300 * LEAVE);
}

#[test]
fn a_question_reaches_the_first_holders_within_its_price() {
    let mut world = World::new();
    for at in 0..2 * ASKED_MAX {
        world.run(Command::Client(Request::Acquire([reader(&format!("r{at}-"))].into())));
    }
    let (reason, by) = ("r".repeat(ASK_REASON_MAX_BYTES), "b".repeat(ASK_BY_MAX_BYTES));
    let command = Command::Client(Request::Ask(Ask { lock: "/l".to_owned(), reason, by, within_ms: 1_000 }));
    let proposal = world.proposal(&Arc::default(), command);
    let cost = world.machine.price(&proposal).unwrap();
    let before = state_bytes(&world.machine);
    let stamp = Stamp { time_ms: 1_000, ..Stamp::default() };
    let (result, steps) = steps::taken_by(|| world.machine.apply_stamped(stamp, &proposal, &mut ()).result);
    assert_eq!(result, Ok(Response::Number(ASKED_MAX as i32)));
    world.machine.check().unwrap();
    let grown = state_bytes(&world.machine).saturating_sub(before);
    assert!(steps <= cost.steps && grown as u64 <= cost.bytes, "{steps} steps, {grown} bytes of {cost:?}");
    assert!(cost.steps <= COMMAND_STEPS_MAX);
    ends_due(&mut world, "/l");
    assert_eq!(world.machine.counts().lock_holders, ASKED_MAX as u64);
}

#[test]
fn a_session_that_opens_is_at_its_price() {
    let mut world = World::new();
    let command = Command::OpenSession { proof: Proof::of(&[1; 16]), timeout_ms: 1_000 };
    let proposal = Proposal { session: SessionId::NONE, ..world.proposal(&Arc::default(), command) };
    let cost = world.machine.price(&proposal).unwrap();
    let before = state_bytes(&world.machine);
    let (_, steps) = steps::taken_by(|| world.machine.apply(1_000, &proposal, &mut ()).result.unwrap());
    let grown = state_bytes(&world.machine) - before;
    assert!(steps <= cost.steps && grown as u64 <= cost.bytes, "{steps} steps, {grown} bytes of {cost:?}");
}
