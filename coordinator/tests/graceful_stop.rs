//! A leader that is asked to stop: the others lead on at once, and no write that they were given is lost from sight.

mod support;

use std::collections::VecDeque;
use std::time::Duration;

use rowlock_coordinator::client::outbox::{self, Message};
use rowlock_coordinator::proposer::{Proposer, Submission};
use rowlock_coordinator::{Instant, SessionId};
use rowlock_env::task::{Shutdown, spawn};
use rowlock_env::time;
use rowlock_state::command::{Attachment, Command};
use support::{SOON, cluster};

/// Writes one after another until the word; gives how many, and how long the slowest took. None is lost.
async fn write(proposer: Proposer, stop: Shutdown) -> (u64, Duration) {
    let (reply_to, mut inbox) = outbox::channel();
    let (mut tag, mut slowest) = (0, Duration::ZERO);
    while !stop.is_triggered() {
        tag += 1;
        let begun = Instant::now();
        let submission = Submission {
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command: Command::CreateSession { password: [0; 16], timeout_ms: 60_000 },
            reply_to: reply_to.clone(),
            tag,
        };
        proposer.submit(submission).await.expect("the node runs");
        time::timeout(SOON, inbox.ready()).await.expect("an answer in time");
        let mut messages = VecDeque::new();
        inbox.take(&mut messages).expect("one at a time");
        let answered =
            matches!(&messages.make_contiguous()[..], [Message::Applied { tag: of, .. }] if *of == tag);
        assert!(answered, "write {tag} was lost from sight: {messages:?}");
        slowest = slowest.max(begun.elapsed());
    }
    (tag, slowest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_hands_over_and_no_write_of_the_other_nodes_is_lost_from_sight() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut nodes = cluster(folder.path()).await;
    let leader = nodes.remove(0);
    let stop = Shutdown::new();
    let writers: Vec<_> =
        nodes.iter().map(|node| spawn("writer", write(node.proposer(), stop.clone()))).collect();
    // In full swing when the leader goes.
    let swing = nodes[0].metrics();
    while swing.forwarded_total.get() < 50 {
        time::sleep(Duration::from_millis(1)).await;
    }
    let old = leader.status().borrow().leader;
    leader.shutdown().await;
    let mut status = nodes[0].status();
    let moved = status.wait_for(|status| status.leader.is_some() && status.leader != old);
    time::timeout(SOON, moved).await.expect("in time").expect("the node runs");
    let before = swing.forwarded_total.get() + swing.batches_total.get();
    while swing.forwarded_total.get() + swing.batches_total.get() < before + 50 {
        time::sleep(Duration::from_millis(1)).await;
    }
    stop.trigger();
    for writer in writers {
        let (count, slowest) = writer.await.expect("no write was lost");
        assert!(count > 0);
        println!("{count} writes, the slowest took {slowest:?}");
    }
    for node in nodes {
        node.shutdown().await;
    }
}
