//! Read-write locks, semaphores and several locks at once: the same stories on a Rowlock and on a plain
//! ZooKeeper.

use std::time::Duration;

use rowlock_client::{
    Acl, Client, CreateMode, Error, ErrorCode, Kept, LostReason, Owner, QueueNames, ReleaseError,
};
use rowlock_env::task::{self, Task};
use rowlock_proto::Request;

use crate::fake::Fake;

const LOCK: &str = "/locks/l";

/// How many stand in the queue of a lock, as any client sees it.
async fn queue(client: &Client, lock: &str) -> usize {
    client.get_children(lock).await.map_or(0, |children| children.names.len())
}

/// Starts something, and returns once the queue has become one longer.
async fn start<T: Send + 'static>(
    client: &Client,
    lock: &str,
    what: impl Future<Output = T> + Send + 'static,
) -> Task<T> {
    let before = queue(client, lock).await;
    let task = task::spawn("waiter", what);
    while queue(client, lock).await == before {
        tokio::task::yield_now().await;
    }
    task
}

macro_rules! on_both {
    ($($(#[$meta:meta])* async fn $name:ident($fake:ident) $body:block)*) => {
        mod on_rowlock {
            use super::*;
            $($(#[$meta])* #[tokio::test] async fn $name() {
                let $fake = Fake::rowlock().await;
                $body
            })*
        }
        mod on_plain_zookeeper {
            use super::*;
            $($(#[$meta])* #[tokio::test] async fn $name() {
                let $fake = Fake::start().await;
                $body
            })*
        }
    };
}

on_both! {
    async fn readers_behind_a_writer_are_granted_together_and_a_later_writer_waits_for_all(fake) {
        let (client, others) = (fake.client().await, fake.client().await);
        let lock = client.rwlock("l");
        let writer = lock.write().await.unwrap();
        let mut readers = Vec::new();
        for _ in 0..3 {
            let lock = others.rwlock("l");
            readers.push(start(&client, LOCK, async move { lock.read().await }).await);
        }
        let last = others.rwlock("l");
        let last = start(&client, LOCK, async move { last.write().await }).await;
        let late = others.rwlock("l");
        let late = start(&client, LOCK, async move { late.read().await }).await;
        assert!(readers.iter().all(|reader| !reader.is_finished()));
        let token = writer.token();
        writer.release().await.unwrap();
        let mut held = Vec::new();
        for reader in readers {
            let reader = reader.await.unwrap().unwrap();
            assert!(reader.token() > token && reader.is_held());
            held.push(reader);
        }
        assert!(!last.is_finished() && !late.is_finished(), "a reader overtook the writer before it");
        for reader in held {
            assert!(!last.is_finished(), "a writer beside a reader");
            reader.release().await.unwrap();
        }
        last.await.unwrap().unwrap().release().await.unwrap();
        late.await.unwrap().unwrap().release().await.unwrap();
    }

    async fn a_busy_read_write_lock_is_no_error_of_a_try(fake) {
        let client = fake.client().await;
        let lock = client.rwlock("l");
        let reader = lock.try_read().await.unwrap().unwrap();
        let second = lock.try_read().await.unwrap().unwrap();
        assert!(lock.try_write().await.unwrap().is_none());
        reader.release().await.unwrap();
        second.release().await.unwrap();
        let _writer = lock.try_write().await.unwrap().unwrap();
        assert!(lock.try_read().await.unwrap().is_none());
        let patience = Duration::from_millis(700);
        assert!(matches!(lock.read_timeout(patience).await, Err(Error::Timeout { position: Some(1), .. })));
        while queue(&client, LOCK).await > 1 {
            tokio::task::yield_now().await;
        }
    }

    async fn a_downgrade_lets_waiting_readers_in_and_no_writer(fake) {
        let client = fake.client().await;
        let lock = client.rwlock("l");
        let writer = lock.write().await.unwrap();
        let other = lock.clone();
        let reader = start(&client, LOCK, async move { other.read().await }).await;
        let downgraded = writer.downgrade().await.unwrap();
        let reader = reader.await.unwrap().unwrap();
        let other = lock.clone();
        let waiting = start(&client, LOCK, async move { other.write().await }).await;
        assert!(downgraded.check().await.unwrap() && reader.is_held() && !waiting.is_finished());
        downgraded.release().await.unwrap();
        reader.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }

    async fn of_two_readers_none_is_upgraded_and_a_single_one_is(fake) {
        let client = fake.client().await;
        let lock = client.rwlock("l");
        let (one, two) = (lock.read().await.unwrap(), lock.read().await.unwrap());
        let Kept { guard: one, error } = one.try_upgrade().await.unwrap_err();
        assert_eq!(error, Error::Busy);
        assert!(one.is_held() && queue(&client, LOCK).await == 2);
        two.release().await.unwrap();
        let token = one.token();
        let loss = one.loss();
        let writer = one.try_upgrade().await.unwrap();
        assert!(writer.token() > token && writer.check().await.unwrap());
        assert_eq!((loss.reason(), queue(&client, LOCK).await), (Some(LostReason::Released), 1));
        assert!(lock.try_read().await.unwrap().is_none());
        assert_eq!(writer.release().await, Ok(()));
    }

    async fn a_shared_request_of_a_mutex_is_a_reader(fake) {
        let client = fake.client().await;
        let one = client.mutex("l").request().shared().lock().await.unwrap();
        let two = client.rwlock("l").try_read().await.unwrap().unwrap();
        assert!(client.mutex("l").try_lock().await.unwrap().is_none());
        one.release().await.unwrap();
        two.release().await.unwrap();
        assert!(client.mutex("l").try_lock().await.unwrap().is_some());
    }

    async fn permits_are_handed_out_in_order_and_many_are_not_overtaken_by_few(fake) {
        let client = fake.client().await;
        let semaphore = client.semaphore("l", 3);
        assert_eq!(semaphore.available().await.unwrap(), 3);
        let (one, two) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
        assert_eq!((one.count(), semaphore.available().await.unwrap()), (1, 1));
        let other = semaphore.clone();
        let many = start(&client, LOCK, async move { other.acquire_many(3).await }).await;
        assert!(semaphore.try_acquire().await.unwrap().is_none(), "it would fit, but somebody waits");
        let other = semaphore.clone();
        let few = start(&client, LOCK, async move { other.acquire().await }).await;
        one.release().await.unwrap();
        assert!(!many.is_finished());
        two.release().await.unwrap();
        let many = many.await.unwrap().unwrap();
        assert_eq!((many.count(), semaphore.available().await.unwrap()), (3, 0));
        assert!(!few.is_finished());
        many.release().await.unwrap();
        few.await.unwrap().unwrap().release().await.unwrap();
    }

    async fn clients_that_disagree_on_the_permits_are_told_how_many_there_are(fake) {
        let client = fake.client().await;
        let _held = client.semaphore("l", 2).acquire().await.unwrap();
        let conflict = Error::LimitConflict { actual: 2 };
        assert_eq!(client.semaphore("l", 5).acquire().await.unwrap_err(), conflict);
        assert_eq!(client.semaphore("l", 2).acquire_many(3).await.unwrap_err(), conflict);
        assert!(client.semaphore("l", 0).try_acquire().await.unwrap().is_some(), "whatever it has");
        assert!(matches!(client.semaphore("l", 2).acquire_many(0).await, Err(Error::InvalidArgument(_))));
    }

    async fn a_limit_within_other_data_is_none_to_clients_and_servers(fake) {
        let client = fake.client().await;
        for (path, data) in [("/locks", ""), (LOCK, "a note\npermits=3")] {
            client.create(path, Some(data.into()), CreateMode::Persistent, Acl::open()).await.unwrap();
        }
        let nobody_has_said = Error::LimitConflict { actual: 0 };
        assert_eq!(client.semaphore("l", 0).try_acquire().await.unwrap_err(), nobody_has_said);
        let refused = client.semaphore("l", 3).try_acquire().await.unwrap_err();
        let bad = Error::Rejected(ErrorCode::BadArguments);
        assert!(refused == nobody_has_said || refused == bad, "{refused}: the znode is something else's");
    }

    async fn a_resize_lets_waiters_in(fake) {
        let client = fake.client().await;
        let mut semaphore = client.semaphore("l", 1);
        let held = semaphore.acquire().await.unwrap();
        let other = semaphore.clone();
        let waiting = start(&client, LOCK, async move { other.acquire().await }).await;
        semaphore.resize(2).await.unwrap();
        let second = waiting.await.unwrap().unwrap();
        assert!(held.is_held() && second.is_held());
        assert_eq!(semaphore.available().await.unwrap(), 0);
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        let missing = client.semaphore("nobody", 1).resize(2).await.unwrap_err();
        assert_eq!(missing, Error::Rejected(ErrorCode::NoNode));
    }

    async fn several_locks_are_all_held_or_none(fake) {
        let client = fake.client().await;
        let all = client.lock_all(["b", "a"]).await.unwrap();
        assert!(all.guards()[0].path().starts_with("/locks/b/") && all.is_held());
        assert!(client.multi(["c", "a"]).try_lock().await.unwrap().is_none());
        assert_eq!(queue(&client, "/locks/c").await, 0, "nothing is left behind");
        let patience = Duration::from_millis(700);
        let error = client.multi(["c", "a"]).lock_timeout(patience).await.unwrap_err();
        assert!(matches!(error, Error::Timeout { position: Some(1), .. }), "{error}");
        while queue(&client, "/locks/c").await + queue(&client, "/locks/a").await > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(all.release().await, Ok(()));
        assert_eq!(queue(&client, "/locks/a").await + queue(&client, "/locks/b").await, 0);
        assert!(matches!(client.lock_all(["a", "a"]).await, Err(Error::InvalidName(_))));
        assert!(matches!(client.lock_all([""; 0]).await, Err(Error::InvalidName(_))));
    }

    async fn several_locks_in_opposite_orders_never_wait_for_each_other(fake) {
        let clients = [fake.client().await, fake.client().await, fake.client().await];
        let rounds = clients.map(|client| {
            task::spawn("rounds", async move {
                for round in 0..30 {
                    let names = if round % 2 == 0 { ["a", "b", "c"] } else { ["c", "b", "a"] };
                    client.lock_all(names).await.unwrap().release().await.unwrap();
                }
            })
        });
        for round in rounds {
            round.await.unwrap();
        }
    }

    async fn several_locks_one_of_which_is_lost_are_lost(fake) {
        let client = fake.client().await;
        let all = client.lock_all(["a", "b"]).await.unwrap();
        let other = fake.client().await;
        other.delete(all.guards()[1].path(), None).await.unwrap();
        assert_eq!(all.lost().await, LostReason::Deleted);
        assert_eq!(all.release().await, Err(ReleaseError::NotHeld));
        assert_eq!(queue(&client, "/locks/a").await, 0);
    }

    async fn kazoo_s_names_are_used_on_request(fake) {
        let client = fake.config().queue_names(QueueNames::Kazoo).connect().await.unwrap();
        let guard = client.mutex("l").lock().await.unwrap();
        assert!(guard.path().ends_with("__lock__0000000000"), "{}", guard.path());
        guard.release().await.unwrap();
        let reader = client.rwlock("l").read().await.unwrap();
        assert!(reader.path().contains("__rlock__"));
    }

    async fn a_guard_gives_up_at_its_maximum_hold_on_every_server(fake) {
        let client = fake.client().await;
        let guard = client.mutex("l").request().max_hold(Duration::from_millis(60)).lock().await.unwrap();
        let next = client.mutex("l").lock().await.unwrap();
        assert_eq!(guard.lost().await, LostReason::MaxHold);
        assert!(next.is_held());
    }

    async fn forcing_a_release_takes_the_very_token(fake) {
        let (client, admin) = (fake.client().await, fake.client().await);
        let guard = client.mutex("l").lock().await.unwrap();
        let mut stale = guard.claim();
        stale.token.0 += 1;
        assert_eq!(admin.force_release(&stale).await, Ok(false));
        assert_eq!(admin.force_release(&guard.claim()).await, Ok(true));
        assert!(matches!(guard.lost().await, LostReason::ForceReleased | LostReason::Deleted));
        assert_eq!(guard.check().await, Ok(false));
    }

    async fn a_lock_survives_lost_connections_while_it_is_held_and_checked(fake) {
        let client = fake.client().await;
        let guard = client.mutex("l").lock().await.unwrap();
        for _ in 0..5 {
            fake.world().drop_connections();
            assert_eq!(guard.check().await, Ok(true));
        }
        assert_eq!(guard.release().await, Ok(()));
    }

    async fn a_queue_of_one_session_is_served_in_order_by_many_tasks(fake) {
        let client = fake.client().await;
        let guard = client.mutex("l").lock().await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..20 {
            let mutex = client.mutex("l");
            waiting.push(start(&client, LOCK, async move { mutex.lock().await }).await);
        }
        let mut token = guard.token();
        guard.release().await.unwrap();
        for waiter in waiting {
            let guard = waiter.await.unwrap().unwrap();
            assert!(guard.token() > token);
            token = guard.token();
            guard.release().await.unwrap();
        }
    }

    async fn many_tasks_may_ask_before_the_server_has_said_what_it_understands(fake) {
        let client = fake.client().await;
        let tasks: Vec<_> = (0..50)
            .map(|number| {
                let mutex = client.mutex(format!("l{number}"));
                task::spawn("early", async move { mutex.lock().await })
            })
            .collect();
        for task in tasks {
            assert!(task.await.unwrap().unwrap().is_held());
        }
    }

    async fn trying_a_busy_lock_is_no_error_and_leaves_nothing_behind(fake) {
        let (holder, client) = (fake.client().await, fake.client().await);
        let guard = holder.mutex("l").try_lock().await.unwrap().unwrap();
        assert!(client.mutex("l").try_lock().await.unwrap().is_none());
        assert_eq!(queue(&client, LOCK).await, 1);
        let abandons = |request: &Request| matches!(request, Request::Abandon(_));
        assert_eq!(fake.world().asked(client.session_id(), abandons), 0);
        guard.release().await.unwrap();
        assert!(client.mutex("l").try_lock().await.unwrap().is_some());
    }

    async fn the_znode_of_an_old_session_is_not_taken_for_ours(fake) {
        let old = fake.client().await;
        let _still_listed = old.mutex("l").lock().await.unwrap();
        let new = old.renew().await.unwrap();
        assert_ne!(new.session_id(), old.session_id());
        let mutex = new.mutex("l");
        assert!(mutex.try_lock().await.unwrap().is_none());
        let task = start(&new, LOCK, async move { mutex.lock().await }).await;
        assert!(!task.is_finished());
        fake.expire(&old);
        assert!(task.await.unwrap().unwrap().check().await.unwrap());
    }

    async fn grants_follow_the_queue_and_each_release_wakes_exactly_the_successor(fake) {
        let holder = fake.client().await;
        let mut guard = holder.mutex("l").lock().await.unwrap();
        let mut waiters = Vec::new();
        for _ in 0..12 {
            let client = fake.client().await;
            let mutex = client.mutex("l");
            waiters.push((start(&holder, LOCK, async move { mutex.lock().await }).await, client));
        }
        for (position, (task, client)) in waiters.into_iter().enumerate() {
            assert!(!task.is_finished(), "waiter {position} was granted too early");
            let token = guard.token();
            guard.release().await.unwrap();
            guard = task.await.unwrap().unwrap();
            assert!(guard.token() > token, "tokens must rise");
            assert_eq!((guard.wait_stats().position, guard.wait_stats().wakeups), (position + 1, 1));
            assert!(fake.world().events.get(&client.session_id()).is_none_or(|events| *events == 1));
        }
    }

    async fn a_closed_client_has_lost_its_locks_and_acquires_no_more(fake) {
        let client = fake.client().await;
        let (guard, other) = (client.mutex("l").lock().await.unwrap(), client.clone());
        client.close().await.unwrap();
        assert_eq!(guard.lost().await, LostReason::Closed);
        assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
        assert_eq!(other.mutex("l").lock().await.unwrap_err(), Error::Closed);
        assert_eq!(other.mutex("l").try_lock().await.unwrap_err(), Error::Closed);
        assert_eq!(other.rwlock("l").read().await.unwrap_err(), Error::Closed);
        assert_eq!(other.close().await, Ok(()));
        assert!(fake.world().children(LOCK).is_empty());
    }

    async fn a_waiter_whose_own_session_expires_gets_an_error_and_never_the_lock(fake) {
        let (holder, client) = (fake.client().await, fake.client().await);
        let (guard, mutex) = (holder.mutex("l").lock().await.unwrap(), client.mutex("l"));
        let task = start(&holder, LOCK, async move { mutex.lock().await }).await;
        fake.expire(&client);
        assert_eq!(task.await.unwrap().unwrap_err(), Error::SessionExpired);
        assert_eq!(queue(&holder, LOCK).await, 1);
        drop(guard);
        assert_eq!(client.mutex("l").lock().await.unwrap_err(), Error::SessionExpired);
    }

    async fn a_hold_that_was_taken_away_while_cut_off_is_lost_after_the_reconnect(fake) {
        let client = fake.client().await;
        let (guard, kept) = (client.mutex("l").lock().await.unwrap(), client.mutex("k").lock().await.unwrap());
        {
            let mut world = fake.world();
            world.drop_connections();
            world.delete(guard.path()).unwrap();
        }
        assert_eq!(guard.lost().await, LostReason::Deleted);
        assert!(kept.is_held());
        assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
        kept.release().await.unwrap();
    }

    async fn an_expired_session_and_a_deleted_znode_are_told_apart(fake) {
        let (one, two) = (fake.client().await, fake.client().await);
        let expired = one.mutex("a").lock().await.unwrap();
        let deleted = two.mutex("b").lock().await.unwrap();
        fake.expire(&one);
        assert_eq!(expired.lost().await, LostReason::Expired);
        let loss = deleted.loss();
        let watching = task::spawn("watching", async move { loss.wait().await });
        fake.world().delete(deleted.path()).unwrap();
        assert!(deleted.is_held(), "the notice is on its way");
        assert_eq!(deleted.lost().await, LostReason::Deleted);
        assert_eq!(watching.await.unwrap(), LostReason::Deleted, "a second asker is told the same");
        assert_eq!(deleted.check().await, Ok(false));
        assert_eq!(expired.release().await, Err(ReleaseError::NotHeld));
        assert_eq!(deleted.release().await, Err(ReleaseError::NotHeld));
    }

    async fn a_lock_that_was_taken_away_a_moment_ago_is_not_released(fake) {
        let client = fake.client().await;
        let guard = client.mutex("l").lock().await.unwrap();
        fake.world().delete(guard.path()).unwrap();
        assert!(guard.is_held(), "nobody has told us yet");
        assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    }
}

#[tokio::test]
async fn options_that_need_a_server_that_keeps_queues_are_refused_on_plain_zookeeper() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let request = || client.mutex("l").request();
    for refused in [
        request().lock_delay(Duration::from_secs(1)).lock().await,
        request().owner(Owner::Session).lock().await,
    ] {
        assert!(matches!(refused, Err(Error::Unsupported(_))));
    }
    assert_eq!(queue(&client, LOCK).await, 0);
    assert!(!client.extensions().await.unwrap().has_locks());
}

#[tokio::test]
async fn a_downgrade_before_a_waiting_writer_is_refused_on_plain_zookeeper_and_the_lock_is_kept() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let lock = client.rwlock("l");
    let writer = lock.write().await.unwrap();
    let other = lock.clone();
    let waiting = start(&client, LOCK, async move { other.write().await }).await;
    let Kept { guard: writer, error } = writer.downgrade().await.unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)) && writer.check().await.unwrap());
    assert_eq!(queue(&client, LOCK).await, 2);
    writer.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_downgrade_before_a_waiting_writer_keeps_its_position_on_rowlock() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let lock = client.rwlock("l");
    let writer = lock.write().await.unwrap();
    let (token, other) = (writer.token(), lock.clone());
    let waiting = start(&client, LOCK, async move { other.write().await }).await;
    let reader = writer.downgrade().await.unwrap();
    assert!(reader.token() == token && !waiting.is_finished());
    reader.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
