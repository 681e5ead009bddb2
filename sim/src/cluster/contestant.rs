//! Rowlock among the lock designs: the same scenarios and measurements, with the real nodes and the real
//! client instead of models.

use std::sync::Arc;
use std::time::Duration;

use rowlock_client::{Client, Guard, ReleaseError, SessionState};
use rowlock_coordinator::NodeHook;
use rowlock_designs::design::{About, Contender, Deployment, Design, Doing, Grant, Locker, Servers};
use rowlock_designs::outside_view::{OutsideView, Released};
use rowlock_designs::scenario::Scenario;
use rowlock_designs::wire::{Meter, Trouble};
use rowlock_designs::{LOCK, TTL};
use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use super::node;
use super::node_statuses::NodeStatuses;
use super::shape::Shape;

/// Three nodes, and clients that queue with one round trip.
pub struct Rowlock {
    /// Time for which a session outlives the end of its client's connection. `None`: the session timeout.
    pub disconnect_grace: Option<Duration>,
    /// Whether the store checks tokens.
    pub is_fenced: bool,
}

impl Design for Rowlock {
    fn about(&self) -> About {
        let (id, name) = match (self.disconnect_grace, self.is_fenced) {
            (None, false) => ("rowlock", "Rowlock"),
            (None, true) => ("rowlock-fenced", "Rowlock, with fencing"),
            (Some(_), false) => ("rowlock-grace", "Rowlock, disconnect grace"),
            (Some(_), true) => ("rowlock-grace-fenced", "Rowlock, disconnect grace, with fencing"),
        };
        About {
            id,
            name,
            source: "this project: real nodes and clients",
            claims: vec!["mutual-exclusion", "fencing-monotonic", "fifo", "one-wake", "no-lost-wakeup"],
            is_fenced: self.is_fenced,
            not_applicable: [Scenario::CrashBetween, Scenario::CutBetween, Scenario::PauseBetween]
                .map(|scenario| (scenario, "acquire and release are one command each"))
                .into(),
            ..About::of_sessions()
        }
    }

    fn build(&self, world: &Simulation, view: &OutsideView) -> Deployment {
        // The labels of the models cannot decode Rowlock's frames.
        world.network().set_labeler(crate::report::label::label);
        let shape = Shape::default();
        let add = |place| world.add_host(&format!("node{}", place + 1), "node", node::address(place));
        let hosts: Vec<HostId> = (0..shape.nodes()).map(add).collect();
        let (world, statuses) = (world.clone(), NodeStatuses::new(hosts.len()));
        let endpoints: Vec<String> =
            (0..hosts.len()).map(|place| format!("{}:2181", node::address(place))).collect();
        let endpoints = endpoints.join(",");
        let cluster = Cluster { world, shape, hosts, statuses };
        for host in &cluster.hosts {
            cluster.world.boot(*host);
            cluster.start(*host);
        }
        let (meter, grace) = (view.meter().clone(), self.disconnect_grace);
        let locker = move |_: &Contender| -> Box<dyn Locker> {
            let (endpoints, meter) = (endpoints.clone(), meter.clone());
            Box::new(Holder { endpoints, grace, meter, client: None, guard: None })
        };
        Deployment { servers: Box::new(cluster), locker: Box::new(locker) }
    }
}

struct Cluster {
    world: Simulation,
    shape: Shape,
    hosts: Vec<HostId>,
    statuses: NodeStatuses,
}

/// Hook without checkers: the outside view of all designs checks these runs.
struct Unseen;

impl NodeHook for Unseen {}

impl Servers for Cluster {
    fn all(&self) -> Vec<HostId> {
        self.hosts.clone()
    }
    fn primary(&self) -> HostId {
        self.hosts[self.statuses.leader().unwrap_or(0)]
    }
    fn minority(&self) -> Vec<HostId> {
        vec![self.primary()]
    }
    fn start(&self, host: HostId) {
        let place = self.hosts.iter().position(|known| *known == host).expect("Invariant: it is one of ours");
        let known: Vec<usize> = (0..self.hosts.len()).collect();
        let orders = self.statuses.begin(place);
        let config = node::config(&self.shape, place, &known, |place| place < self.shape.voters);
        let process = node::process(config, Arc::new(Unseen), (self.statuses.clone(), place), orders);
        self.world.spawn(host, "process", process);
    }
}

struct Holder {
    endpoints: String,
    grace: Option<Duration>,
    meter: Meter,
    client: Option<Client>,
    guard: Option<Guard>,
}

fn is_over(state: SessionState) -> bool {
    matches!(state, SessionState::Expired | SessionState::Closed)
}

impl Holder {
    async fn client(&mut self) -> Result<Client, Trouble> {
        if let Some(client) = self.client.as_ref().filter(|client| !is_over(client.state())) {
            return Ok(client.clone());
        }
        self.client = None;
        let mut config = Client::builder().endpoints(&self.endpoints).session_timeout(TTL);
        if let Some(grace) = self.grace {
            config = config.disconnect_grace(grace);
        }
        let client = config.connect().await.map_err(|_| Trouble::NoConnection)?;
        self.client = Some(client.clone());
        Ok(client)
    }
}

impl Locker for Holder {
    fn lock(&mut self) -> Doing<'_, Result<Grant, Trouble>> {
        Box::pin(async {
            let client = self.client().await?;
            let guard = client.mutex(LOCK).lock().await.map_err(|_| Trouble::Unanswered)?;
            // Counts the request, its reply, and the notice of a delayed grant.
            (0..2 + guard.wait_stats().wakeups).for_each(|_| self.meter.count());
            let grant = Grant { token: u64::try_from(guard.token().0).ok(), value: guard.path().to_owned() };
            self.guard = Some(guard);
            Ok(grant)
        })
    }

    fn lost<'a>(&'a self, _: &'a Grant) -> Doing<'a, ()> {
        Box::pin(async {
            match &self.guard {
                Some(guard) => {
                    guard.lost().await;
                }
                None => std::future::pending().await,
            }
        })
    }

    fn unlock(&mut self, _: Grant) -> Doing<'_, Released> {
        Box::pin(async {
            let Some(guard) = self.guard.take() else { return Released::WasNotHeld };
            (0..2).for_each(|_| self.meter.count());
            match guard.release().await {
                Ok(()) => Released::Freed,
                Err(ReleaseError::NotHeld) => Released::WasNotHeld,
                Err(_) => Released::Unknown,
            }
        })
    }
}
