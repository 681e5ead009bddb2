//! Several locks at once: all or none, so that opposite orders do no harm; and what happens if they are taken
//! singly.
//!
//! ```text
//! cargo run -p rowlock-client --example multi_lock
//! ```
//! With `ROWLOCK_ENDPOINTS=host:port,...` it runs on that cluster. The end of the story, deadlock detection,
//! is told on Rowlock only.

#![allow(clippy::disallowed_methods)] // an application: what it does is not simulated

use rowlock_client::{Acl, Client, CreateMode, Error, Owner};

mod support;
use support::{Stage, Story, unique};

const TRANSFERS: usize = 20;

async fn balance(client: &Client, account: &str) -> Result<i64, Error> {
    let data = client.get(&format!("/{account}")).await?.data;
    let text = String::from_utf8_lossy(&data.unwrap_or_default()).into_owned();
    text.parse().map_err(|_| Error::UnexpectedData(account.to_owned()))
}

/// Moves one coin, under the locks of both accounts.
async fn transfer(client: &Client, from: &str, to: &str) -> Result<(), Error> {
    // The places in both queues are taken in one command: a client that takes them in the opposite order is
    // before us in both queues, or behind us in both.
    let guard = client.lock_all([from, to]).await?;
    for (account, change) in [(from, -1), (to, 1)] {
        let new = balance(client, account).await? + change;
        client.set(&format!("/{account}"), Some(new.to_string().into()), None).await?;
    }
    guard.release().await.map_err(|_| Error::NotHeld)
}

async fn transfers(client: Client, from: String, to: String) -> Result<(), Error> {
    for _ in 0..TRANSFERS {
        transfer(&client, &from, &to).await?;
    }
    Ok(())
}

#[tokio::main]
pub async fn main() -> Story {
    let stage = Stage::set().await;
    let (alice, bob) = (stage.client("alice").await?, stage.client("bob").await?);
    let (savings, current) = (unique("savings"), unique("current"));
    for account in [&savings, &current] {
        alice.create(&format!("/{account}"), Some("100".into()), CreateMode::Persistent, Acl::open()).await?;
    }

    // Both at once, in opposite directions.
    let there = tokio::spawn(transfers(alice.clone(), savings.clone(), current.clone()));
    let back = tokio::spawn(transfers(bob.clone(), current.clone(), savings.clone()));
    there.await??;
    back.await??;
    alice.sync("/").await?;
    let (left, right) = (balance(&alice, &savings).await?, balance(&alice, &current).await?);
    println!("{} transfers in opposite orders: {left} and {right}", 2 * TRANSFERS);
    assert_eq!((left, right), (100, 100));

    // All or none: one busy lock is enough for a try to leave nothing behind.
    let held = bob.mutex(&current).lock().await?;
    assert!(alice.multi([&savings, &current]).try_lock().await?.is_none());
    assert!(bob.mutex(&savings).try_lock().await?.is_some());
    println!("one of two is busy: neither is taken");
    held.release().await?;

    // Who takes locks singly, in opposite orders, would wait for ever. With a declared owner the server sees
    // it, and refuses the request that would close the circle.
    let (one, two) = (Owner::Named(1), Owner::Named(2));
    let first = match alice.mutex(&savings).request().owner(one).lock().await {
        Err(Error::Unsupported(_)) => return Ok(()), // not Rowlock
        first => first?,
    };
    let second = bob.mutex(&current).request().owner(two).lock().await?;
    let waiting = alice.mutex(&current).request().owner(one);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    // Until she waits.
    let queue = format!("/locks/{current}");
    while bob.get_children(&queue).await?.names.len() < 2 {
        tokio::task::yield_now().await;
    }
    match bob.mutex(&savings).request().owner(two).lock().await {
        Err(Error::Deadlock { cycle }) => {
            let names: Vec<&str> = cycle.iter().map(|party| party.label.as_str()).collect();
            println!("bob is told: {}, and then bob", names.join(" waits for "));
        }
        other => return Err(format!("a circle: {other:?}").into()),
    }
    second.release().await?; // who is refused gives way
    waiting.await??.release().await?;
    first.release().await?;
    println!("bob gave way, and alice got both");

    for account in [&savings, &current] {
        alice.delete(&format!("/{account}"), None).await?;
    }
    alice.close().await?;
    bob.close().await?;
    Ok(())
}
