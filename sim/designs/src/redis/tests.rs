//! The servers in a world: replication, persistence, failover.

use std::time::Duration;

use super::client::{COMMAND_TIMEOUT, Client, Where};
use super::core::{Answer, Command};
use super::log::Persistence;
use super::server::{Server, Settings};
use super::{PORT, monitor};
use crate::LOCK;
use crate::testing::Bench;
use crate::wire::{Meter, Trouble};

/// Servers, of which the first is the primary, and a host for clients and the monitor.
struct Redis {
    bench: Bench,
    settings: Settings,
}

impl std::ops::Deref for Redis {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

impl Redis {
    fn new(servers: u8, settings: Settings) -> Redis {
        let redis = Redis { bench: Bench::new("redis", servers, 1), settings };
        (0..redis.servers.len()).for_each(|index| redis.start(index));
        redis
    }

    fn start(&self, index: usize) {
        self.world.boot(self.servers[index]);
        let follows = (index > 0).then(|| format!("redis1:{PORT}"));
        let settings = Settings { follows, ..self.settings.clone() };
        self.world.on(self.servers[index], || Server::start(&settings, &Meter::off())).expect("starts");
    }

    /// Runs `work` with a client of the first server and returns the result.
    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Client) -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.run_at(Where::Fixed(format!("redis1:{PORT}")), work)
    }

    fn run_at<T: Send + 'static, F>(&self, place: Where, work: impl FnOnce(Client) -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        let done = self.begin(0, work(Client::new(place, COMMAND_TIMEOUT, Meter::off())));
        self.world
            .run_until_or(self.world.now() + Duration::from_secs(10), || done.lock().is_some())
            .expect("no halt");
        done.lock().take().expect("done in time")
    }

    /// Sets the lock's key.
    fn set(&self) -> Result<Answer, Trouble> {
        self.run(|mut client| async move { client.run(set()).await })
    }
}

fn settings(persistence: Persistence, min_replicas: usize) -> Settings {
    Settings { persistence, min_replicas, follows: None }
}

fn set() -> Command {
    Command::SetNxPx { key: LOCK.to_owned(), value: "v".to_owned(), ttl_ms: 60_000 }
}

#[test]
fn only_what_was_flushed_survives_a_power_loss_for_sure() {
    for (persistence, is_kept) in [(Persistence::None, false), (Persistence::Always, true)] {
        let bench = Redis::new(1, settings(persistence, 0));
        assert_eq!(bench.set(), Ok(Answer::Ok));
        bench.world.power_off(bench.servers[0]).expect("no halt");
        bench.start(0);
        let again = bench.set();
        assert_eq!(again == Ok(Answer::Nil), is_kept, "{persistence:?}");
        bench.end();
    }
}

#[test]
fn a_process_that_dies_loses_nothing_that_it_has_written() {
    let bench = Redis::new(1, settings(Persistence::EverySecond, 0));
    assert_eq!(bench.set(), Ok(Answer::Ok));
    bench.world.kill(bench.servers[0]).expect("no halt");
    bench.start(0);
    assert_eq!(bench.set(), Ok(Answer::Nil));
    bench.end();
}

#[test]
fn wait_counts_replicas_with_the_write_until_its_timeout() {
    let bench = Redis::new(3, settings(Persistence::None, 0));
    bench.pass(Duration::from_secs(2));
    let set_and_wait = |mut c: Client| async move {
        c.run(set()).await?;
        c.wait(2, Duration::from_millis(500)).await
    };
    assert_eq!(bench.run(set_and_wait), Ok(2));
    bench.world.network().cut(bench.servers[0], bench.servers[2]);
    let delete_and_wait = |mut c: Client| async move {
        c.run(Command::del()).await?;
        c.wait(2, Duration::from_millis(500)).await
    };
    assert_eq!(bench.run(delete_and_wait), Ok(1));
    bench.end();
}

/// S2-8, E8: the gate looks at reports up to ten seconds old, not at this write.
#[test]
fn min_replicas_refuses_only_when_the_last_reports_are_old() {
    let bench = Redis::new(2, settings(Persistence::None, 1));
    bench.pass(Duration::from_secs(2));
    bench.cut(bench.servers[0], bench.servers[1]);
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.set(), Ok(Answer::Ok));
    bench.pass(Duration::from_secs(12));
    let refused = bench.set();
    assert_eq!(refused, Err(Trouble::NoConnection));
    bench.end();
}

#[test]
fn a_demoted_primary_loses_its_unreplicated_writes() {
    let bench = Redis::new(3, settings(Persistence::EverySecond, 0));
    let servers = (1..=3).map(|n| format!("redis{n}:{PORT}")).collect();
    bench.world.on(bench.clients[0], || monitor::start(servers, &Meter::off()));
    bench.pass(Duration::from_secs(2));
    for replica in [1, 2] {
        bench.world.network().cut(bench.servers[0], bench.servers[replica]);
    }
    assert_eq!(bench.set(), Ok(Answer::Ok));
    bench.world.kill(bench.servers[0]).expect("no halt");
    bench.world.network().join_all();
    bench.pass(Duration::from_secs(8));
    let place = || Where::ByMonitor(format!("client1:{PORT}"));
    assert_eq!(
        bench.run_at(place(), |mut c| async move { c.run(set()).await }),
        Ok(Answer::Ok),
        "granted twice"
    );
    bench.start(0);
    bench.pass(Duration::from_secs(5));
    let at_the_old = bench.set();
    assert_eq!(at_the_old, Err(Trouble::NoConnection), "it is a replica now");
    bench.end();
}

#[test]
fn a_release_is_told_to_subscribers() {
    let bench = Redis::new(1, settings(Persistence::None, 0));
    let heard = bench.run(|mut c| async move {
        c.subscribe(&super::core::channel_of(LOCK)).await?;
        c.run(Command::redisson_unlock("o")).await?;
        c.next_message().await
    });
    assert_eq!(heard, Ok(()));
    bench.end();
}
