//! The runtime that serves a client ends while others rely on the client.

use std::time::Duration;

use rowlock_client::{Error, LostReason, ReleaseError, SessionState};
use rowlock_testkit::Cluster;
use tokio::runtime::{Builder, Runtime};

use crate::support::within;

/// Longer than any test: nothing here is freed because a session expires.
const LONG: Duration = Duration::from_secs(120);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

async fn cluster() -> Cluster {
    Cluster::start_with(1, |config| config.session.max_timeout_ms = 200_000).await
}

#[test]
fn when_a_clients_runtime_ends_all_that_relies_on_it_is_told_and_its_locks_are_free_at_once() {
    let (own, clients) = (runtime(), runtime());
    let cluster = own.block_on(cluster());
    let alice = clients.block_on(cluster.client_with(|config| config.session_timeout(LONG)));
    let bob = own.block_on(cluster.client());
    let guard = clients.block_on(alice.mutex("m").lock()).unwrap();
    let held = own.block_on(bob.mutex("n").lock()).unwrap();
    let (states, mutex) = (alice.states(), alice.mutex("n"));
    let waits = own.spawn(async move { mutex.lock().await.map(drop) });
    own.block_on(async {
        while alice.get_children("/locks/n").await.unwrap().names.len() < 2 {
            tokio::task::yield_now().await;
        }
    });

    drop(clients);

    assert!(!guard.is_held() && guard.valid_until().is_none());
    assert_eq!(states.current(), SessionState::Closed);
    assert!(states.has_changed(), "followers are woken");
    own.block_on(async {
        assert_eq!(within("the loss", guard.lost()).await, LostReason::Stopped);
        assert_eq!(within("the wait", waits).await.unwrap(), Err(Error::Stopped));
        assert_eq!(within("a call", alice.exists("/")).await, Err(Error::Stopped));
        assert_eq!(within("a close", alice.close()).await, Err(Error::Stopped));
        assert_eq!(within("a release", guard.release()).await, Err(ReleaseError::NotHeld));
        // By the last write of the session: the session timeout is far away.
        assert!(within("the next grant", bob.mutex("m").lock()).await.unwrap().is_held());
        within("a free place", held.release()).await.unwrap();
    });
}

#[test]
fn a_static_client_tells_the_next_runtime_at_once_that_its_own_is_gone_and_can_be_renewed_there() {
    let (first, second) = (runtime(), runtime());
    let cluster = first.block_on(cluster());
    let client = first.block_on(cluster.client());
    first.shutdown_background();
    second.block_on(async {
        let mut states = client.states();
        within("the end", states.wait_for(|state| *state == SessionState::Closed)).await.unwrap();
        assert_eq!(client.mutex("m").lock().await.map(drop), Err(Error::Stopped));
        let renewed = within("a new session", client.renew()).await.unwrap();
        assert!(within("a lock", renewed.mutex("m").lock()).await.unwrap().is_held());
    });
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_and_nothing_else_waits_for_it() {
    let cluster = cluster().await;
    let client = cluster.client().await;
    let (meta, attached) = ("x".repeat(9_000), client.session_id());
    let too_large =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::TooLarge { .. })), "{result:?}");
    let guard = within("a lock", client.mutex("m").lock()).await.unwrap();
    let data = Some(vec![7_u8; 1_500_000].into());
    too_large(within("a write", client.set("/locks", data, None)).await.map(drop));
    let names: Vec<String> = (0..256).map(|n| format!("n{n}")).collect();
    too_large(within("many", client.multi(&names).request().meta(&meta).lock()).await.map(drop));
    let huge = "x".repeat(1_500_000);
    too_large(within("a label", client.mutex("l").request().label(&huge).lock()).await.map(drop));
    too_large(within("a try", client.semaphore("s", 2).request(1).meta(&huge).try_lock()).await.map(drop));
    too_large(within("a reader", client.rwlock("r").read_request().meta(&huge).lock()).await.map(drop));
    too_large(within("a campaign", client.election("e").campaign(&huge)).await.map(drop));
    let lead = within("a lead", client.election("e").campaign("v")).await.unwrap();
    too_large(within("a value", lead.set_value(&huge)).await);
    too_large(within("a credential", client.add_auth("digest", huge.clone())).await);
    within("a release", guard.release()).await.unwrap();
    assert!(within("none is taken", client.multi(&names).try_lock()).await.unwrap().is_some());
    assert_eq!(client.session_id(), attached);
    within("a close", client.close()).await.unwrap();
}
