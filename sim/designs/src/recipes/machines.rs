//! Services of the recipes in a world: Redis (one server, several independent ones, or a primary with
//! replicas and a monitor), a database, ZooKeeper. One harness makes the hosts, starts the processes, and
//! names the targets of faults; a service differs only in the process of a host.

use std::net::Ipv4Addr;
use std::time::Duration;

use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use crate::design::{Contender, Deployment, Locker, LockerMaker, Servers};
use crate::outside_view::OutsideView;
use crate::redis::client::{Client, Where};
use crate::redis::log::Persistence;
use crate::redis::server::{Server, Settings};
use crate::redis::{self, monitor};
use crate::wire::{Meter, Redial, Trouble};
use crate::zk::core::{Reply, Request};
use crate::zk::session::Session;
use crate::{database, zk};

/// Hosts of one service.
struct Machines {
    world: Simulation,
    hosts: Vec<HostId>,
    monitor: Option<HostId>,
    /// Number of servers on the holder's side of a partition.
    minority: usize,
    outage: Duration,
    /// Starts the process of the server with this index.
    process: Box<dyn Fn(usize)>,
}

impl Machines {
    fn launch(self) -> Box<Self> {
        for host in &self.hosts {
            self.world.boot(*host);
            self.start(*host);
        }
        Box::new(self)
    }
}

impl Servers for Machines {
    fn all(&self) -> Vec<HostId> {
        self.hosts.clone()
    }
    fn bystanders(&self) -> Vec<HostId> {
        self.monitor.into_iter().collect()
    }
    fn primary(&self) -> HostId {
        self.hosts[0]
    }
    fn outage(&self) -> Duration {
        self.outage
    }
    fn minority(&self) -> Vec<HostId> {
        self.hosts[..self.minority].to_vec()
    }
    fn start(&self, host: HostId) {
        let index = self.hosts.iter().position(|known| *known == host).expect("one of ours");
        self.world.on(host, || (self.process)(index));
    }
}

/// Sets up a service of one host, whose storage outlives the host.
fn one_host(
    world: &Simulation,
    (name, role): (&str, &'static str),
    outage: Duration,
    process: impl Fn() + 'static,
    locker: LockerMaker,
) -> Deployment {
    let hosts = vec![world.add_host(name, role, Ipv4Addr::new(10, 0, 0, 1))];
    let process = Box::new(move |_| process());
    let machines = Machines { world: world.clone(), hosts, monitor: None, minority: 0, outage, process };
    Deployment { servers: machines.launch(), locker }
}

/// Plan of a setup of Redis.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub servers: usize,
    /// The first server is the primary of the others, and a monitor fails over.
    pub is_replicated: bool,
    pub persistence: Persistence,
    pub min_replicas: usize,
}

impl Plan {
    pub fn one(persistence: Persistence) -> Plan {
        Plan { servers: 1, is_replicated: false, persistence, min_replicas: 0 }
    }

    fn settings(self, index: usize) -> Settings {
        let follows = (self.is_replicated && index > 0).then(|| redis_addr(0));
        Settings { persistence: self.persistence, min_replicas: self.min_replicas, follows }
    }
}

fn redis_name(index: usize) -> String {
    format!("redis{}", index + 1)
}

fn redis_addr(index: usize) -> String {
    format!("{}:{}", redis_name(index), redis::PORT)
}

/// Sets up Redis; `locker` makes the client library of a process from the addresses: one for each server, or
/// the monitor's address only.
pub fn redis(
    world: &Simulation,
    view: &OutsideView,
    plan: Plan,
    locker: impl Fn(&Contender, &[Where]) -> Box<dyn Locker> + 'static,
) -> Deployment {
    let last = |index: usize| u8::try_from(index + 1).expect("there are few servers");
    let hosts = (0..plan.servers)
        .map(|index| world.add_host(&redis_name(index), "redis", Ipv4Addr::new(10, 0, 0, last(index))))
        .collect();
    let monitor =
        plan.is_replicated.then(|| world.add_host("monitor", "monitor", Ipv4Addr::new(10, 0, 2, 1)));
    let meter = view.meter().clone();
    let machines = Machines {
        world: world.clone(),
        hosts,
        monitor,
        minority: match plan.servers {
            // With replicas the monitor's side matters: half of the servers are cut off from the monitor.
            n if plan.is_replicated => n.div_ceil(2),
            n => n / 2,
        },
        outage: Duration::from_secs(30),
        // A disk that fails at the start leaves the server down, as with Redis.
        process: Box::new(move |index| drop(Server::start(&plan.settings(index), &meter))),
    };
    let servers = machines.launch();
    let mut places: Vec<Where> = (0..plan.servers).map(|index| Where::Fixed(redis_addr(index))).collect();
    if let Some(monitor) = monitor {
        world.boot(monitor);
        let addrs = (0..plan.servers).map(redis_addr).collect();
        world.on(monitor, || monitor::start(addrs, &Meter::off()));
        places = vec![Where::ByMonitor(format!("monitor:{}", redis::PORT))];
    }
    Deployment { servers, locker: Box::new(move |me: &Contender| locker(me, &places)) }
}

/// Creates a client of a server or monitor, with the usual timeout.
pub fn redis_client(me: &Contender, place: &Where) -> Client {
    Client::new(place.clone(), redis::client::COMMAND_TIMEOUT, me.view.meter().clone())
}

/// Sets up the database.
pub fn database(
    world: &Simulation,
    view: &OutsideView,
    locker: impl Fn(&Contender, Redial<database::Sql>) -> Box<dyn Locker> + 'static,
) -> Deployment {
    let (storage, meter) = (database::Storage::default(), view.meter().clone());
    let process = move || database::start(storage.clone(), &meter);
    let locker = move |me: &Contender| locker(me, database::client(me.view.meter()));
    one_host(world, ("database", "database"), Duration::from_secs(30), process, Box::new(locker))
}

/// Sets up ZooKeeper. The one host stands for an ensemble that elects another leader within two seconds.
pub fn zookeeper(
    world: &Simulation,
    view: &OutsideView,
    locker: impl Fn(ZkClient) -> Box<dyn Locker> + 'static,
) -> Deployment {
    let (storage, meter) = (zk::server::Storage::default(), view.meter().clone());
    let process = move || zk::server::start(storage.clone(), &meter);
    let locker = move |me: &Contender| locker(ZkClient { me: me.clone(), session: None });
    one_host(world, ("zk", "zookeeper"), Duration::from_secs(2), process, Box::new(locker))
}

/// Client of ZooKeeper's recipes: a session, opened on demand.
pub struct ZkClient {
    pub me: Contender,
    pub session: Option<Session>,
}

impl ZkClient {
    /// Returns the session; opens a new session if there is none or the old one has expired.
    pub async fn session(&mut self) -> Result<&Session, Trouble> {
        if self.session.as_ref().is_none_or(Session::is_expired) {
            self.session = None;
            self.session = Some(Session::open(&format!("zk:{}", zk::PORT), self.me.view.meter()).await?);
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

    /// Deletes a znode. `false`: the znode was gone already.
    pub async fn delete(&self, path: String) -> Result<bool, Trouble> {
        Ok(self.run(Request::Delete { path }).await? == Reply::Done)
    }
}
