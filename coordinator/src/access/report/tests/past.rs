//! Past events of a stream.

use super::*;

#[tokio::test]
async fn stream_from_before_the_first_event_of_a_node_has_no_gap() {
    let mut world = World::new();
    let session = world.open();
    let after = world.machine.last_zxid();
    for lock in [None, Some("/locks/a")] {
        match lock {
            Some(lock) => world.acquire(session, lock, 1, Mode::Exclusive),
            None => drop(world.open()),
        }
        let span = Span { after, last: world.machine.last_zxid() };
        let past = world.reports.since(&world.machine.freeze(), &question::Scope::All, span, &[]).await;
        let events = lock.map_or(0, |_| 2);
        assert_eq!((past.entries.len(), past.missing), (events, None), "{lock:?}");
    }
}
