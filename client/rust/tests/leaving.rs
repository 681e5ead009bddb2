//! Programs that return from `main` with a guard dropped, in all ways in which they may: the lock is free at
//! once, not when the session times out. This program starts itself, with the way as its argument, as a real
//! process.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rowlock_client::{Client, blocking};
use rowlock_testkit::Cluster;
use tokio::runtime::{Builder, Runtime};

/// How often each way is tried.
const TIMES: usize = 7;
/// No lock comes free because its session expires: a test does not take as long.
const SESSION: Duration = Duration::from_secs(60);
/// A free lock is granted within so long, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(15);
const WAYS: [&str; 5] = ["async", "async-static", "current-thread", "blocking", "blocking-static"];

/// What is in a static is never dropped.
static CLIENT: OnceLock<Client> = OnceLock::new();
static BLOCKING: OnceLock<blocking::Client> = OnceLock::new();
static RUNTIME: OnceLock<Runtime> = OnceLock::new();

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[..] {
        [_, way, endpoints] if WAYS.contains(&way.as_str()) => leave(way, endpoints),
        // Whatever a test runner says is for tests that have a name.
        _ => watch(),
    }
}

fn leave(way: &str, endpoints: &str) {
    let config = Client::builder().endpoints(endpoints).session_timeout(SESSION);
    let threads = || Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match way {
        "async" | "current-thread" => {
            let one = || Builder::new_current_thread().enable_all().build().unwrap();
            let runtime = if way == "async" { threads() } else { one() };
            runtime.block_on(async {
                let client = config.connect().await.unwrap();
                drop(CLIENT.get_or_init(|| client).mutex("m").lock().await.unwrap());
            });
        }
        "async-static" => {
            let runtime = RUNTIME.get_or_init(threads);
            let client = runtime.block_on(config.connect()).unwrap();
            let client = CLIENT.get_or_init(|| client);
            drop(runtime.block_on(client.mutex("m").lock()).unwrap());
        }
        "blocking" => {
            let client = blocking::Client::connect(config).unwrap();
            let _guard = client.mutex("m").lock().unwrap();
        }
        "blocking-static" => {
            let client = BLOCKING.get_or_init(|| blocking::Client::connect(config).unwrap());
            drop(client.mutex("m").lock().unwrap());
        }
        other => panic!("unknown way {other}"),
    }
}

/// The test: after each such program the lock is there.
fn watch() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let bounds = |config: &mut rowlock_testkit::NodeConfig| config.session.max_timeout_ms = 200_000;
        let cluster = Cluster::start_with(1, bounds).await;
        let client = cluster.client().await;
        for way in WAYS {
            for time in 1..=TIMES {
                let mut program = Command::new(std::env::current_exe().unwrap());
                let ended = program.args([way, &cluster.endpoints()]).status().unwrap();
                assert!(ended.success(), "{way}: {ended}");
                match client.mutex("m").lock_timeout(AT_ONCE).await {
                    Ok(guard) => guard.release().await.unwrap(),
                    Err(error) => panic!("{way}, time {time} of {TIMES}: the lock was kept: {error}"),
                }
            }
            println!("{way}: free at once, {TIMES} of {TIMES}");
        }
    });
}
