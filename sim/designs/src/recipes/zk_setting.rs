//! ZooKeeper's service in a world, and the recipes' common client: a session, opened on demand.

use std::net::Ipv4Addr;
use std::time::Duration;

use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use crate::design::{Contender, Deployment, Locker, Servers};
use crate::outside_view::OutsideView;
use crate::wire::{Meter, Trouble};
use crate::zk::PORT;
use crate::zk::core::{Reply, Request};
use crate::zk::server::{self, Storage};
use crate::zk::session::Session;

struct ZkSetting {
    world: Simulation,
    meter: Meter,
    host: HostId,
    storage: Storage,
}

/// Sets up the service; `locker` makes the client library of a process.
pub fn build(
    world: &Simulation,
    view: &OutsideView,
    locker: impl Fn(ZkClient) -> Box<dyn Locker> + 'static,
) -> Deployment {
    let host = world.add_host("zk", "zookeeper", Ipv4Addr::new(10, 0, 0, 1));
    let (world, meter) = (world.clone(), view.meter().clone());
    let servers = ZkSetting { world, meter, host, storage: Storage::default() };
    servers.world.boot(host);
    servers.start(host);
    let locker = move |me: &Contender| locker(ZkClient { me: me.clone(), session: None });
    Deployment { servers: Box::new(servers), locker: Box::new(locker) }
}

impl Servers for ZkSetting {
    fn all(&self) -> Vec<HostId> {
        vec![self.host]
    }
    fn primary(&self) -> HostId {
        self.host
    }
    /// The one host stands for an ensemble that elects another leader.
    fn outage(&self) -> Duration {
        Duration::from_secs(2)
    }
    fn minority(&self) -> Vec<HostId> {
        Vec::new()
    }
    fn start(&self, host: HostId) {
        self.world.on(host, || server::start(self.storage.clone(), &self.meter));
    }
}

pub struct ZkClient {
    pub me: Contender,
    pub session: Option<Session>,
}

impl ZkClient {
    /// Returns the session; opens a new session if there is none or the old one has expired.
    pub async fn session(&mut self) -> Result<&Session, Trouble> {
        if self.session.as_ref().is_none_or(Session::is_expired) {
            self.session = None;
            self.session = Some(Session::open(&format!("zk:{PORT}"), self.me.view.meter()).await?);
        }
        self.session.as_ref().ok_or(Trouble::NoConnection)
    }

    /// Sends one request on the existing session.
    pub async fn run(&self, request: Request) -> Result<Reply, Trouble> {
        match &self.session {
            Some(session) => session.run(request).await,
            None => Err(Trouble::NoConnection),
        }
    }
}
