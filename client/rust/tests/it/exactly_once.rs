//! Exactly-once: connections cut at every frame boundary of what a client does, and what is seen afterwards.
//! Each story is first run without a cut, then again for every request of it and every way to cut there; the
//! client must see the same replies, and the state must be the same.

use std::fmt::Debug;

use bytes::Bytes;
use rowlock_client::{
    Acl, Client, CreateMode, Created, Error, Kept, Outcome, ReleaseError, Transaction, Watched,
};
use rowlock_env::task;
use rowlock_proto::{Request, path};

use crate::fake::{Cut, Fake, Keeper, SHORT};
use crate::served::{LOCK, waiter};

const CUTS: [Cut; 3] = [Cut::Before, Cut::AfterDone, Cut::AfterReply];

/// All znodes below `path` with their data, random ids taken out.
fn tree(world: &Keeper, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    for name in world.children(path) {
        let child = path::join(path, &name);
        let data = world.machine.get_data(&child, &[]).unwrap().0;
        let sequence = &name[name.len().saturating_sub(10)..];
        let shown = if name.starts_with("_c_") { sequence } else { &name };
        all.push(format!("{path}/{shown} {data:?}"));
        all.extend(tree(world, &child));
    }
    all
}

/// Runs `story` without a cut, then cut at each of its requests.
pub async fn same_at_every_cut<T, F>(story: impl Fn(Client) -> F)
where
    T: Debug + PartialEq,
    F: Future<Output = T>,
{
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    client.sync("/").await.unwrap();
    let before = fake.world().log.len();
    let expected = story(client).await;
    let requests = fake.world().log.len() - before;
    let znodes = tree(&fake.world(), "/");
    assert!(requests > 0);
    for at in 0..requests {
        for cut in CUTS {
            let fake = Fake::rowlock().await;
            let client = fake.client().await;
            client.sync("/").await.unwrap();
            fake.world().cut = Some((at, cut));
            let seen = story(client.clone()).await;
            // What a drop left to the background is done behind this, and the last cut as well.
            client.sync("/").await.unwrap();
            assert_eq!(fake.world().cut, None, "request {at} never came");
            assert_eq!(seen, expected, "request {at}, cut {cut:?}");
            assert_eq!(tree(&fake.world(), "/"), znodes, "request {at}, cut {cut:?}");
            fake.world().machine.check().unwrap();
        }
    }
}

#[tokio::test]
async fn an_acquire_and_its_release_cut_at_every_frame_leave_no_ghost_and_see_no_error() {
    same_at_every_cut(async |client: Client| {
        let guard = client.mutex("l").lock().await.unwrap();
        let held = guard.check().await.unwrap();
        let queued = client.get_children(LOCK).await.unwrap().names.len();
        (held, queued, guard.release().await, client.get_children(LOCK).await.unwrap().names.len())
    })
    .await;
}

#[tokio::test]
async fn creates_cut_at_every_frame_make_one_znode_each_with_the_same_reply() {
    same_at_every_cut(async |client: Client| {
        let mut made = Vec::new();
        for mode in
            [CreateMode::Persistent, CreateMode::PersistentSequential, CreateMode::EphemeralSequential]
        {
            let Created { path, stat } =
                client.create("/n", Some(Bytes::new()), mode, Acl::open()).await.unwrap();
            made.push((path, stat.version));
        }
        let again = client.create("/n", None, CreateMode::Persistent, Acl::open()).await;
        (made, again.unwrap_err())
    })
    .await;
}

#[tokio::test]
async fn multis_and_conditional_writes_cut_at_every_frame_take_effect_once() {
    same_at_every_cut(async |client: Client| {
        let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        let transaction = Transaction::new()
            .create("/a", text("1"), CreateMode::Persistent, Acl::open())
            .create("/a/b-", None, CreateMode::PersistentSequential, Acl::open());
        let outcomes = client.commit(transaction).await.unwrap();
        let paths: Vec<_> = outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Outcome::Created(path, _) => path,
                other => panic!("{other:?}"),
            })
            .collect();
        // Done twice, this would be refused for its version the second time.
        let version = client.set("/a", text("2"), Some(rowlock_client::Version(0))).await.unwrap().version;
        let refused =
            client.commit(Transaction::new().delete("/a/b-0000000000", None).delete("/a/none", None)).await;
        client.delete("/a/b-0000000000", None).await.unwrap();
        let read = client.get("/a").await.unwrap().data;
        (paths, version, refused.unwrap_err(), read)
    })
    .await;
}

