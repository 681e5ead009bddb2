//! Disks that are slow, not dead: every flush of both followers takes two seconds.

use std::fs;
use std::time::Instant;

use bytes::Bytes;
use rowlock_frames::raw::RawClient;
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::{Acl, CreateMode, Request, Version};

use crate::support::cluster::Cluster;
use crate::support::secs;
use crate::support::tools::preloaded;

/// Of holders, which send a ping a second.
const HOLDER_MS: i32 = 4_000;
/// Of writers, which send nothing while a write waits for its flushes.
const WRITER_MS: i32 = 30_000;
const SLOW_FOR: u64 = 40;

/// [`RawClient`] never reconnects, so each client fails where its connection ends or its session expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_flushes_of_both_followers_cut_off_no_client_and_lose_no_lock() {
    let mut it = Cluster::start(3, "").await;
    let library = preloaded(&it.folder, "slow_flush.c");
    let slow = it.folder.join("slow");
    fs::create_dir(&slow).unwrap();
    it.environment =
        vec![("LD_PRELOAD".into(), library.into()), ("SLOW_FLUSHES".into(), slow.clone().into())];
    for id in it.ids() {
        it.restart(id).await;
    }

    let leader = it.leader().await;
    let mut holders = Vec::new();
    for id in it.ids() {
        for number in 0..2 {
            let mut holder =
                RawClient::attach(it.endpoint(id), if number == 0 { WRITER_MS } else { HOLDER_MS }).await;
            let path = format!("/held-{id}-{number}");
            let (acl, flags) = (Some(Acl::shared_open()), CreateMode::Ephemeral.flags());
            holder
                .call(Request::Create(Create { path: path.clone(), data: None, acl, flags }))
                .await
                .unwrap();
            holders.push((holder, path, id));
        }
    }
    for id in it.ids().into_iter().filter(|id| *id != leader) {
        fs::write(slow.join(it.pid(id).to_string()), "").unwrap();
    }

    let until = Instant::now() + secs(SLOW_FOR);
    let clients = holders.into_iter().enumerate().map(|(number, (mut client, path, _))| {
        tokio::spawn(async move {
            let mut written = 0;
            while Instant::now() < until {
                // One of the two clients at each node writes, the other one only holds.
                if number % 2 == 0 {
                    let (path, data) = (path.clone(), Some(Bytes::from_static(b"x")));
                    client
                        .call(Request::SetData(SetData { path, data, version: Version::ANY }))
                        .await
                        .unwrap();
                    written += 1;
                } else {
                    client.call(Request::Ping).await.unwrap();
                    tokio::time::sleep(secs(1)).await;
                }
            }
            (client, written)
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut written = 0;
    let mut connected = Vec::new();
    for client in clients {
        let (client, by_it) = client.await.expect("no client is cut off");
        written += by_it;
        connected.push(client);
    }
    println!("{written} writes in {SLOW_FOR} s");
    assert!(written >= 6, "{written} writes: two seconds for a flush are no reason to stop");
    assert_eq!(it.leader().await, leader);
}
