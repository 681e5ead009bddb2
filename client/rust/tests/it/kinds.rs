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

    async fn a_lock_survives_lost_connections_while_it_is_held_and_checked(fake) {
        let client = fake.client().await;
        let guard = client.mutex("l").lock().await.unwrap();
        for _ in 0..5 {
            fake.world().drop_connections();
            assert_eq!(guard.check().await, Ok(true));
        }
        assert_eq!(guard.release().await, Ok(()));
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
