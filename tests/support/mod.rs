//! What the tests share: a cluster of processes, and how they reach it.

pub mod certificates;
pub mod cluster;
pub mod command;
pub mod http;
pub mod load;
pub mod ports;
pub mod tools;
pub mod wire;

use std::fs;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

/// Polls until `condition` gives a value; panics with `what` after `limit`.
pub async fn eventually<T, F, Fut>(what: &str, limit: Duration, mut condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let start = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Writes a cluster.toml of one node, after the lines `settings`. Returns its HTTP address.
pub fn one_node(folder: &Path, settings: &str) -> String {
    let (client, peer, http) = (ports::address(), ports::address(), ports::address());
    let node = format!("[[node]]\nid = 1\nclient = \"{client}\"\npeer = \"{peer}\"\nhttp = \"{http}\"\n");
    fs::write(folder.join("cluster.toml"), format!("{settings}{node}")).unwrap();
    http
}
