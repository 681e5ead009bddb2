//! Monitor that fails over, like Sentinel. The monitor pings the primary. When the primary has been silent
//! for a while, the monitor promotes the most advanced reachable replica. Clients ask the monitor for the
//! primary's address.
//!
//! One process stands for a quorum of Sentinels; the monitor is on the larger side of every partition.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::{task, time};

use super::core::Answer;
use super::{Ask, PORT, Redis, Reply};
use crate::wire::{Meter, Peer, PeerId, Redial, Service, serve};

/// `down-after-milliseconds`; Sentinel's default is 30 s, most operators set less.
const DOWN_AFTER: Duration = Duration::from_secs(5);
const PING_EVERY: Duration = Duration::from_millis(500);
const PING_TIMEOUT: Duration = Duration::from_secs(1);

struct Monitor {
    primary: Mutex<String>,
}

/// Starts the monitor on this host. The first of `servers` is the primary.
pub fn start(servers: Vec<String>, meter: &Meter) {
    let first = servers.first().expect("there is a server").clone();
    let monitor = Arc::new(Monitor { primary: Mutex::new(first) });
    drop(task::spawn("monitor.watch", watch(monitor.clone(), servers)));
    drop(task::spawn("monitor.serve", serve(format!("0.0.0.0:{PORT}"), monitor, meter.clone())));
}

async fn watch(monitor: Arc<Monitor>, servers: Vec<String>) {
    let mut last_heard = time::now();
    loop {
        time::sleep(PING_EVERY).await;
        let primary = monitor.primary.lock().clone();
        if query(&primary, Ask::Info).await.is_some() {
            last_heard = time::now();
            // Corrects servers that follow another primary, above all an old primary that has come back.
            for other in servers.iter().filter(|s| **s != primary) {
                let _ = query(other, Ask::Follow(Some(primary.clone()))).await;
            }
        } else if last_heard.elapsed() >= DOWN_AFTER
            && let Some(best) = most_advanced(&servers, &primary).await
            && query(&best, Ask::Follow(None)).await.is_some()
        {
            *monitor.primary.lock() = best;
            last_heard = time::now();
        }
    }
}

async fn most_advanced(servers: &[String], primary: &str) -> Option<String> {
    let mut best: Option<(u64, String)> = None;
    for server in servers.iter().filter(|s| *s != primary) {
        if let Some(Reply::Info { offset, .. }) = query(server, Ask::Info).await
            && best.as_ref().is_none_or(|(most, _)| offset > *most)
        {
            best = Some((offset, server.clone()));
        }
    }
    best.map(|(_, server)| server)
}

/// Sends one request on a new connection: requests are rare, and a broken connection never blocks the next
/// one.
async fn query(server: &str, question: Ask) -> Option<Reply> {
    Redial::<Redis>::new(server, PING_TIMEOUT, &Meter::off()).call(question).await.ok()
}

impl Service for Monitor {
    type Protocol = Redis;

    async fn handle(&self, _: &Peer<Redis>, ask: Ask) -> Reply {
        match ask {
            Ask::Primary => Reply::Address(self.primary.lock().clone()),
            _ => Reply::Answer(Answer::Refused("a monitor".to_owned())),
        }
    }

    fn gone(&self, _: PeerId) {}
}
