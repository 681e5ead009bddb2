//! Rolling restarts without a pause, under locks of clients that do nothing but hold them.

use std::time::Instant;

use rowlock_client::Client;

use crate::support::cluster::{Cluster, FAST};
use crate::support::secs;

const HOLDERS: usize = 6;
const RESTARTS: usize = 20;

/// Idle clients ask for so little that most of their connections end before the next heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_holders_keep_their_locks_through_twenty_restarts_in_a_row() {
    let mut cluster = Cluster::start(3, FAST).await;
    let mut held = Vec::new();
    for number in 0..HOLDERS {
        let config = Client::builder().endpoints(&cluster.endpoints()).session_timeout(secs(4));
        let client = config.connect_timeout(secs(30)).connect().await.unwrap();
        held.push(client.mutex(format!("idle/{number}")).lock().await.unwrap());
    }
    let (began, ids) = (Instant::now(), cluster.ids());
    for restart in 0..RESTARTS {
        cluster.restart(ids[restart % ids.len()]).await;
        for (number, guard) in held.iter().enumerate() {
            assert!(guard.is_held(), "holder {number} lost its lock in restart {restart}");
        }
    }
    println!("{RESTARTS} restarts in {:.1?}", began.elapsed());
    for guard in held {
        guard.release().await.unwrap();
    }
}
