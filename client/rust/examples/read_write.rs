//! A read-write lock: readers together, a writer alone, without overtaking.
//!
//! ```text
//! cargo run -p rowlock-client --example read_write
//! ```
//! With `ROWLOCK_ENDPOINTS=host:port,...` it runs on that cluster, also on Apache ZooKeeper.

#![allow(clippy::disallowed_methods)] // an application: what it does is not simulated

use bytes::Bytes;
use rowlock_client::{Acl, Client, CreateMode, Error};

mod support;
use support::{Stage, Story, unique};

/// The price that readers see: two znodes that belong together.
async fn read(client: &Client, at: &str) -> Result<(Bytes, Bytes), Error> {
    // On another node than the writer's, a reader who holds the lock sees all that was written under it
    // before.
    let net = client.get(&format!("{at}-net")).await?.data;
    let gross = client.get(&format!("{at}-gross")).await?.data;
    Ok((net.unwrap_or_default(), gross.unwrap_or_default()))
}

async fn write(client: &Client, at: &str, net: &str, gross: &str) -> Result<(), Error> {
    client.set(&format!("{at}-net"), Some(net.to_owned().into()), None).await?;
    client.set(&format!("{at}-gross"), Some(gross.to_owned().into()), None).await?;
    Ok(())
}

#[tokio::main]
pub async fn main() -> Story {
    let stage = Stage::set().await;
    let clients = [stage.client("alice").await?, stage.client("bob").await?, stage.client("carol").await?];
    let [alice, bob, carol] = &clients;
    let (name, price) = (unique("price"), format!("/{}", unique("price")));
    for part in ["net", "gross"] {
        alice.create(&format!("{price}-{part}"), None, CreateMode::Persistent, Acl::open()).await?;
    }

    // Readers hold it together.
    let first = alice.rwlock(&name).read().await?;
    let second = bob.rwlock(&name).read().await?;
    println!("alice and bob read at the same time");
    assert!(carol.rwlock(&name).try_write().await?.is_none());
    println!("carol cannot write meanwhile");

    // The queue is fair: a writer who waits is not starved by readers who come later; they stand behind him.
    let (writer, at) = (carol.clone(), price.clone());
    let writing = tokio::spawn({
        let lock = carol.rwlock(&name);
        async move {
            let guard = lock.write().await?;
            write(&writer, &at, "100", "119").await?;
            // Becomes a reader without letting a writer in between: later reads still see its own values.
            let reading = guard.downgrade().await.map_err(|kept| kept.error)?;
            let seen = read(&writer, &at).await?;
            Ok::<_, Error>((reading, seen))
        }
    });
    // Until she stands in the queue.
    while bob.rwlock(&name).try_read().await?.is_some() {
        tokio::task::yield_now().await;
    }
    println!("carol waits to write, so no new reader comes in");
    first.release().await?;
    second.release().await?;
    let (carols, seen) = writing.await??;
    println!("carol wrote and reads {seen:?}, still holding the lock");
    assert_eq!(seen, (Bytes::from("100"), Bytes::from("119")));

    // Two readers cannot both wait to become the writer: upgrading is a try, and gives the read guard back.
    let bobs = bob.rwlock(&name).read().await?;
    let bobs = match bobs.try_upgrade().await {
        Ok(_) => return Err("a writer beside a reader".into()),
        Err(kept) => kept.guard,
    };
    println!("bob cannot become the writer while carol reads");
    carols.release().await?;
    let writer = bobs.try_upgrade().await.map_err(|_| "nobody else is there")?;
    write(bob, &price, "200", "238").await?;
    println!("now he can, with token {}", writer.token());
    writer.release().await?;

    for part in ["net", "gross"] {
        alice.delete(&format!("{price}-{part}"), None).await?;
    }
    for client in &clients {
        client.close().await?;
    }
    Ok(())
}
