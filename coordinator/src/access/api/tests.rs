//! Decisions of the API, on a node with a log of one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::task::{self, spawn};
use rowlock_env::time;
use rowlock_proto::FencingToken;
use rowlock_proto::lock::{Owner, QueuePosition};

use crate::limits;

mod state_lock;
mod watch;

use rowlock_state::command::Command;
use tokio::sync::mpsc;

use super::*;
use crate::access::tests::Node;
use crate::node::delivery::outbox;
use crate::node::proposer::{Proposer, Submission};
use crate::node::zk::ClientContext;

fn caller() -> Caller {
    Caller { address: SocketAddr::from(([127, 0, 0, 1], 7)), identities: Arc::default(), trace: None }
}

fn lock() -> LockName {
    "ci/deploy".parse().unwrap()
}

fn wanted(secret: &Secret, id: &str, wait_ms: u64) -> AcquireOptions {
    AcquireOptions {
        by: For::Lease(secret.clone()),
        request_id: Some(id.to_owned()),
        wait: Duration::from_millis(wait_ms),
        owner: Owner::Unnamed,
        label: "job".to_owned(),
        lock_delay_ms: 0,
        min_hold_ms: 0,
        max_hold_ms: 0,
    }
}

/// Returns the queue position of an acquire of one lock.
fn only(acquired: Acquired) -> QueuePosition {
    let [position] = <[QueuePosition; 1]>::try_from(acquired.positions).unwrap();
    position
}

async fn open(api: &Api) -> Secret {
    api.open(&caller(), 10_000).await.unwrap().secret
}

async fn place(api: &Api, wanted: AcquireOptions) -> Result<QueuePosition, Refusal> {
    api.acquire(&caller(), &[Part::exclusive(&lock())], wanted).await.map(only)
}

