//! Fresh clients during faults. Each probe tests one node that owes service.
//!
//! The workload's clients have sessions, servers and timeouts of their own, so their calls wait for longer
//! than the cluster's outage. A probe knows one node only, and requests a session, a write and a lock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode, Error};
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use super::membership::Membership;
use super::record::Record;
use crate::history::{Connected, Fact};

/// Time within which a serving node completes all requests of a probe.
const WITHIN: Duration = Duration::from_secs(2);
/// Session timeout. A session that cannot be closed expires after this time.
const SESSION: Duration = Duration::from_secs(2);
const LOCK: &str = "/probed";

/// Sends one probe after another.
pub(super) struct Probes {
    sim: Simulation,
    host: HostId,
    record: Record,
    membership: Membership,
    is_busy: Arc<AtomicBool>,
    count: usize,
}

impl Probes {
    /// Creates probes from this host, whose links no fault touches.
    pub(super) fn new(sim: Simulation, host: HostId, record: Record, membership: Membership) -> Self {
        Probes { sim, host, record, membership, is_busy: Arc::default(), count: 0 }
    }

    /// Sends a probe to the next of the serving nodes, if none is under way.
    pub(super) fn send(&mut self, owed: &Connected) {
        if owed.serving.is_empty() || self.is_busy.swap(true, Relaxed) {
            return;
        }
        let serving: Vec<NodeId> = owed.serving.iter().copied().collect();
        let node = serving[self.count % serving.len()];
        self.count += 1;
        let endpoint = self.membership.endpoint(node.0 as usize - 1);
        let (record, is_busy, began) = (self.record.clone(), self.is_busy.clone(), self.sim.now());
        self.sim.spawn(self.host, "probe", async move {
            let outcome = probe(endpoint).await;
            record.report(&Fact::Probed { at: record.now(), began, node, outcome });
            is_busy.store(false, Relaxed);
        });
    }
}

/// Requests a session, a write and a lock. The error names the first missing service.
async fn probe(endpoint: String) -> Result<(), String> {
    let without = |what: &'static str| move |error: Error| format!("has no {what}: {error}");
    let config = Client::builder().endpoints(&endpoint).session_timeout(SESSION).connect_timeout(WITHIN);
    let served = async {
        let client = config.connect().await.map_err(|error| format!("has no session: {error}"))?;
        let writes = client.create("/probe-", None, CreateMode::EphemeralSequential, Acl::open());
        writes.await.map_err(without("write"))?;
        let guard = client.mutex_at(LOCK).lock().await.map_err(without("lock"))?;
        Ok((client, guard))
    };
    let served = time::timeout(WITHIN, served).await;
    let (client, guard) = served.unwrap_or_else(|_| Err(format!("has no service within {WITHIN:?}")))?;
    // The outcome of the cleanup does not count: a fault may begin in between.
    let _ = time::timeout(WITHIN, guard.release()).await;
    let _ = time::timeout(WITHIN, client.close()).await;
    Ok(())
}
