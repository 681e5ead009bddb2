//! A world for the tests of the services: servers, and clients on hosts of their own.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

pub struct Bench {
    pub world: Simulation,
    pub servers: Vec<HostId>,
    pub clients: Vec<HostId>,
}

impl Bench {
    /// Makes servers, not yet running, and clients, which run: `redis1`, `redis2`, `client1`.
    pub fn new(role: &'static str, servers: u8, clients: u8) -> Bench {
        let world = Simulation::new(1, false);
        let add = |role: &'static str, net: u8, count: u8| -> Vec<HostId> {
            let host = |n| world.add_host(&format!("{role}{n}"), role, Ipv4Addr::new(10, 0, net, n));
            (1..=count).map(host).collect()
        };
        let (servers, clients) = (add(role, 0, servers), add("client", 1, clients));
        clients.iter().for_each(|client| world.boot(*client));
        Bench { world, servers, clients }
    }

    pub fn pass(&self, time: Duration) {
        self.world.run_until(self.world.now() + time).expect("no halt");
    }

    /// Starts `work` on a client and returns the slot of its result.
    pub fn begin<T: Send + 'static>(
        &self,
        client: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Arc<Mutex<Option<T>>> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        self.world.spawn(self.clients[client], "test", async move {
            let done = work.await;
            *slot.lock() = Some(done);
        });
        result
    }

    /// Cuts two hosts off from each other.
    pub fn cut(&self, one: HostId, other: HostId) {
        self.world.network().cut(one, other);
        self.world.network().cut(other, one);
    }

    pub fn end(&self) {
        self.world.end_of_world().expect("no halt");
    }
}
