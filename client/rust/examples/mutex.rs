//! A mutex between processes: who holds it works, who waits knows behind whom, who leaves the queue leaves
//! nothing.
//!
//! ```text
//! cargo run -p rowlock-client --example mutex
//! ```
//! With `ROWLOCK_ENDPOINTS=host:port,...` it runs on that cluster, also on Apache ZooKeeper.

#![allow(clippy::disallowed_methods)] // an application: what it does is not simulated

use std::time::Duration;

use rowlock_client::{Client, Error};

mod support;
use support::{Stage, Story, unique};

/// A worker takes the lock, works, and gives it back.
async fn work(client: Client, name: String) -> Result<String, Error> {
    let guard = client.mutex(&name).lock().await?;
    // `run` drops the work at the moment the lock is lost: no other client can hold it while this runs.
    let done = guard.run(async { format!("held with fencing token {}", guard.token()) }).await;
    // Not to be ignored: `NotHeld` means that others may have worked meanwhile.
    let released = guard.release().await;
    Ok(match (done, released) {
        (Ok(line), Ok(())) => line,
        (Err(lost), _) => format!("stopped in the middle: {lost}"),
        (_, Err(error)) => format!("not sure: {error}"),
    })
}

#[tokio::main]
pub async fn main() -> Story {
    let stage = Stage::set().await;
    let (alice, bob) = (stage.client("alice").await?, stage.client("bob").await?);
    let name = unique("orders/42");

    // A handle costs nothing: no traffic until it is locked.
    let mutex = alice.mutex(&name);
    let guard = mutex.lock().await?;
    println!("alice holds {name}, token {}", guard.token());

    // Busy is not an error, and a try leaves nothing behind.
    let tried = bob.mutex(&name).try_lock().await?;
    println!("bob tries: {}", if tried.is_some() { "got it" } else { "busy" });
    assert!(tried.is_none());

    // One total timeout, whatever happens in between; the error says behind whom.
    match bob.mutex(&name).lock_timeout(Duration::from_secs(1)).await {
        Err(Error::Timeout { position: Some(ahead), .. }) => {
            println!("bob waits a second: {ahead} before him")
        }
        other => return Err(format!("bob was to wait in vain: {other:?}").into()),
    }

    // Waiting is a future: dropping it, here by `select!`, leaves the queue at once.
    let his = bob.mutex(&name);
    tokio::select! {
        _ = his.lock() => return Err("two holders".into()),
        () = async {} => println!("bob had something better to do"),
    }

    // Now he waits in earnest, and is granted the lock the moment it is free.
    let next = tokio::spawn(work(bob.clone(), name.clone()));
    let first = guard.token();
    guard.release().await?;
    println!("bob: {}", next.await??);

    // Every later holder has a larger token: storage that remembers the largest can refuse who is late.
    let guard = mutex.lock().await?;
    println!("alice again, token {}", guard.token());
    assert!(guard.token() > first);
    // A guard that is dropped is given back in the background: right for early returns and panics.
    drop(guard);

    alice.close().await?;
    bob.close().await?;
    Ok(())
}
