//! Sessions in a world: kept alive, expired, watches over reconnects.

use std::time::Duration;

use rowlock_env::time;

use super::PORT;
use super::core::{Reply, Request};
use super::server::{self, Storage};
use super::session::Session;
use crate::TTL;
use crate::testing::Bench;
use crate::wire::Meter;

fn start(bench: &Bench, storage: &Storage) {
    bench.world.boot(bench.servers[0]);
    bench.world.on(bench.servers[0], || server::start(storage.clone(), &Meter::off()));
}

/// Starts the service and two clients.
fn begin() -> (Bench, Storage) {
    let (bench, storage) = (Bench::new("zk", 1, 2), Storage::default());
    start(&bench, &storage);
    (bench, storage)
}

async fn open() -> Session {
    Session::open(&format!("zk1:{PORT}"), &Meter::off()).await.expect("opens")
}

fn create() -> Request {
    Request::Create { path: "/a".to_owned(), is_sequential: false }
}

#[test]
fn a_session_lives_until_its_client_dies() {
    let (bench, _) = begin();
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
    bench.end();
}

#[test]
fn an_event_arrives_after_the_reconnect() {
    let (bench, storage) = begin();
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
    bench.world.kill(bench.servers[0]).expect("no halt");
    bench.pass(Duration::from_secs(2));
    start(&bench, &storage);
    bench.pass(Duration::from_secs(5));
    assert!(holder.lock().is_some(), "its session outlives the outage");
    assert_eq!(*watcher.lock(), Some(true));
    bench.end();
}

#[test]
fn a_cut_off_client_knows_before_its_znode_is_deleted() {
    let (bench, _) = begin();
    let unsafe_after = bench.begin(0, async {
        let session = open().await;
        session.run(create()).await.expect("creates");
        let begun = time::now();
        session.unsafe_now().await;
        (begun.elapsed(), session.is_expired())
    });
    bench.pass(Duration::from_secs(1));
    bench.cut(bench.servers[0], bench.clients[0]);
    bench.pass(TTL * 2);
    let (after, was_expired) = unsafe_after.lock().take().expect("it noticed");
    assert!(after < TTL && !was_expired, "{after:?}");
    bench.end();
}
