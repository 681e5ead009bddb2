//! Clients that take and release locks while something is done to their cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rowlock_client::Client;
use tokio::task::JoinSet;

use super::cluster::Cluster;

/// The clients at work. Each fails its test if its session is lost.
pub struct Cycling {
    stop: Arc<AtomicBool>,
    clients: JoinSet<u64>,
}

impl Cycling {
    /// Sets these clients going, on `locks` locks.
    pub fn start(clients: Vec<Client>, locks: usize) -> Cycling {
        let mut it = Cycling { stop: Arc::default(), clients: JoinSet::new() };
        for (n, client) in clients.into_iter().enumerate() {
            it.clients.spawn(cycle(client, format!("cycle-{}", n % locks), it.stop.clone()));
        }
        it
    }

    /// Ends them: each has had a lock at least once, and no session has expired.
    pub async fn end(mut self, cluster: &Cluster) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(cycles) = self.clients.join_next().await {
            assert!(cycles.expect("no session is lost") > 0);
        }
        assert_eq!(cluster.metric_of_all("rowlock_sessions_expired_total").await, 0);
    }
}

async fn cycle(client: Client, name: String, stop: Arc<AtomicBool>) -> u64 {
    let session = client.session_id();
    let mut cycles = 0;
    while !stop.load(Ordering::Relaxed) {
        let held = client.mutex(&name).lock().await.unwrap();
        held.release().await.unwrap();
        assert_eq!(client.session_id(), session);
        cycles += 1;
    }
    cycles
}
