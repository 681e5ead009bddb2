//! The servers in a world: replication, persistence, failover.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_world::executor::Simulation;
use rowlock_world::time::{HostId, Nanos};

use super::client::{COMMAND_TIMEOUT, Client, Where};
use super::core::{Answer, Command};
use super::log::Persistence;
use super::server::{Server, Settings};
use super::{PORT, monitor};
use crate::wire::{Meter, Trouble};

struct Bench {
    world: Simulation,
    servers: Vec<HostId>,
    client: HostId,
    settings: Settings,
}

impl Bench {
    /// The servers, of which the first is the primary, and a host for clients and the monitor.
    fn new(servers: u8, settings: Settings) -> Bench {
        let world = Simulation::new(1, false);
        let add = |n: u8| world.add_host(&format!("redis{n}"), "redis", Ipv4Addr::new(10, 0, 0, n));
        let servers: Vec<HostId> = (1..=servers).map(add).collect();
        let client = world.add_host("client", "client", Ipv4Addr::new(10, 0, 1, 1));
        let bench = Bench { world, servers, client, settings };
        bench.world.boot(client);
        (0..bench.servers.len()).for_each(|index| bench.start(index));
        bench
    }

    fn start(&self, index: usize) {
        self.world.boot(self.servers[index]);
        let follows = (index > 0).then(|| format!("redis1:{PORT}"));
        let settings = Settings { follows, ..self.settings.clone() };
        self.world.on(self.servers[index], || Server::start(&settings, &Meter::off())).expect("starts");
    }

    fn pass(&self, seconds: u64) {
        self.world.run_until(self.world.now() + Duration::from_secs(seconds)).expect("no halt");
    }

    /// Runs `work` on the client's host for at most ten seconds and returns its result.
    fn run<T, F>(&self, server: &str, work: impl FnOnce(Client) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let place = Where::Fixed(format!("{server}:{PORT}"));
        self.run_at(place, work)
    }

    fn run_at<T, F>(&self, place: Where, work: impl FnOnce(Client) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let result = Arc::new(Mutex::new(None));
        let (slot, work) = (result.clone(), work(Client::new(place, COMMAND_TIMEOUT, Meter::off())));
        self.world.spawn(self.client, "test", async move { *slot.lock() = Some(work.await) });
        let until: Nanos = self.world.now() + Duration::from_secs(10);
        self.world.run_until_or(until, || result.lock().is_some()).expect("no halt");
        result.lock().take().expect("done in time")
    }

    fn end(self) {
        self.world.end_of_world().expect("no halt");
    }
}

fn settings(persistence: Persistence, min_replicas: usize) -> Settings {
    Settings { persistence, min_replicas, follows: None }
}

fn set() -> Command {
    Command::SetNxPx { key: "k".to_owned(), value: "v".to_owned(), ttl_ms: 60_000 }
}

#[test]
fn only_what_was_flushed_survives_a_power_loss_for_sure() {
    for (persistence, is_kept) in [(Persistence::None, false), (Persistence::Always, true)] {
        let bench = Bench::new(1, settings(persistence, 0));
        assert_eq!(bench.run("redis1", |mut c| async move { c.run(set()).await }), Ok(Answer::Ok));
        bench.world.power_off(bench.servers[0]).expect("no halt");
        bench.start(0);
        let again = bench.run("redis1", |mut c| async move { c.run(set()).await });
        assert_eq!(again == Ok(Answer::Nil), is_kept, "{persistence:?}");
        bench.end();
    }
}

#[test]
fn a_process_that_dies_loses_nothing_that_it_has_written() {
    let bench = Bench::new(1, settings(Persistence::EverySecond, 0));
    assert_eq!(bench.run("redis1", |mut c| async move { c.run(set()).await }), Ok(Answer::Ok));
    bench.world.kill(bench.servers[0]).expect("no halt");
    bench.start(0);
    assert_eq!(bench.run("redis1", |mut c| async move { c.run(set()).await }), Ok(Answer::Nil));
    bench.end();
}

#[test]
fn wait_counts_replicas_with_the_write_until_its_timeout() {
    let bench = Bench::new(3, settings(Persistence::None, 0));
    bench.pass(2);
    let set_and_wait = |mut c: Client| async move {
        c.run(set()).await?;
        c.wait(2, Duration::from_millis(500)).await
    };
    assert_eq!(bench.run("redis1", set_and_wait), Ok(2));
    bench.world.network().cut(bench.servers[0], bench.servers[2]);
    let delete_and_wait = |mut c: Client| async move {
        c.run(Command::Del { key: "k".to_owned() }).await?;
        c.wait(2, Duration::from_millis(500)).await
    };
    assert_eq!(bench.run("redis1", delete_and_wait), Ok(1));
    bench.end();
}

/// S2-8, E8: the gate looks at reports up to ten seconds old, not at this write.
#[test]
fn min_replicas_refuses_only_when_the_last_reports_are_old() {
    let bench = Bench::new(2, settings(Persistence::None, 1));
    bench.pass(2);
    bench.world.network().cut(bench.servers[0], bench.servers[1]);
    bench.world.network().cut(bench.servers[1], bench.servers[0]);
    bench.pass(2);
    assert_eq!(bench.run("redis1", |mut c| async move { c.run(set()).await }), Ok(Answer::Ok));
    bench.pass(12);
    let refused = bench.run("redis1", |mut c| async move { c.run(set()).await });
    assert_eq!(refused, Err(Trouble::NoConnection));
    bench.end();
}

#[test]
fn a_demoted_primary_loses_its_unreplicated_writes() {
    let bench = Bench::new(3, settings(Persistence::EverySecond, 0));
    let servers = (1..=3).map(|n| format!("redis{n}:{PORT}")).collect();
    bench.world.on(bench.client, || monitor::start(servers, &Meter::off()));
    bench.pass(2);
    for replica in [1, 2] {
        bench.world.network().cut(bench.servers[0], bench.servers[replica]);
    }
    assert_eq!(bench.run("redis1", |mut c| async move { c.run(set()).await }), Ok(Answer::Ok));
    bench.world.kill(bench.servers[0]).expect("no halt");
    bench.world.network().join_all();
    bench.pass(8);
    let place = || Where::ByMonitor(format!("client:{PORT}"));
    assert_eq!(
        bench.run_at(place(), |mut c| async move { c.run(set()).await }),
        Ok(Answer::Ok),
        "granted twice"
    );
    bench.start(0);
    bench.pass(5);
    let at_the_old = bench.run("redis1", |mut c| async move { c.run(set()).await });
    assert_eq!(at_the_old, Err(Trouble::NoConnection), "it is a replica now");
    bench.end();
}

#[test]
fn a_release_is_told_to_subscribers() {
    let bench = Bench::new(1, settings(Persistence::None, 0));
    let heard = bench.run("redis1", |mut c| async move {
        c.subscribe(&super::core::channel_of("k")).await?;
        let unlock = Command::RedissonUnlock { key: "k".to_owned(), owner: "o".to_owned(), ttl_ms: 1 };
        c.run(unlock).await?;
        c.next_message().await
    });
    assert_eq!(heard, Ok(()));
    bench.end();
}
