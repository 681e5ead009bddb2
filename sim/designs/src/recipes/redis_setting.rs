//! Redis servers in a world: one, several independent ones, or a primary with replicas and a monitor.

use std::net::Ipv4Addr;

use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use crate::design::Servers;
use crate::outside_view::OutsideView;
use crate::redis::client::Where;
use crate::redis::log::Persistence;
use crate::redis::server::{Server, Settings};
use crate::redis::{PORT, monitor};
use crate::wire::Meter;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub servers: usize,
    /// The first server is the primary of the others, and a monitor fails over.
    pub is_replicated: bool,
    pub persistence: Persistence,
    pub min_replicas: usize,
}

pub struct RedisSetting {
    world: Simulation,
    meter: Meter,
    plan: Plan,
    hosts: Vec<HostId>,
    monitor: Option<HostId>,
}

fn name(index: usize) -> String {
    format!("redis{}", index + 1)
}

fn addr(index: usize) -> String {
    format!("{}:{PORT}", name(index))
}

impl RedisSetting {
    /// Sets the servers up and starts them.
    pub fn build(world: &Simulation, view: &OutsideView, plan: Plan) -> Self {
        let last = |index: usize| u8::try_from(index + 1).expect("there are few servers");
        let hosts = (0..plan.servers)
            .map(|i| world.add_host(&name(i), "redis", Ipv4Addr::new(10, 0, 0, last(i))))
            .collect();
        let monitor =
            plan.is_replicated.then(|| world.add_host("monitor", "monitor", Ipv4Addr::new(10, 0, 2, 1)));
        let (world, meter) = (world.clone(), view.meter().clone());
        let setting = RedisSetting { world, meter, plan, hosts, monitor };
        for host in setting.hosts.clone() {
            setting.world.boot(host);
            setting.start(host);
        }
        if let Some(monitor) = monitor {
            setting.world.boot(monitor);
            let servers = (0..plan.servers).map(addr).collect();
            setting.world.on(monitor, || monitor::start(servers, &Meter::off()));
        }
        setting
    }

    /// Returns the address of each server, or only the monitor's address.
    pub fn places(&self) -> Vec<Where> {
        match self.monitor {
            Some(_) => vec![Where::ByMonitor(format!("monitor:{PORT}"))],
            None => (0..self.plan.servers).map(|i| Where::Fixed(addr(i))).collect(),
        }
    }

    /// Returns the address of the single server, or the monitor's address.
    pub fn place(&self) -> Where {
        self.places().into_iter().next().expect("there is a server")
    }
}

impl Servers for RedisSetting {
    fn all(&self) -> Vec<HostId> {
        self.hosts.clone()
    }

    fn bystanders(&self) -> Vec<HostId> {
        self.monitor.into_iter().collect()
    }

    fn primary(&self) -> HostId {
        self.hosts[0]
    }

    fn minority(&self) -> Vec<HostId> {
        match self.plan.servers {
            1 => Vec::new(),
            // With replicas the monitor's side matters: half of the servers are cut off from the monitor.
            n if self.plan.is_replicated => self.hosts[..n.div_ceil(2)].to_vec(),
            n => self.hosts[..n / 2].to_vec(),
        }
    }

    fn start(&self, host: HostId) {
        let index = self.hosts.iter().position(|h| *h == host).expect("one of ours");
        let follows = (self.plan.is_replicated && index > 0).then(|| addr(0));
        let settings =
            Settings { persistence: self.plan.persistence, min_replicas: self.plan.min_replicas, follows };
        // A disk that fails at the start leaves the server down, as with Redis.
        let _ = self.world.on(host, || Server::start(&settings, &self.meter));
    }
}
