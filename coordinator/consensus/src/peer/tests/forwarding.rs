//! Ordered streams of forwarded proposals.

use std::time::Duration;

use rowlock_env::net::Listener;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_state::command::Proposal;
use rowlock_types::limits::PEER_FORWARD_WINDOW_BATCHES;

use super::support::{PATIENCE, Service, listen_anywhere, pool, proposal};
use crate::peer::forward::SendError;
use crate::peer::{ForwardEvent, ForwardLink, PeerPool, Refusal};

/// In which the scripted node leads.
const TERM: u64 = 3;

fn link(pool: &PeerPool) -> ForwardLink {
    pool.peer(NodeId(2)).expect("is known").forward_link(TERM)
}

async fn next(link: &mut ForwardLink) -> ForwardEvent {
    time::timeout(PATIENCE, link.next()).await.expect("an event in time")
}

/// Waits until this number of proposals has been taken, one batch each, and nothing is left of them.
async fn taken(link: &mut ForwardLink, service: &Service, count: usize) {
    while service.script.lock().forwarded.len() < count {
        assert_eq!(next(link).await, ForwardEvent::Acked);
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
        link.send(vec![proposal(2 * request), proposal(2 * request + 1)]).expect("is queued");
    }
    taken(&mut link, &service, 400).await;
    assert_eq!(service.script.lock().forwarded, (0..400).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_link_is_for_the_leader_of_one_term() {
    let node = listen_anywhere(Service::new()).await;
    let mut link = pool(&node.address).peer(NodeId(2)).expect("is known").forward_link(TERM - 1);
    link.send(vec![proposal(1)]).expect("is queued");
    let refusal = Refusal::NotLeader { leader: Some(NodeId(9)) };
    let untaken = vec![vec![proposal(1)]];
    assert_eq!(next(&mut link).await, ForwardEvent::Refused { untaken, refusal });
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
        link.send(vec![proposal(request)]).expect("is queued");
    }
    service.gate.send(true);
    let (untaken, why) = loop {
        match next(&mut link).await {
            ForwardEvent::Acked => {}
            ForwardEvent::Refused { untaken, refusal } => break (untaken, refusal),
            ForwardEvent::Lost { error, .. } => panic!("lost: {error}"),
        }
    };
    assert_eq!((requests(&untaken), why), (vec![5, 6, 7, 8, 9], refusal));
    assert!(matches!(link.send(vec![proposal(10)]), Err(SendError::Ended(batch)) if batch.len() == 1));
    assert_eq!(
        service.script.lock().forwarded,
        [1, 2, 3, 4],
        "though only the fifth was refused by the service"
    );
    let more = time::timeout(Duration::from_millis(200), link.next()).await;
    assert!(more.is_err(), "it was the last event: {more:?}");
}

#[tokio::test]
async fn a_lost_connection_says_what_is_unknown_and_what_never_left() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let mut link = link(&pool(&node.address));
    link.send(vec![proposal(1)]).expect("is queued");
    assert_eq!(next(&mut link).await, ForwardEvent::Acked);
    service.gate.send(false);
    link.send(vec![proposal(2)]).expect("is queued");
    // The first call of it lets this one leave.
    let event = time::timeout(Duration::from_millis(200), link.next()).await;
    assert!(event.is_err(), "the gate is shut: {event:?}");
    link.send(vec![proposal(3)]).expect("is queued");
    node.tasks.stop().await;
    let ForwardEvent::Lost { unknown, unsent, error } = next(&mut link).await else { panic!("not lost") };
    assert!(error.may_have_happened());
    assert_eq!(requests(&[unknown, unsent.clone()].concat()), [2, 3], "in their order");
    assert!(!requests(&unsent).contains(&2), "it had left");
    assert!(matches!(link.send(vec![proposal(4)]), Err(SendError::Ended(_))));
}

#[tokio::test]
async fn a_link_that_never_connected_has_sent_nothing() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let pool = pool(&listener.local_addr().to_string());
    drop(listener);
    let mut link = link(&pool);
    link.send(vec![proposal(1)]).expect("is queued");
    let ForwardEvent::Lost { unknown, unsent, error } = next(&mut link).await else { panic!("not lost") };
    assert_eq!((requests(&unknown), requests(&unsent)), (vec![], vec![1]));
    assert!(!error.may_have_happened());
}

#[tokio::test]
async fn a_leader_that_does_not_take_batches_fills_the_window_and_no_more() {
    let service = Service::new();
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let mut link = link(&pool(&node.address));
    let window = PEER_FORWARD_WINDOW_BATCHES as u64;
    for request in 0..window {
        link.send(vec![proposal(request)]).expect("fits the window");
    }
    assert!(matches!(link.send(vec![proposal(window)]), Err(SendError::Full(batch)) if batch.len() == 1));
    service.gate.send(true);
    taken(&mut link, &service, PEER_FORWARD_WINDOW_BATCHES).await;
    link.send(vec![proposal(window)]).expect("there is room again");
    taken(&mut link, &service, PEER_FORWARD_WINDOW_BATCHES + 1).await;
    assert_eq!(service.script.lock().forwarded, (0..=window).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_link_outlives_a_leader_that_is_slow_but_alive() {
    let service = Service::new();
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let mut link = link(&pool(&node.address));
    link.send(vec![proposal(1)]).expect("is queued");
    // Longer than a silent connection lives: the pings are answered beside the batch that waits.
    let waited = time::timeout(Duration::from_millis(4_500), link.next()).await;
    assert!(waited.is_err(), "the link ended: {waited:?}");
    service.gate.send(true);
    assert_eq!(next(&mut link).await, ForwardEvent::Acked);
}
