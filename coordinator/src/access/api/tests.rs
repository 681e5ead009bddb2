//! Decisions of the API, on a node with a log of one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::task::spawn;
use rowlock_env::time;
use rowlock_proto::FencingToken;
use rowlock_proto::lock::{Mode, Owner, QueuePosition};
use rowlock_types::limits;

mod election;
mod several;
mod shares;
mod state_lock;
mod watch;
mod znode;

use rowlock_state::command::Command;
use tokio::sync::mpsc;

use super::*;
use crate::access::tests::Node;
use crate::node::delivery::outbox;
use crate::node::proposer::{Proposer, Submission};
use crate::node::zk::ClientContext;
use crate::node::zk::tests::node::{Log, config};

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
async fn repeated_acquire_finds_its_position_and_late_copy_takes_none() {
    let node = Node::start().await;
    let api = node.api();
    // Stands in for another node: same state, no requests in memory.
    let other = node.api();
    let secret = open(&api).await;
    let first = token(&api, &secret, "a").await;
    assert_eq!(token(&other, &secret, "a").await, first);
    assert!(matches!(
        place(&api, wanted(&secret, "b", 0)).await,
        Ok(QueuePosition::Busy { holder: Some(_), .. })
    ));
    assert_eq!(other.verify(&caller(), &lock(), first).await, Ok(true));
    let which = Which::Token(first);
    assert_eq!(other.release(&caller(), &lock(), (&secret, &which)).await, Ok(true));
    assert_eq!(api.release(&caller(), &lock(), (&secret, &which)).await, Ok(true), "again");
    assert_eq!(api.verify(&caller(), &lock(), first).await, Ok(false));
    assert_eq!(
        place(&other, wanted(&secret, "a", 0)).await,
        Ok(QueuePosition::Absent),
        "a late copy takes nothing"
    );
    assert!(token(&api, &secret, "c").await > first);
    drop((api, other));
    node.stop().await;
}

