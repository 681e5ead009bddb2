//! What these tests share.

use std::time::Duration;

use rowlock_client::{Client, SessionState};
use rowlock_env::time;
use rowlock_testkit::Cluster;

/// How long anything may take on a machine that is busy with other tests.
pub const SOON: Duration = Duration::from_secs(30);
/// A short session timeout, for tests that wait for its end: a machine that stands still for a second ends
/// none before.
pub const SHORT: Duration = Duration::from_secs(3);

/// The future's value, in time.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

/// A client whose session ends soon after its last heartbeat.
pub async fn short(cluster: &Cluster) -> Client {
    cluster.client_with(|config| config.session_timeout(SHORT)).await
}

/// Waits for a state of the client's session.
pub async fn reaches(client: &Client, state: SessionState) {
    let mut states = client.states();
    let reached = states.wait_for(|now| *now == state);
    within(&format!("session {state:?}"), reached).await.unwrap();
}

/// Waits until the client is cut off.
pub async fn suspended(client: &Client) {
    let mut states = client.states();
    let cut_off = states.wait_for(|now| matches!(now, SessionState::Suspended { .. }));
    within("a suspended session", cut_off).await.unwrap();
}
