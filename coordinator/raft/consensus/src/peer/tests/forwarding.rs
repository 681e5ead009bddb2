//! Ordered streams of forwarded proposals.

use std::time::Duration;

use rowlock_env::net::Listener;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_state::command::Proposal;
use rowlock_transport::limits::PEER_FORWARD_WINDOW_BATCHES;

use super::support::{PATIENCE, Service, listen_anywhere, pool, proposal};
use crate::peer::{ForwardEvent, ForwardLink, PeerPool, Refusal};

/// In which the scripted node leads.
const TERM: u64 = 3;

fn link(pool: &PeerPool) -> ForwardLink {
    pool.peer(NodeId(2)).expect("is known").forward_link(TERM)
}

async fn next(link: &mut ForwardLink) -> ForwardEvent {
    time::timeout(PATIENCE, link.next()).await.expect("an event in time")
}

/// Sends a batch of these requests as soon as there is room.
async fn send(link: &mut ForwardLink, requests: impl IntoIterator<Item = u64>) {
    while !link.has_room() {
        assert_eq!(next(link).await, ForwardEvent::Moved);
    }
    link.send(requests.into_iter().map(proposal).collect()).expect("it fits a frame");
}

/// Waits for the last event of a link.
async fn end(link: &mut ForwardLink) -> ForwardEvent {
    loop {
        match next(link).await {
            ForwardEvent::Moved => {}
            end => break end,
        }
    }
}

/// Waits until this number of proposals has been taken, one batch each, and nothing is left of them.
async fn taken(link: &mut ForwardLink, service: &Service, count: usize) {
    while service.script.lock().forwarded.len() < count {
        assert_eq!(next(link).await, ForwardEvent::Moved);
    }
}

fn requests(batches: &[Vec<Proposal>]) -> Vec<u64> {
    batches.iter().flatten().map(|proposal| proposal.origin.request).collect()
}

#[tokio::test]
async fn batches_arrive_in_order_and_are_acknowledged() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let mut link = link(&pool(&node.address));
    for request in 0..200 {
        send(&mut link, [2 * request, 2 * request + 1]).await;
    }
    taken(&mut link, &service, 400).await;
    assert_eq!(service.script.lock().forwarded, (0..400).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_link_is_for_the_leader_of_one_term() {
    let node = listen_anywhere(Service::new()).await;
    let mut link = pool(&node.address).peer(NodeId(2)).expect("is known").forward_link(TERM - 1);
    send(&mut link, [1]).await;
    let refusal = Refusal::NotLeader { leader: Some(NodeId(9)) };
    let untaken = vec![vec![proposal(1)]];
    assert_eq!(end(&mut link).await, ForwardEvent::Refused { untaken, refusal });
}

#[tokio::test]
async fn after_a_refusal_nothing_more_is_taken() {
    let service = Service::new();
    let refusal = Refusal::NotLeader { leader: Some(NodeId(3)) };
    service.script.lock().refuse_from = Some((5, refusal.clone()));
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let mut link = link(&pool(&node.address));
    for request in 1..=9 {
        send(&mut link, [request]).await;
    }
    service.gate.send(true);
    let ForwardEvent::Refused { untaken, refusal: why } = end(&mut link).await else { panic!("not refused") };
    assert_eq!((requests(&untaken), why), (vec![5, 6, 7, 8, 9], refusal));
    assert!(!link.has_room(), "it has ended");
    assert_eq!(
        service.script.lock().forwarded,
        [1, 2, 3, 4],
        "though only the fifth was refused by the service"
    );
    let more = time::timeout(Duration::from_millis(200), link.next()).await;
    assert!(more.is_err(), "it was the last event: {more:?}");
}

#[tokio::test]
async fn a_lost_connection_gives_back_what_the_leader_may_have() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let mut link = link(&pool(&node.address));
    send(&mut link, [1]).await;
    taken(&mut link, &service, 1).await;
    while link.is_waiting() {
        assert_eq!(next(&mut link).await, ForwardEvent::Moved);
    }
    service.gate.send(false);
    send(&mut link, [2]).await;
    send(&mut link, [3]).await;
    node.tasks.stop().await;
    let ForwardEvent::Lost { unknown, error } = end(&mut link).await else { panic!("not lost") };
    assert!(error.may_have_happened() && !link.has_room());
    assert_eq!(requests(&unknown), [2, 3], "in their order");
}

#[tokio::test]
async fn a_link_that_never_connected_has_sent_nothing() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let pool = pool(&listener.local_addr().to_string());
    drop(listener);
    let mut link = link(&pool);
    assert!(!link.has_room());
    let ForwardEvent::Lost { unknown, error } = next(&mut link).await else { panic!("not lost") };
    assert!(unknown.is_empty() && !error.may_have_happened());
}

#[tokio::test]
async fn a_stuck_leader_fills_at_most_the_window() {
    let service = Service::new();
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let mut link = link(&pool(&node.address));
    let window = PEER_FORWARD_WINDOW_BATCHES as u64;
    send(&mut link, [0]).await;
    for request in 1..window {
        assert!(link.has_room(), "{request} fits the window");
        send(&mut link, [request]).await;
    }
    assert!(!link.has_room());
    service.gate.send(true);
    send(&mut link, [window]).await;
    taken(&mut link, &service, PEER_FORWARD_WINDOW_BATCHES + 1).await;
    assert_eq!(service.script.lock().forwarded, (0..=window).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_link_outlives_a_leader_that_is_slow_but_alive() {
    let service = Service::new();
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let mut link = link(&pool(&node.address));
    send(&mut link, [1]).await;
    // Longer than a silent connection lives: the pings are answered beside the batch that waits.
    let ended = time::timeout(Duration::from_millis(4_500), end(&mut link)).await;
    assert!(ended.is_err(), "the link ended: {ended:?}");
    service.gate.send(true);
    taken(&mut link, &service, 1).await;
}
