//! The guarantee need-to-know: what an answer about a lock may say, to whom. A session that may not read a
//! lock gets the same answer whatever the lock's queue is like, so it learns nothing of it.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod owners;
mod world;

use rowlock_proto::Request;
use rowlock_proto::acl::perms;
use rowlock_proto::lock::{Ask, Mode, Owner, Party, QueuePosition};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId};
use rowlock_state::command::Command;
use world::{LOCK, Queue, World, acquire, claim};

/// What the stranger, who has no rights on the lock, is answered in each of the worlds.
fn without_rights(command: impl Fn(&World) -> Command) -> Result<Response, ErrorCode> {
    let answers = [Queue::Free, Queue::HeldFirst, Queue::HeldSecond, Queue::Delayed].map(|queue| {
        let mut world = World::new(queue, 0);
        let command = command(&world);
        (queue, world.ask(command))
    });
    for (queue, answer) in &answers {
        assert_eq!(*answer, answers[0].1, "{queue:?} is told apart from {:?}", answers[0].0);
    }
    answers[0].1.clone()
}

/// One test per operation: refused alike whatever the queue is like, also when it is sent again with a
/// number.
macro_rules! refused_alike {
    ($($name:ident: $command:expr;)*) => { $(
        #[test]
        fn $name() {
            let plain: fn(&World) -> Command = $command;
            assert_eq!(without_rights(plain), Err(ErrorCode::NoAuth));
            let tagged = |world: &World| {
                Command::Tagged { id: 1, acked: 0, command: Box::new(plain(world)) }
            };
            assert_eq!(without_rights(tagged), Err(ErrorCode::NoAuth));
        }
    )* };
}

refused_alike! {
    an_acquire_that_does_not_wait_tells_a_stranger_nothing: |_| {
        Command::Client(Request::Acquire([world::Acquire { wait: false, ..acquire(LOCK, "s-") }].into()))
    };
    an_acquire_that_waits_tells_a_stranger_nothing: |_| Command::Client(Request::Acquire([acquire(LOCK, "s-")].into()));
    an_acquire_of_several_locks_tells_a_stranger_nothing: |_| {
        Command::Client(Request::Acquire(vec![acquire("/open", "s-"), world::Acquire { wait: false, ..acquire(LOCK, "s-") }].into()))
    };
    an_acquire_below_a_private_lock_tells_a_stranger_nothing: |_| {
        Command::Client(Request::Acquire([acquire("/private/none", "s-")].into()))
    };
    an_acquire_of_permits_tells_a_stranger_nothing: |_| {
        Command::Client(Request::Acquire([world::Acquire { mode: Mode::Permits(1), limit: 9, ..acquire(LOCK, "s-") }].into()))
    };
    an_acquire_by_the_victims_owner_tells_a_stranger_nothing: |_| {
        Command::Client(Request::Acquire([world::Acquire { owner: Owner::Named(7), ..acquire(LOCK, "s-") }].into()))
    };
    a_forced_release_tells_a_stranger_nothing: |world| {
        Command::Client(Request::ForceRelease(claim(&world.first, world.first_token)))
    };
    a_forced_release_with_a_wrong_token_tells_a_stranger_nothing: |world| {
        Command::Client(Request::ForceRelease(claim(&world.first, 1)))
    };
    a_forced_end_of_a_delay_tells_a_stranger_nothing: |_| Command::Client(Request::ForceRelease(claim(LOCK, 0)));
}

#[test]
fn a_question_reveals_no_more_than_the_askers_rights() {
    let ask = |within_ms| {
        Command::Client(Request::Ask(Ask {
            lock: LOCK.to_owned(),
            reason: "r".to_owned(),
            by: String::new(),
            within_ms,
        }))
    };
    for within_ms in [0, 1_000] {
        assert_eq!(without_rights(|_| ask(within_ms)), Err(ErrorCode::NoAuth));
    }
    let mut world = World::new(Queue::HeldFirst, perms::CREATE);
    assert_eq!(world.ask(ask(1_000)), Err(ErrorCode::NoAuth), "it may not end a hold");
    assert_eq!(world.ask(ask(0)), Ok(Response::Number(1)));
    let mut world = World::new(Queue::HeldFirst, perms::CREATE | perms::DELETE);
    assert_eq!(world.ask(ask(1_000)), Ok(Response::Number(1)));
}

#[test]
fn release_convert_and_abandon_tell_a_stranger_nothing() {
    let of = |world: &World| claim(&world.first, world.first_token);
    let released = without_rights(|world| Command::Client(Request::Release([of(world)].into())));
    assert_eq!(released, Ok(Response::Held(vec![false].into())));
    let converted = without_rights(|world| {
        Command::Client(Request::Convert { claim: of(world), mode: Mode::Shared, prefix: "s-".to_owned() })
    });
    assert_eq!(converted, Ok(Response::QueuePositions(vec![QueuePosition::Absent].into())));
    let attempt = rowlock_proto::lock::Attempt { lock: LOCK.to_owned(), prefix: "a-".to_owned() };
    assert_eq!(
        without_rights(|_| Command::Client(Request::Abandon(vec![attempt.clone()]))),
        Ok(Response::Empty)
    );
}