#[tokio::test]
async fn waiting_acquire_is_granted_after_release_or_lease_end() {
    let node = Node::start().await;
    let api = Arc::new(node.api());
    let (one, two, three) = (open(&api).await, open(&api).await, open(&api).await);
    let first = token(&api, &one, "1").await;
    let begin = |secret: &Secret, id: &str| {
        let (api, wanted) = (api.clone(), wanted(secret, id, 5_000));
        spawn("waits", async move { place(&api, wanted).await })
    };
    let waiters = || {
        let state = node.context.replica.state.read();
        state.lock_queue("/locks/ci/deploy").map_or(0, |queue| queue.waiter_count())
    };
    let reached = async |count: usize| {
        while waiters() < count {
            time::sleep(Duration::from_millis(1)).await;
        }
    };
    let second = begin(&two, "2");
    reached(1).await;
    let third = begin(&three, "3");
    reached(2).await;
    assert_eq!(node.context.metrics.api_waits.get(), 2);
    let released = api.release(&caller(), &lock(), (&one, &Which::Token(first))).await;
    assert_eq!(released, Ok(true));
    let Ok(QueuePosition::Held(second)) = second.await.unwrap() else { panic!("it was next") };
    assert!(second.token > first);
    api.close(&caller(), &two).await.unwrap();
    api.close(&caller(), &two).await.unwrap();
    let Ok(QueuePosition::Held(third)) = third.await.unwrap() else { panic!("it was next") };
    assert!(third.token > second.token);
    assert_eq!(api.keep_alive(&caller(), &two).await, Err(Refusal::LeaseOver));
    assert_eq!(node.context.metrics.api_waits.get(), 0);
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn timed_out_acquire_stays_queued_until_released() {
    let node = Node::start().await;
    let api = node.api();
    let (one, two) = (open(&api).await, open(&api).await);
    let first = token(&api, &one, "1").await;
    let waiting = place(&api, wanted(&two, "2", 20)).await;
    assert!(
        matches!(&waiting, Ok(QueuePosition::Waiting { ahead: 1, holder: Some(holder), .. }) if holder.token == first)
    );
    assert_eq!(place(&api, wanted(&two, "2", 20)).await, waiting, "it is the same place");
    let which = Which::Request("2".to_owned());
    assert_eq!(api.release(&caller(), &lock(), (&two, &which)).await, Ok(true));
    assert_eq!(api.release(&caller(), &lock(), (&two, &which)).await, Ok(true), "again");
    let never = Which::Request("never".to_owned());
    assert_eq!(api.release(&caller(), &lock(), (&two, &never)).await, Ok(false));
    assert_eq!(place(&api, wanted(&two, "2", 20)).await, Ok(QueuePosition::Absent));
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn retry_after_lost_reply_finds_the_single_position() {
    let node = Node::start().await;
    let api = node.api();
    let secret = open(&api).await;
    node.log(Log::Loses);
    assert_eq!(place(&api, wanted(&secret, "1", 0)).await, Err(Refusal::Unknown));
    node.log(Log::Runs);
    token(&api, &secret, "1").await;
    node.stop_serving();
    assert_eq!(place(&api, wanted(&secret, "1", 0)).await, Err(Refusal::NotServing));
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn repeated_release_gets_the_result_of_the_first() {
    let node = Node::start().await;
    let (api, other) = (node.api(), node.api());
    let (one, two) = (open(&api).await, open(&api).await);
    let token = token(&api, &one, "1").await;
    let waiting = place(&api, wanted(&two, "2", 20)).await;
    assert!(matches!(waiting, Ok(QueuePosition::Waiting { .. })));
    let (held, place) = (Which::Token(token), Which::Request("2".to_owned()));
    for (secret, which) in [(&one, &held), (&two, &place), (&one, &Which::Request("1".to_owned()))] {
        let said = [api.release(&caller(), &lock(), (secret, which)).await];
        let again = [other.release(&caller(), &lock(), (secret, which)).await];
        let is_other_name = matches!(which, Which::Request(id) if id == "1");
        assert_eq!((said, again), ([Ok(!is_other_name)], [Ok(!is_other_name)]), "{which:?}");
    }
    let token = self::token(&api, &one, "3").await;
    assert_eq!(api.force(&caller(), &lock(), token).await, Ok(true));
    let which = Which::Token(token);
    for _ in 0..2 {
        assert_eq!(api.release(&caller(), &lock(), (&one, &which)).await, Ok(false), "it was forced");
    }
    drop((api, other));
    node.stop().await;
}

#[tokio::test]
async fn waiting_request_does_not_keep_its_lease_alive() {
    let mut short = config();
    short.session.min_timeout_ms = 200;
    let node = Node::with(short, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    let api = node.api();
    let holder = open(&api).await;
    token(&api, &holder, "1").await;
    let brief = api.open(&caller(), 200).await.unwrap();
    assert_eq!(brief.ttl_ms, 200);
    let waited = place(&api, wanted(&brief.secret, "2", 60_000)).await;
    assert!(
        matches!(waited, Ok(QueuePosition::Waiting { .. })),
        "it was answered within half of its lease: {waited:?}"
    );
    let waits = || {
        let state = node.context.replica.state.read();
        state.lock_queue("/locks/ci/deploy").is_some_and(|queue| queue.waiter_count() > 0)
    };
    while waits() {
        time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(api.keep_alive(&caller(), &brief.secret).await, Err(Refusal::LeaseOver));
    assert_eq!(api.keep_alive(&caller(), &holder).await, Ok(10_000));
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn acquire_returns_only_after_the_keepalive_acknowledgment() {
    let node = Node::start().await;
    let api = Arc::new(node.api());
    let wanted = wanted(&open(&api).await, "1", 0);
    node.leader_in_contact.send(false);
    let asked = spawn("asks", {
        let api = api.clone();
        async move { place(&api, wanted).await }
    });
    let state = || node.context.replica.state.read();
    while state().lock_queue("/locks/ci/deploy").is_none_or(|queue| queue.holder_count() == 0) {
        time::sleep(Duration::from_millis(1)).await;
    }
    time::sleep(Duration::from_millis(50)).await;
    assert!(!asked.is_finished(), "its lease may end before the answer says");
    node.leader_in_contact.send(true);
    assert!(matches!(asked.await.unwrap(), Ok(QueuePosition::Held(_))));
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn excess_waiters_and_wrong_secrets_are_refused() {
    let node = Node::start().await;
    let api = Api::bounded(node.parts(), 0);
    let secret = open(&api).await;
    assert!(matches!(place(&api, wanted(&secret, "1", 1)).await, Err(Refusal::Full(_))));
    token(&api, &secret, "1").await;
    let revealed = secret.reveal();
    let changed = if revealed.ends_with('0') { "1" } else { "0" };
    let wrong: Secret = format!("{}{changed}", &revealed[..47]).parse().unwrap();
    assert_eq!(api.keep_alive(&caller(), &wrong).await, Err(Refusal::WrongSecret));
    let unknown: Secret = format!("{:016x}{}", 77, &revealed[16..]).parse().unwrap();
    assert_eq!(api.keep_alive(&caller(), &unknown).await, Err(Refusal::LeaseOver));
    assert_eq!(revealed.parse::<Secret>().unwrap(), secret);
    assert!(!format!("{secret:?}").contains(&revealed[16..]), "no log has the password");
    assert!(revealed[1..].parse::<Secret>().is_err() && "".parse::<Secret>().is_err());
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn acquire_without_lease_opens_one_and_closes_it_if_busy() {
    let node = Node::start().await;
    let api = node.api();
    let new = || {
        let by = For::New(10_000);
        AcquireOptions { by, request_id: None, ..wanted(&"0".repeat(48).parse().unwrap(), "-", 0) }
    };
    let acquired = api.acquire(&caller(), &[Part::exclusive(&lock())], new()).await.unwrap();
    let secret = acquired.secret.expect("it is new");
    assert_eq!(api.keep_alive(&caller(), &secret).await, Ok(10_000));
    let busy = api.acquire(&caller(), &[Part::exclusive(&lock())], new()).await.unwrap();
    assert!(busy.secret.is_none() && matches!(only(busy), QueuePosition::Busy { .. }));
    assert_eq!(node.context.replica.state.read().counts().sessions, 1);
    let named = AcquireOptions { request_id: Some("x".to_owned()), ..new() };
    assert!(matches!(api.acquire(&caller(), &[Part::exclusive(&lock())], named).await, Err(Refusal::Bad(_))));
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
            let early = (round + 1).saturating_sub(page::PAGE_LEN / 2);
            for late in [early, round] {
                let late = place(&apis[(round + 1) % 2], wanted(&secret, &late.to_string(), 0)).await;
                assert_eq!(late, Ok(QueuePosition::Absent), "in round {round}");
            }
        }
    }
    let kept = node.context.replica.state.read().kept_writes(secret.session).count();
    assert!((page::PAGE_LEN..=2 * page::PAGE_LEN).contains(&kept), "{kept} are kept");
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
    for round in 0..=page::PAGE_LEN / 2 {
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
    let open = spawn("waits", async move { api.open(&caller(), 10_000).await.map(drop) });
    time::sleep(Duration::from_millis(200)).await;
    let passed_on = spawn("passes-on", async move {
        while let Some(submission) = waiting.recv().await {
            assert!(real.submit(submission).await.is_ok());
        }
    });
    assert_eq!(open.await.unwrap(), Ok(()));
    passed_on.await.unwrap();
    node.stop().await;
}
