//! Where the examples find a cluster: at `ROWLOCK_ENDPOINTS`, or the test kit brings one up in this process.

#![allow(dead_code, unreachable_pub)] // each example uses a part of it

pub mod storage;

use std::time::Duration;

use rowlock_client::Client;
use rowlock_testkit::Cluster;

/// What an example gives.
pub type Story = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Where the story takes place.
pub struct Stage {
    cluster: Option<Cluster>,
    endpoints: String,
}

impl Stage {
    /// Finds a cluster, or starts one.
    pub async fn set() -> Stage {
        match std::env::var("ROWLOCK_ENDPOINTS") {
            Ok(endpoints) => Stage { cluster: None, endpoints },
            Err(_) => {
                let cluster = Cluster::start(3).await;
                Stage { endpoints: cluster.endpoints(), cluster: Some(cluster) }
            }
        }
    }

    /// As clients take it.
    pub fn endpoints(&self) -> &str {
        &self.endpoints
    }

    /// A client with a name that others see in the queues.
    pub async fn client(&self, label: &str) -> Result<Client, rowlock_client::ConnectError> {
        client_of(&self.endpoints, label, Duration::from_secs(10)).await
    }
}

/// A client with a name and a session timeout.
pub async fn client_of(
    endpoints: &str,
    label: &str,
    session_timeout: Duration,
) -> Result<Client, rowlock_client::ConnectError> {
    Client::builder().endpoints(endpoints).label(label).session_timeout(session_timeout).connect().await
}

/// A name that no other run uses, so that examples can be run again and beside each other.
pub fn unique(name: &str) -> String {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!("{name}-{}-{}ns", std::process::id(), since.subsec_nanos())
}
