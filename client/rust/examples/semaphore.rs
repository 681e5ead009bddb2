//! A semaphore: a limited number of holders over all processes, first come, first served.
//!
//! ```text
//! cargo run -p rowlock-client --example semaphore
//! ```
//! With `ROWLOCK_ENDPOINTS=host:port,...` it runs on that cluster, also on Apache ZooKeeper.

#![allow(clippy::disallowed_methods)] // an application: what it does is not simulated

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock_client::{Client, Error};

mod support;
use support::{Stage, Story, unique};

const DOWNLOADS: u32 = 12;
const AT_A_TIME: u32 = 3;

/// How many run now, and how many ever did at once.
#[derive(Default)]
struct Gauge {
    now: AtomicU32,
    most: AtomicU32,
}

async fn download(client: Client, name: String, gauge: Arc<Gauge>) -> Result<(), Error> {
    let permit = client.semaphore(&name, AT_A_TIME).acquire().await?;
    let now = gauge.now.fetch_add(1, Ordering::SeqCst) + 1;
    gauge.most.fetch_max(now, Ordering::SeqCst);
    // The work; dropped should the permit be lost.
    let _ = permit.run(tokio::time::sleep(Duration::from_millis(20))).await;
    gauge.now.fetch_sub(1, Ordering::SeqCst);
    // Dropping the permit would do as well, in the background.
    permit.release().await.map_err(|_| Error::NotHeld)
}

#[tokio::main]
pub async fn main() -> Story {
    let stage = Stage::set().await;
    let (alice, bob) = (stage.client("alice").await?, stage.client("bob").await?);
    let name = unique("downloads");

    // A permit belongs to its request: many tasks of one session are as good as many machines.
    let gauge = Arc::new(Gauge::default());
    let start = |number: u32| {
        let client = if number.is_multiple_of(2) { &alice } else { &bob };
        tokio::spawn(download(client.clone(), name.clone(), gauge.clone()))
    };
    let downloads: Vec<_> = (0..DOWNLOADS).map(start).collect();
    for download in downloads {
        download.await??;
    }
    let most = gauge.most.load(Ordering::SeqCst);
    println!("{DOWNLOADS} downloads, at most {most} at a time");
    assert!(most <= AT_A_TIME);

    // The server keeps the number of permits, so that all agree: a client with another number is
    // told.
    match bob.semaphore(&name, 5).try_acquire().await {
        Err(Error::LimitConflict { actual }) => println!("bob thinks that there are 5, and hears: {actual}"),
        other => return Err(format!("two limits: {other:?}").into()),
    }

    // Several permits come together or not at all, and who waits for many is not overtaken by those who want
    // few.
    let mut downloads = alice.semaphore(&name, AT_A_TIME);
    let two = downloads.acquire_many(2).await?;
    println!("alice has {}, {} left", two.count(), downloads.available().await?);
    assert!(bob.semaphore(&name, AT_A_TIME).try_acquire_many(2).await?.is_none());

    // More bandwidth: the limit may be changed while it is in use. 0 means: whatever it is.
    downloads.resize(4).await?;
    let more = bob.semaphore(&name, 0).acquire_many(2).await?;
    println!("with 4 permits bob gets {} beside her, {} left", more.count(), downloads.available().await?);
    assert_eq!(downloads.available().await?, 0);

    two.release().await?;
    more.release().await?;
    alice.close().await?;
    bob.close().await?;
    Ok(())
}