/// That a znode is there a plain client is told too, by `exists`: refused if it is, NoNode if it is not.
#[test]
fn verify_tells_a_stranger_no_more_than_exists_does() {
    for (queue, expected) in [
        (Queue::Free, Ok(Response::Held(vec![false].into()))),
        (Queue::HeldFirst, Err(ErrorCode::NoAuth)),
        (Queue::HeldSecond, Err(ErrorCode::NoAuth)),
    ] {
        let mut world = World::new(queue, 0);
        for token in [world.first_token, 1] {
            let verify = Command::Client(Request::Verify([claim(&world.first, token)].into()));
            assert_eq!(world.ask(verify), expected, "{queue:?}, token {token}");
        }
        let exists = world.machine.exists(&world.first, &world::stranger());
        assert_eq!(exists.is_err_and(|code| code == ErrorCode::NoAuth), expected.is_err());
    }
    let mut world = World::new(Queue::HeldFirst, perms::READ);
    let verify = Command::Client(Request::Verify([claim(&world.first, world.first_token)].into()));
    assert_eq!(world.ask(verify), Ok(Response::Held(vec![true].into())), "who may read may know");
}

#[test]
fn whoever_made_a_place_may_verify_it_without_reading_it() {
    let mut world = World::new(Queue::Free, perms::CREATE);
    let mine = world.ask(Command::Client(Request::Acquire([acquire(LOCK, "s-")].into()))).unwrap();
    let Response::QueuePositions(positions) = mine else { panic!("{mine:?}") };
    let QueuePosition::Held(claim) = &positions[0] else { panic!("{positions:?}") };
    assert_eq!(
        world.ask(Command::Client(Request::Verify([claim.clone()].into()))),
        Ok(Response::Held(vec![true].into()))
    );
}

#[test]
fn create_without_read_reveals_only_the_wait() {
    let mut world = World::new(Queue::HeldSecond, perms::CREATE);
    let busy = world.ask(Command::Client(Request::Acquire(
        [world::Acquire { wait: false, ..acquire(LOCK, "s-") }].into(),
    )));
    assert_eq!(
        busy,
        Ok(Response::QueuePositions(vec![QueuePosition::Busy { ahead: 1, holder: None }].into()))
    );
    for _ in 0..2 {
        // The second time it is told where it stands now.
        let waiting = Command::Client(Request::Acquire([acquire(LOCK, "s-")].into()));
        let again = Command::Tagged { id: 1, acked: 0, command: Box::new(waiting) };
        let Ok(Response::QueuePositions(positions)) = world.ask(again) else { panic!("it may wait") };
        assert!(
            matches!(positions[0], QueuePosition::Waiting { ahead: 1, holder: None, .. }),
            "{positions:?}"
        );
    }
    for (permits, limit) in [(9, 0), (1, 8)] {
        let many = world::Acquire { mode: Mode::Permits(permits), limit, ..acquire("/semaphore", "s-") };
        assert_eq!(
            world.ask(Command::Client(Request::Acquire([many].into()))),
            Err(ErrorCode::NoAuth),
            "the limit is data"
        );
    }
}

#[test]
fn who_may_read_the_lock_but_not_the_place_learns_its_name() {
    let mut world = World::new(Queue::HeldFirst, perms::CREATE | perms::READ);
    world.hide_places();
    let Ok(Response::QueuePositions(positions)) =
        world.ask(Command::Client(Request::Acquire([acquire(LOCK, "s-")].into())))
    else {
        panic!("it may wait")
    };
    let QueuePosition::Waiting { ahead: 2, holder: Some(holder), .. } = &positions[0] else {
        panic!("{positions:?}")
    };
    let (session, token) = (SessionId::NONE, FencingToken(0));
    let expected =
        Party { path: (*world.first).into(), session, token, label: Default::default(), since_ms: 0 };
    assert_eq!(*holder, expected);
}

#[test]
fn who_may_read_lock_and_place_is_told_who_holds() {
    let mut world = World::new(Queue::HeldFirst, perms::CREATE | perms::READ);
    let busy = world.ask(Command::Client(Request::Acquire(
        [world::Acquire { wait: false, ..acquire(LOCK, "s-") }].into(),
    )));
    let Ok(Response::QueuePositions(positions)) = busy else { panic!("{busy:?}") };
    let QueuePosition::Busy { ahead: 2, holder: Some(holder) } = &positions[0] else {
        panic!("{positions:?}")
    };
    assert_eq!((holder.token.0, &holder.label[..]), (world.first_token, &b"secret"[..]));
    assert_eq!(holder.session, world.victim);
}

/// The circle is a fact that the one who asked has to know, but not who else is part of it.
#[test]
fn a_circle_does_not_name_what_its_reader_may_not_read() {
    let mut world = World::new(Queue::HeldFirst, perms::CREATE);
    let own = |lock: &str| world::Acquire { owner: Owner::Session, ..acquire(lock, "s-") };
    world.ask(Command::Client(Request::Acquire([own("/open")].into()))).unwrap();
    world.wait_as_victim("/open");
    let Ok(Response::QueuePositions(positions)) =
        world.ask(Command::Client(Request::Acquire([own(LOCK)].into())))
    else {
        panic!()
    };
    let QueuePosition::Deadlock(circle) = &positions[0] else { panic!("{positions:?}") };
    assert_eq!((&*circle[0].path, circle[0].session), ("", SessionId::NONE));
    assert_eq!((circle[0].token, circle[0].label.len()), (FencingToken(0), 0));
    assert!(circle[1].path.starts_with("/open/s-"), "its own place is told: {circle:?}");
}
