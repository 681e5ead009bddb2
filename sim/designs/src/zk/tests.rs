//! Sessions in a world: kept alive, expired, watches over reconnects.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time;
use rowlock_world::executor::Simulation;
use rowlock_world::time::HostId;

use super::PORT;
use super::core::{Reply, Request};
use super::server::{self, Storage};
use super::session::Session;
use crate::TTL;
use crate::wire::Meter;

struct Bench {
    world: Simulation,
    zk: HostId,
    clients: [HostId; 2],
    storage: Storage,
}

impl Bench {
    fn new() -> Bench {
        let world = Simulation::new(1, false);
        let zk = world.add_host("zk", "zookeeper", Ipv4Addr::new(10, 0, 0, 1));
        let clients =
            [1, 2].map(|n| world.add_host(&format!("client{n}"), "client", Ipv4Addr::new(10, 0, 1, n)));
        let bench = Bench { world, zk, clients, storage: Storage::default() };
        bench.start();
        bench.clients.iter().for_each(|client| bench.world.boot(*client));
        bench
    }

    fn start(&self) {
        self.world.boot(self.zk);
        self.world.on(self.zk, || server::start(self.storage.clone(), &Meter::off()));
    }

    fn pass(&self, time: Duration) {
        self.world.run_until(self.world.now() + time).expect("no halt");
    }

    /// Starts `work` on a client and returns the slot of its result.
    fn begin<T: Send + 'static>(
        &self,
        client: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Arc<Mutex<Option<T>>> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        self.world.spawn(self.clients[client], "test", async move {
            let it = work.await;
            *slot.lock() = Some(it);
        });
        result
    }
}

async fn open() -> Session {
    Session::open(&format!("zk:{PORT}"), &Meter::off()).await.expect("opens")
}

fn create() -> Request {
    Request::Create { path: "/a".to_owned(), is_sequential: false }
}

#[test]
fn a_session_lives_until_its_client_dies() {
    let bench = Bench::new();
    let _holding = bench.begin(0, async {
        let session = open().await;
        session.run(create()).await.expect("creates");
        std::future::pending::<()>().await;
    });
    bench.pass(TTL * 3);
    let watching = bench.begin(1, async {
        let session = open().await;
        let gone = session.interest("/a");
        let exists = session.run(Request::Exists { path: "/a".to_owned(), watch: true }).await;
        let begun = time::now();
        gone.await.expect("told");
        (exists, begun.elapsed())
    });
    bench.pass(Duration::from_secs(1));
    bench.world.kill(bench.clients[0]).expect("no halt");
    bench.pass(TTL * 2);
    let (exists, waited) = watching.lock().take().expect("was told");
    assert_eq!(exists, Ok(Reply::Exists));
    assert!(waited > TTL / 2, "E7: not at once but after the session timeout: {waited:?}");
    bench.world.end_of_world().expect("no halt");
}

#[test]
fn an_event_arrives_after_the_reconnect() {
    let bench = Bench::new();
    let holder = bench.begin(0, async {
        let session = open().await;
        session.run(create()).await.expect("creates");
        time::sleep(Duration::from_secs(4)).await;
        while session.run(Request::Delete { path: "/a".to_owned() }).await != Ok(Reply::Done) {
            time::sleep(Duration::from_millis(100)).await;
        }
    });
    let watcher = bench.begin(1, async {
        time::sleep(Duration::from_secs(1)).await;
        let session = open().await;
        let gone = session.interest("/a");
        session.run(Request::Exists { path: "/a".to_owned(), watch: true }).await.expect("there");
        gone.await.is_ok()
    });
    bench.pass(Duration::from_secs(3));
    bench.world.kill(bench.zk).expect("no halt");
    bench.pass(Duration::from_secs(2));
    bench.start();
    bench.pass(Duration::from_secs(5));
    assert!(holder.lock().is_some(), "its session outlives the outage");
    assert_eq!(*watcher.lock(), Some(true));
    bench.world.end_of_world().expect("no halt");
}

#[test]
fn a_cut_off_client_knows_before_its_znode_is_deleted() {
    let bench = Bench::new();
    let unsafe_after = bench.begin(0, async {
        let session = open().await;
        session.run(create()).await.expect("creates");
        let begun = time::now();
        session.unsafe_now().await;
        (begun.elapsed(), session.is_expired())
    });
    bench.pass(Duration::from_secs(1));
    for (from, to) in [(bench.zk, bench.clients[0]), (bench.clients[0], bench.zk)] {
        bench.world.network().cut(from, to);
    }
    bench.pass(TTL * 2);
    let (after, was_expired) = unsafe_after.lock().take().expect("it noticed");
    assert!(after < TTL && !was_expired, "{after:?}");
    bench.world.end_of_world().expect("no halt");
}
