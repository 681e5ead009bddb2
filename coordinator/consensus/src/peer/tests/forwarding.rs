//! Ordered streams of forwarded proposals.

use std::time::Duration;

use rowlock_env::net::Listener;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_types::limits::PEER_FORWARD_WINDOW_BATCHES;
use tokio::sync::mpsc;

use super::support::{PATIENCE, Service, listen_anywhere, pool, proposal};
use crate::peer::forward::{BatchSeq, SendError};
use crate::peer::{ForwardEvent, ForwardLink, PeerPool, Refusal};

/// In which the scripted node leads.
const TERM: u64 = 3;

fn link(pool: &PeerPool) -> (ForwardLink, mpsc::Receiver<ForwardEvent>) {
    let (events, told) = mpsc::channel(PEER_FORWARD_WINDOW_BATCHES);
    (pool.peer(NodeId(2)).expect("is known").forward_link(TERM, events), told)
}

async fn next(events: &mut mpsc::Receiver<ForwardEvent>) -> ForwardEvent {
    time::timeout(PATIENCE, events.recv()).await.expect("an event in time").expect("an event")
}

async fn acked(events: &mut mpsc::Receiver<ForwardEvent>, through: BatchSeq) {
    loop {
        match next(events).await {
            ForwardEvent::Acked { through: so_far } if so_far < through => {}
            ForwardEvent::Acked { through: so_far } if so_far == through => return,
            other => panic!("unexpected: {other:?}"),
        }
    }
}

#[tokio::test]
async fn batches_arrive_in_order_and_are_acknowledged() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let pool = pool(&node.address);
    let (mut link, mut events) = link(&pool);
    for request in 0..200 {
        let batch = vec![proposal(2 * request), proposal(2 * request + 1)];
        let (seq, given_back) = link.send(batch.clone()).expect("is queued");
        assert_eq!((seq, given_back), (BatchSeq(request + 1), batch));
    }
    acked(&mut events, BatchSeq(200)).await;
    assert_eq!(service.script.lock().forwarded, (0..400).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_link_is_for_the_leader_of_one_term() {
    let node = listen_anywhere(Service::new()).await;
    let (events, mut told) = mpsc::channel(PEER_FORWARD_WINDOW_BATCHES);
    let pool = pool(&node.address);
    let mut link = pool.peer(NodeId(2)).expect("is known").forward_link(TERM - 1, events);
    link.send(vec![proposal(1)]).expect("is queued");
    let refusal = Refusal::NotLeader { leader: Some(NodeId(9)) };
    assert_eq!(next(&mut told).await, ForwardEvent::Refused { from: BatchSeq(1), refusal });
}

#[tokio::test]
async fn after_a_refusal_nothing_more_is_taken() {
    let service = Service::new();
    let refusal = Refusal::NotLeader { leader: Some(NodeId(3)) };
    service.script.lock().refuse_from = Some((5, refusal.clone()));
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let pool = pool(&node.address);
    let (mut link, mut events) = link(&pool);
    for request in 1..=9 {
        link.send(vec![proposal(request)]).expect("is queued");
    }
    service.gate.send(true);
    let last = loop {
        match next(&mut events).await {
            ForwardEvent::Acked { through } => assert!(through < BatchSeq(5)),
            last => break last,
        }
    };
    assert_eq!(last, ForwardEvent::Refused { from: BatchSeq(5), refusal });
    assert!(matches!(link.send(vec![proposal(10)]), Err(SendError::Ended(batch)) if batch.len() == 1));
    assert_eq!(
        service.script.lock().forwarded,
        [1, 2, 3, 4],
        "though only the fifth was refused by the service"
    );
    assert_eq!(time::timeout(PATIENCE, events.recv()).await, Ok(None), "it was the last event");
}

#[tokio::test]
async fn a_lost_connection_says_what_is_unknown_and_what_never_left() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let pool = pool(&node.address);
    let (mut link, mut events) = link(&pool);
    link.send(vec![proposal(1)]).expect("is queued");
    acked(&mut events, BatchSeq(1)).await;
    service.gate.send(false);
    link.send(vec![proposal(2)]).expect("is queued");
    link.send(vec![proposal(3)]).expect("is queued");
    node.tasks.stop().await;
    let ForwardEvent::Lost { unknown, unsent, .. } = next(&mut events).await else { panic!("not lost") };
    assert_eq!(unknown, BatchSeq(2));
    assert!(unsent >= unknown && unsent <= BatchSeq(4), "{unsent:?}");
    assert!(matches!(link.send(vec![proposal(4)]), Err(SendError::Ended(_))));
}

#[tokio::test]
async fn a_link_that_never_connected_has_sent_nothing() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let pool = pool(&listener.local_addr().to_string());
    drop(listener);
    let (mut link, mut events) = link(&pool);
    let _ = link.send(vec![proposal(1)]);
    let ForwardEvent::Lost { unknown, unsent, error } = next(&mut events).await else { panic!("not lost") };
    assert_eq!((unknown, unsent), (BatchSeq(1), BatchSeq(1)));
    assert!(!error.may_have_happened());
}

#[tokio::test]
async fn a_leader_that_does_not_take_batches_fills_the_window_and_no_more() {
    let service = Service::new();
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let pool = pool(&node.address);
    let (mut link, mut events) = link(&pool);
    let window = PEER_FORWARD_WINDOW_BATCHES as u64;
    for request in 0..window {
        link.send(vec![proposal(request)]).expect("fits the window");
    }
    assert!(matches!(link.send(vec![proposal(window)]), Err(SendError::Full(batch)) if batch.len() == 1));
    service.gate.send(true);
    acked(&mut events, BatchSeq(window)).await;
    let (seq, _) = link.send(vec![proposal(window)]).expect("there is room again");
    assert_eq!(seq, BatchSeq(window + 1));
    acked(&mut events, BatchSeq(window + 1)).await;
    assert_eq!(service.script.lock().forwarded, (0..=window).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_link_outlives_a_leader_that_is_slow_but_alive() {
    let service = Service::new();
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let pool = pool(&node.address);
    let (mut link, mut events) = link(&pool);
    link.send(vec![proposal(1)]).expect("is queued");
    // Longer than a silent connection lives: the pings are answered beside the batch that waits.
    let waited = time::timeout(Duration::from_millis(4_500), events.recv()).await;
    assert!(waited.is_err(), "the link ended: {waited:?}");
    service.gate.send(true);
    acked(&mut events, BatchSeq(1)).await;
}