#[tokio::test]
async fn reads_cut_at_every_frame_are_answered_and_leave_their_watches() {
    same_at_every_cut(async |client: Client| {
        client.create("/w", None, CreateMode::Persistent, Acl::open()).await.unwrap();
        let mut changed = client.get_watched("/w").await.unwrap().watch;
        let mut children = client.get_children_watched("/w").await.unwrap().watch;
        let Watched { value: none, watch: mut created } = client.exists_watched("/w/x").await.unwrap();
        client.set("/w", Some(Bytes::from_static(b"x")), None).await.unwrap();
        client.create("/w/x", None, CreateMode::Ephemeral, Acl::open()).await.unwrap();
        let events = [&mut changed, &mut children, &mut created];
        let mut seen = Vec::new();
        for watch in events {
            let event = watch.changed().await.unwrap();
            seen.push((event.event_type, event.path));
        }
        (none, seen)
    })
    .await;
}

#[tokio::test]
async fn a_read_write_lock_s_conversions_cut_at_every_frame_happen_once() {
    same_at_every_cut(async |client: Client| {
        let lock = client.rwlock("l");
        let writer = lock.write().await.unwrap();
        let token = writer.token();
        let reader = writer.downgrade().await.unwrap();
        assert_eq!(reader.token(), token);
        let writer = reader.try_upgrade().await.unwrap();
        assert!(writer.token() > token && writer.is_held());
        let held = writer.check().await.unwrap();
        (held, client.get_children(LOCK).await.unwrap().names.len(), writer.release().await)
    })
    .await;
}

#[tokio::test]
async fn several_locks_at_once_cut_at_every_frame_are_all_held_or_none() {
    same_at_every_cut(async |client: Client| {
        let guard = client.lock_all(["b", "a", "c"]).await.unwrap();
        let tried = client.multi(["c", "d"]).try_lock().await.unwrap().is_none();
        (guard.is_held(), tried, guard.release().await)
    })
    .await;
}

