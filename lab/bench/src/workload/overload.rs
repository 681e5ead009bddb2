//! Load beyond the capacity: requests arrive at a given rate, whatever their outcome (an open loop), and an
//! answer after its deadline counts for nothing. A client with the largest number of calls under way refuses
//! further requests: without this bound, deadlines run out in the program's own queue. The result is the
//! goodput as a part of the capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use rowlock_client::{Acl, Client, CreateMode};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::phase::{Times, gather};
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

const CLIENTS: usize = 64;
/// Calls of each client under way while the capacity is measured.
const WIDTH: usize = 32;
/// Bound on a client's calls under way under overload.
const UNDER_WAY: usize = 128;
/// Deadline after which an answer is worthless.
const DEADLINE: Duration = Duration::from_secs(1);
/// Interval at which a client sends due requests.
const TICK: Duration = Duration::from_millis(5);
const DATA: &[u8] = &[7; 100];

/// Runs one trial with `percent` of the capacity, which is measured first.
///
/// # Errors
/// The servers cannot be reached, or refuse.
pub async fn run(servers: &Servers, percent: u64, round: u32, times: Times) -> Result<Trial> {
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        let client = Client::builder().endpoints(&servers.addresses.join(",")).connect().await?;
        let path = format!("/overload-{round}-{percent}-{n}");
        client.create(&path, None, CreateMode::Ephemeral, Acl::open()).await?;
        clients.push((client, path));
    }
    closed_loop(&clients, times.warm_up).await?;
    let capacity = closed_loop(&clients, times.measured).await?;
    let offered = capacity * percent as f64 / 100.0;
    let (good, late, latency) = open_loop(&clients, offered, times.measured).await?;
    for (client, _) in clients {
        client.close().await?;
    }
    let goodput = good as f64 / times.measured.as_secs_f64();
    Ok(Trial::new(System::Rowlock, "overload", percent, round)
        .with("capacity_per_s", capacity)
        .with("offered_per_s", offered)
        .with("goodput_per_s", goodput)
        .with("goodput_of_capacity", goodput / capacity)
        .with("late_or_refused_per_s", late as f64 / times.measured.as_secs_f64())
        .with("good_p50_ms", latency.ms(0.5))
        .with("good_p99_ms", latency.ms(0.99)))
}

async fn write(client: &Client, path: &str) -> Result<(), rowlock_client::Error> {
    client.set(path, Some(Bytes::from_static(DATA)), None).await.map(drop)
}

/// Returns the writes per second while each client always has calls under way.
async fn closed_loop(clients: &[(Client, String)], lasts: Duration) -> Result<f64> {
    let begun = Instant::now();
    let mut all = JoinSet::new();
    for (client, path) in clients.iter().flat_map(|client| std::iter::repeat_n(client, WIDTH)) {
        let (client, path) = (client.clone(), path.clone());
        all.spawn(async move {
            let mut written = 0_u64;
            while begun.elapsed() < lasts {
                write(&client, &path).await?;
                written += 1;
            }
            Ok(written)
        });
    }
    let written: u64 = gather(all).await?.into_iter().sum();
    Ok(written as f64 / begun.elapsed().as_secs_f64())
}

#[derive(Default)]
struct Counts {
    good: AtomicU64,
    late: AtomicU64,
}

/// Sends `per_second` requests for `lasts`, and waits for the last answers. Returns the number of answers in
/// time, the number of late answers, and the latency of the answers in time.
async fn open_loop(
    clients: &[(Client, String)],
    per_second: f64,
    lasts: Duration,
) -> Result<(u64, u64, Latency)> {
    let counts = Arc::new(Counts::default());
    let each = per_second / clients.len() as f64;
    let mut all = JoinSet::new();
    for (client, path) in clients {
        let (client, path, counts) = (client.clone(), path.clone(), counts.clone());
        all.spawn(async move {
            let (begun, mut sent, mut calls) = (Instant::now(), 0_u64, JoinSet::new());
            let (mut ticks, mut latency) = (interval(TICK), Latency::default());
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while begun.elapsed() < lasts {
                ticks.tick().await;
                let due = (each * begun.elapsed().as_secs_f64()) as u64;
                let room = UNDER_WAY.saturating_sub(calls.len()) as u64;
                let refused = (due - sent).saturating_sub(room);
                counts.late.fetch_add(refused, Relaxed);
                for _ in sent + refused..due {
                    let (client, path, counts) = (client.clone(), path.clone(), counts.clone());
                    calls.spawn(async move {
                        let asked = Instant::now();
                        let answer = timeout(DEADLINE, write(&client, &path)).await;
                        // A busy program may see the answer before the end of the deadline.
                        let took = asked.elapsed();
                        let is_good = matches!(answer, Ok(Ok(()))) && took <= DEADLINE;
                        let count = if is_good { &counts.good } else { &counts.late };
                        count.fetch_add(1, Relaxed);
                        is_good.then_some(took)
                    });
                }
                sent = due;
                while let Some(call) = calls.try_join_next() {
                    call?.iter().for_each(|took| latency.record(*took));
                }
            }
            while let Some(call) = calls.join_next().await {
                call?.iter().for_each(|took| latency.record(*took));
            }
            Ok(latency)
        });
    }
    let mut latency = Latency::default();
    gather(all).await?.iter().for_each(|of_one| latency.add(of_one));
    Ok((counts.good.load(Relaxed), counts.late.load(Relaxed), latency))
}