async fn token(api: &Api, secret: &Secret, id: &str) -> FencingToken {
    match place(api, wanted(secret, id, 0)).await {
        Ok(QueuePosition::Held(claim)) => claim.token,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn requests_in_progress_are_counted() {
    let node = Node::start().await;
    let api = node.api();
    let (holder, waiter) = (open(&api).await, open(&api).await);
    token(&api, &holder, "1").await;
    let in_progress = || api.context.metrics.api_requests_in_progress.get();
    assert_eq!(in_progress(), 0);
    let mut waiting = Box::pin(place(&api, wanted(&waiter, "2", 60_000)));
    tokio::select! {
        position = &mut waiting => panic!("the lock is held: {position:?}"),
        () = async { while api.context.metrics.api_waits.get() == 0 { task::yield_now().await } } => {}
    }
    assert_eq!(in_progress(), 1);
    drop(waiting);
    assert_eq!(in_progress(), 0);
    node.stop().await;
}

#[tokio::test]
async fn excess_waiters_are_refused() {
    let node = Node::start().await;
    let api = Api::bounded(node.parts(), 0);
    let secret = open(&api).await;
    assert!(matches!(place(&api, wanted(&secret, "1", 1)).await, Err(Refusal::Full(_))));
    token(&api, &secret, "1").await;
    assert!(!format!("{secret:?}").contains(&secret.reveal()[16..]), "no log has the password");
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn late_copies_take_nothing_after_3000_acquires_of_one_lease() {
    let node = Node::start().await;
    let apis = [node.api(), node.api()];
    let secret = open(&apis[0]).await;
    let mut last = FencingToken(0);
    for round in 0..3_000_usize {
        let (api, id) = (&apis[round % 2], round.to_string());
        let token = token(api, &secret, &id).await;
        assert!(token > last);
        last = token;
        let released = api.release(&caller(), &lock(), (&secret, &Which::Token(token))).await;
        assert_eq!(released, Ok(true));
        if round % 50 == 0 {
            // Releases also occupy page entries.
            let early = (round + 1).saturating_sub(request_id::PAGE_LEN / 2);
            for late in [early, round] {
                let late = place(&apis[(round + 1) % 2], wanted(&secret, &late.to_string(), 0)).await;
                assert_eq!(late, Ok(QueuePosition::Absent), "in round {round}");
            }
        }
    }
    let kept = node.context.replica.state.read().kept_writes(secret.session).count();
    assert!((request_id::PAGE_LEN..=2 * request_id::PAGE_LEN).contains(&kept), "{kept} are kept");
    drop(apis);
    node.stop().await;
}

#[tokio::test]
async fn waiting_acquire_survives_the_beginning_of_a_page() {
    let node = Node::start().await;
    let api = Arc::new(node.api());
    // Waits for at most half of the lease's TTL; the rounds are shorter even on a slow machine.
    let open = async || api.open(&caller(), 40_000).await.unwrap().secret;
    let (other, secret) = (open().await, open().await);
    let first = token(&api, &other, "1").await;
    let waits = spawn("waits", {
        let (api, wanted) = (api.clone(), wanted(&secret, "waits", 60_000));
        async move { place(&api, wanted).await }
    });
    let attachment = || node.context.replica.state.read().session(secret.session).unwrap().attachment;
    let (before, elsewhere) = (attachment(), "elsewhere".parse::<LockName>().unwrap());
    // Each round uses two page entries: the acquire and its release.
    for round in 0..=request_id::PAGE_LEN / 2 {
        let wanted = wanted(&secret, &round.to_string(), 0);
        let acquired = api.acquire(&caller(), &[Part::exclusive(&elsewhere)], wanted).await.unwrap();
        let QueuePosition::Held(claim) = only(acquired) else { panic!("it is free") };
        let which = Which::Token(claim.token);
        assert_eq!(api.release(&caller(), &elsewhere, (&secret, &which)).await, Ok(true));
    }
    assert!(attachment() > before, "a page was begun");
    assert_eq!(api.release(&caller(), &lock(), (&other, &Which::Token(first))).await, Ok(true));
    assert!(matches!(waits.await.unwrap(), Ok(QueuePosition::Held(_))), "it is its turn");
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn write_waits_for_its_share_of_a_full_queue_until_its_deadline() {
    let node = Node::start().await;
    let (queue, mut waiting) = mpsc::channel(1);
    let context = ClientContext { proposer: Proposer::new(queue), ..node.context.clone() };
    let real = node.context.proposer.clone();
    let first = Submission::of_node(Command::Noop, outbox::channel().0);
    assert!(context.proposer.try_submit(first).is_ok());
    let api = node.api_of(context);
    let begun = time::now();
    let refused = api.open(&caller(), 10_000).await.map(drop);
    assert_eq!(refused, Err(Refusal::Full("too many writes wait at this node")));
    assert!(begun.elapsed() >= limits::API_ANSWER_MAX, "{:?}", begun.elapsed());
    let waiting_caller = caller();
    let mut open = Box::pin(api.open(&waiting_caller, 10_000));
    assert!(time::timeout(Duration::from_millis(200), open.as_mut()).await.is_err(), "the queue is full");
    let passed_on = spawn("passes-on", async move {
        while let Some(submission) = waiting.recv().await {
            assert!(real.submit(submission).await.is_ok());
        }
    });
    assert_eq!(open.await.map(drop), Ok(()));
    drop(api);
    passed_on.await.unwrap();
    node.stop().await;
}

#[tokio::test]
async fn znode_bytes_in_transfer_are_bounded() {
    let node = Node::start().await;
    let api = node.api();
    let first = api.room(limits::API_ANSWERS_MAX_BYTES).unwrap();
    assert!(matches!(api.room(1), Err(Refusal::Full(_))));
    assert!(api.room(0).is_ok());
    drop(first);
    assert!(api.room(limits::API_ANSWERS_MAX_BYTES).is_ok(), "it is given back");
    drop(api);
    node.stop().await;
}