#[tokio::test]
async fn a_wait_cut_at_every_frame_keeps_its_one_place_and_is_granted() {
    for at in 0..3 {
        for cut in CUTS {
            let fake = Fake::rowlock().await;
            let (holder, client) = (fake.client().await, fake.client().await);
            let guard = holder.mutex("l").lock().await.unwrap();
            client.sync("/").await.unwrap();
            fake.world().cut = Some((at, cut));
            let task = waiter(&fake, &client).await;
            // Further requests, so that every cut comes.
            for _ in 0..at {
                client.sync("/").await.unwrap();
            }
            fake.until("the cut came", |world| world.cut.is_none()).await;
            client.sync("/").await.unwrap();
            assert_eq!(fake.world().contenders(LOCK), 2, "request {at}, cut {cut:?}");
            let behind = waiter(&fake, &fake.client().await).await;
            guard.release().await.unwrap();
            let granted = task.await.unwrap().unwrap();
            assert!(granted.check().await.unwrap() && !behind.is_finished(), "request {at}, cut {cut:?}");
            granted.release().await.unwrap();
            behind.await.unwrap().unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_release_with_lost_reply_then_an_acquire_then_the_retry_leaves_the_newer_lock() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let guard = client.mutex("l").lock().await.unwrap();
    fake.world().cut = Some((0, Cut::AfterDone));
    let release = task::spawn("release", guard.release());
    let newer = client.mutex("l").lock().await.unwrap();
    assert_eq!(release.await.unwrap(), Ok(()));
    client.sync("/").await.unwrap();
    assert!(newer.is_held() && newer.check().await.unwrap());
    assert_eq!(fake.world().contenders(LOCK), 1);
}

#[tokio::test]
async fn a_reconnect_sends_what_is_unanswered_again_in_the_order_of_the_session() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    client.create("/n", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let before = fake.world().log.len();
    fake.world().cut = Some((0, Cut::Before));
    let writes: Vec<_> = (0..100)
        .map(|number: u32| {
            let client = client.clone();
            let data = Bytes::from(number.to_string());
            task::spawn("write", async move { client.set("/n", Some(data), None).await })
        })
        .collect();
    for (number, write) in writes.into_iter().enumerate() {
        assert_eq!(write.await.unwrap().unwrap().version.0, number as i32 + 1);
    }
    let world = fake.world();
    let ids: Vec<u64> = world.log[before..].iter().filter_map(|(_, id, _)| *id).collect();
    let again = ids.iter().position(|id| *id == ids[0]).unwrap();
    assert!(ids[again..].windows(2).all(|pair| pair[0] <= pair[1] || pair[1] == ids[0]), "{ids:?}");
}

#[tokio::test]
async fn writes_the_servers_have_no_room_for_are_tried_again_until_they_have() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    fake.world().throttle = 3;
    let path = client.create("/s-", None, CreateMode::PersistentSequential, Acl::open()).await.unwrap().path;
    assert_eq!(path, "/s-0000000000");
    let guard = client.mutex("l").lock().await.unwrap();
    fake.world().throttle = 1;
    assert_eq!(guard.release().await, Ok(()));
}

#[tokio::test]
async fn no_more_writes_are_open_than_the_servers_keep_outcomes() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    client.create("/n", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    client.sync("/").await.unwrap();
    let writes: Vec<_> = (0..3000)
        .map(|_| {
            let client = client.clone();
            task::spawn("write", async move { client.set("/n", None, None).await })
        })
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    assert_eq!(client.get("/n").await.unwrap().stat.version.0, 3000, "the servers refuse what is too much");
}

#[tokio::test]
async fn what_is_unanswered_when_the_session_ends_has_an_unknown_outcome() {
    let fake = Fake::rowlock().await;
    let client = fake.config().session_timeout(SHORT).connect().await.unwrap();
    let guard = client.mutex("l").lock().await.unwrap();
    fake.silence();
    let (released, created) =
        tokio::join!(guard.release(), client.create("/n", None, CreateMode::Persistent, Acl::open()));
    assert_eq!(released, Err(ReleaseError::Unknown));
    assert_eq!(created.unwrap_err(), Error::ConnectionLoss);
    assert_eq!(client.sync("/").await.unwrap_err(), Error::SessionExpired);
}

/// Loses the connection before the reply to the next request, and moves the session to a plain server.
fn lose_the_reply(fake: &Fake) {
    let mut world = fake.world();
    (world.cut, world.announced) = (Some((0, Cut::AfterDone)), None);
}

#[tokio::test]
async fn a_session_that_moves_to_a_plain_server_waits_by_watches_and_sees_open_outcomes_as_such() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    client.create("/n", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    lose_the_reply(&fake);
    assert_eq!(client.set("/n", None, None).await.unwrap_err(), Error::ConnectionLoss);
    assert!(!client.extensions().await.unwrap().has_locks());
    let guard = client.mutex("l").lock().await.unwrap();
    let session = client.session_id();
    assert_eq!(fake.world().asked(session, |request| matches!(request, Request::Acquire(_))), 0);
    assert!(guard.check().await.unwrap());
    {
        let mut world = fake.world();
        world.drop_connections();
    }
    assert_eq!(guard.release().await, Ok(()));
    assert!(fake.world().children(LOCK).is_empty());
}

#[tokio::test]
async fn a_conversion_with_an_unknown_outcome_leaves_no_hold() {
    let fake = Fake::rowlock().await;
    let writer = fake.client().await.rwlock("l").write().await.unwrap();
    lose_the_reply(&fake);
    let Kept { guard, error } = writer.downgrade().await.unwrap_err();
    assert_eq!((error, guard.is_held()), (Error::ConnectionLoss, false));
    let fake = Fake::rowlock().await;
    let reader = fake.client().await.rwlock("l").read().await.unwrap();
    lose_the_reply(&fake);
    let Kept { guard, error } = reader.try_upgrade().await.unwrap_err();
    assert_eq!((error, guard.is_held()), (Error::ConnectionLoss, false));
}

#[tokio::test]
async fn an_acquire_with_an_unknown_outcome_leaves_the_queue() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    client.sync("/").await.unwrap();
    lose_the_reply(&fake);
    assert_eq!(client.mutex("l").lock().await.unwrap_err(), Error::ConnectionLoss);
    fake.until("the lock is free", |world| world.contenders(LOCK) == 0).await;
}
