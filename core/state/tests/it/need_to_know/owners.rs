//! Owners of deadlock detection belong to users: no request is refused because a stranger uses the same name.

use rowlock_proto::Request;
use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Owner, QueuePosition};
use rowlock_proto::response::Response;
use rowlock_state::command::Command;

use crate::need_to_know::world::{Acquire, Queue, World, acquire};

fn id(scheme: &str, id: &str) -> Id {
    Id { scheme: scheme.to_owned(), id: id.to_owned() }
}

/// Connected from there, and proven to be that user if there is a name.
fn at(address: &str, user: Option<&str>) -> Vec<Id> {
    let user = user.map(|name| id("digest", &format!("{name}:hash")));
    [id("ip", address)].into_iter().chain(user).collect()
}

fn ask(world: &mut World, session: SessionId, who: &[Id], lock: &str, owner: Owner) -> QueuePosition {
    let acquire = Acquire { owner, ..acquire(lock, &format!("{session}-")) };
    match world.run(session, who, Command::Client(Request::Acquire([acquire].into()))) {
        Ok(Response::QueuePositions(mut positions)) => positions.remove(0),
        other => panic!("{other:?}"),
    }
}

/// One session of each holds a lock as the owner 7; then the first one asks for the lock of the second one.
fn is_refused(one: &[Id], other: &[Id]) -> bool {
    let mut world = World::new(Queue::Free, 0);
    let (a, b) = (world.open(), world.open());
    assert!(matches!(ask(&mut world, a, one, "/a", Owner::Named(7)), QueuePosition::Held(_)));
    assert!(matches!(ask(&mut world, b, other, "/b", Owner::Named(7)), QueuePosition::Held(_)));
    matches!(ask(&mut world, a, one, "/b", Owner::Named(7)), QueuePosition::Deadlock(_))
}

#[test]
fn sessions_of_one_user_that_name_one_owner_are_one_owner() {
    let (one, other) = (at("10.0.0.1", Some("u")), at("10.0.0.2", Some("u")));
    assert!(is_refused(&one, &other), "wherever they connect from");
    let unproven = at("10.0.0.1", None);
    assert!(is_refused(&unproven, &unproven), "or of one address, if nothing is proven");
    assert!(is_refused(&[], &[]), "or of nobody in particular");
}

#[test]
fn a_stranger_who_takes_the_name_of_an_owner_is_another_owner() {
    for (one, other) in [
        (at("10.0.0.1", Some("u")), at("10.0.0.1", Some("v"))),
        (at("10.0.0.1", Some("u")), at("10.0.0.1", None)),
        (at("10.0.0.1", None), at("10.0.0.1", Some("u"))),
        (at("10.0.0.1", None), at("10.0.0.2", None)),
    ] {
        assert!(!is_refused(&one, &other), "{one:?} and {other:?}");
    }
}

/// The victim holds /a, the stranger waits for /b, which a third one holds and says to do so under the
/// victim's place. Then the third one asks for /a: a circle only if the victim waits for the stranger.
fn third_is_refused(victim: &str, worker: &str) -> bool {
    let mut world = World::new(Queue::Free, 0);
    let [a, b, c] = [world.open(), world.open(), world.open()];
    let QueuePosition::Held(place) = ask(&mut world, a, &at(victim, None), "/a", Owner::Session) else {
        panic!()
    };
    let third = at("10.0.0.3", None);
    assert!(matches!(ask(&mut world, c, &third, "/b", Owner::Session), QueuePosition::Held(_)));
    let under = Owner::under(&place.path);
    assert!(matches!(ask(&mut world, b, &at(worker, None), "/b", under), QueuePosition::Waiting { .. }));
    matches!(ask(&mut world, c, &third, "/a", Owner::Session), QueuePosition::Deadlock(_))
}

#[test]
fn what_works_under_a_place_comes_from_the_address_of_its_maker() {
    assert!(third_is_refused("10.0.0.1", "10.0.0.1"));
    assert!(!third_is_refused("10.0.0.1", "10.0.0.2"));
}
