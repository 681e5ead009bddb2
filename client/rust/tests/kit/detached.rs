//! Sessions that outlive their client: [`Client::detach`] and [`ClientBuilder::take_over`].

use std::time::Duration;

use rowlock_client::{Client, ClientBuilder, ConnectError, Error, LostReason, SessionTicket, blocking};
use rowlock_testkit::Cluster;

use crate::support::SHORT;

const LONG: Duration = Duration::from_secs(30);

fn builder(cluster: &Cluster, timeout: Duration) -> ClientBuilder {
    Client::builder().endpoints(&cluster.endpoints()).session_timeout(timeout)
}

/// Each client of the session writes: numbers of writes go on from one client to the next.
#[tokio::test]
async fn a_lock_passes_from_client_to_client_and_the_last_one_releases_it() {
    let cluster = Cluster::start(1).await;
    let other = cluster.client().await;
    let client = builder(&cluster, LONG).connect().await.unwrap();
    let guard = client.mutex("m").lock().await.unwrap();
    let (claim, session) = (guard.claim(), client.session_id());
    let mut ticket = client.detach().unwrap();
    assert_eq!(guard.lost().await, LostReason::Closed);
    assert_eq!(client.detach().unwrap_err(), Error::Closed);
    drop((guard, client));
    for round in 0..3 {
        let text = ticket.reveal();
        let taken: SessionTicket = text.parse().unwrap();
        let client = builder(&cluster, LONG).take_over(taken).connect().await.unwrap();
        assert_eq!(client.session_id(), session);
        assert!(client.holds(&claim).await.unwrap());
        assert!(other.mutex("m").try_lock().await.unwrap().is_none(), "round {round}");
        drop(client.mutex(format!("m{round}")).lock().await.unwrap());
        ticket = client.detach().unwrap();
    }
    assert!(!other.release_claim(&claim).await.unwrap(), "a session releases its own locks alone");
    let last = builder(&cluster, SHORT).take_over(ticket.clone()).connect().await.unwrap();
    assert!(last.release_claim(&claim).await.unwrap());
    assert!(!last.release_claim(&claim).await.unwrap() && !other.holds(&claim).await.unwrap());
    other.mutex("m").try_lock().await.unwrap().expect("a released lock").release().await.unwrap();
    last.close().await.unwrap();
    let ended = builder(&cluster, SHORT).take_over(ticket).connect().await.unwrap_err();
    assert!(matches!(ended, ConnectError::SessionExpired), "{ended:?}");
    other.close().await.unwrap();
}

#[tokio::test]
async fn a_session_that_is_left_alone_ends_after_its_timeout() {
    let cluster = Cluster::start(1).await;
    let client = builder(&cluster, SHORT).connect().await.unwrap();
    let guard = client.mutex("m").lock().await.unwrap();
    let ticket = client.detach().unwrap();
    let other = cluster.client().await;
    other.mutex("m").lock_timeout(LONG).await.unwrap().release().await.unwrap();
    drop(guard);
    let ended = builder(&cluster, SHORT).take_over(ticket).connect().await.unwrap_err();
    assert!(matches!(ended, ConnectError::SessionExpired), "{ended:?}");
    other.close().await.unwrap();
}

#[cfg(feature = "blocking")]
#[test]
fn a_program_that_blocks_leaves_its_session_in_the_same_way() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cluster = runtime.block_on(Cluster::start(1));
    let client = blocking::Client::connect(builder(&cluster, LONG)).unwrap();
    let claim = client.mutex("m").lock().unwrap().claim();
    let guard = client.mutex("m").lock().unwrap();
    assert!(guard.claim() != claim, "the first guard was dropped");
    let claim = guard.claim();
    let ticket = client.detach().unwrap();
    drop((guard, client));
    let next = blocking::Client::connect(builder(&cluster, LONG).take_over(ticket)).unwrap();
    assert!(next.holds(&claim).unwrap() && next.release_claim(&claim).unwrap());
    next.close().unwrap();
}
