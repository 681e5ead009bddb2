//! Graceful stop of a leader: the other nodes continue at once, and no forwarded write gets an unknown
//! outcome.

use std::collections::VecDeque;
use std::time::Duration;

use crate::support::{cluster, in_time};
use rowlock_coordinator::node::delivery::outbox::{self, Message};
use rowlock_coordinator::node::proposer::{Proposer, Submission};
use rowlock_coordinator::{Instant, SessionId};
use rowlock_env::task::{Shutdown, spawn};
use rowlock_env::time;
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command};

/// Writes sequentially until `stop`. Returns the number of writes and the longest duration. Panics if a write
/// gets no reply.
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
            command: Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: 60_000 },
            reply_to: reply_to.clone(),
            tag,
            received: begun,
        };
        in_time("a place in the queue", proposer.submit(submission)).await.expect("the node runs");
        in_time("an answer", inbox.ready()).await;
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
async fn stopping_leader_hands_over_without_unknown_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut nodes = cluster(folder.path()).await;
    let leader = nodes.remove(0);
    // Sums both nodes, since the leader may change during the test.
    let metrics: Vec<_> = nodes.iter().map(|node| node.metrics()).collect();
    let done = || -> u64 {
        metrics.iter().map(|metrics| metrics.forwarded_total.get() + metrics.batches_total.get()).sum()
    };
    let fifty_more = async || {
        let enough = done() + 50;
        while done() < enough {
            time::sleep(Duration::from_millis(1)).await;
        }
    };
    let stop = Shutdown::new();
    let writers: Vec<_> =
        nodes.iter().map(|node| spawn("writer", write(node.proposer(), stop.clone()))).collect();
    in_time("writes before the stop", fifty_more()).await;
    let stopped = leader.status().borrow().node;
    in_time("the end of the leader", leader.shutdown()).await;
    let mut status = nodes[0].status();
    let moved = status.wait_for(|status| status.leader.is_some_and(|leader| leader != stopped));
    in_time("another leader", moved).await.expect("the node runs");
    in_time("writes after the stop", fifty_more()).await;
    stop.trigger();
    for writer in writers {
        let (count, slowest) = writer.await.expect("no write was lost");
        assert!(count > 0);
        println!("{count} writes, the slowest took {slowest:?}");
    }
    for node in nodes {
        in_time("the end of a node", node.shutdown()).await;
    }
}
