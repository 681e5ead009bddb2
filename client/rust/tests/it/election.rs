//! The election: who leads, who is told, and how the lead is handed over.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use futures_core::Stream;
use rowlock_client::{
    Candidate, Client, Election, Error, Kept, Leadership, LostReason, ReleaseError, TransferError,
};
use rowlock_env::task::{self, Task};
use rowlock_proto::{OpCode, Request, SessionId};

use crate::cancel::poll_at_most;
use crate::fake::{Cut, Fake, Keeper};

const ELECTION: &str = "/locks/@elections/e";

/// Campaigns, and returns once the candidate stands in the queue.
async fn candidate(fake: &Fake, client: &Client, value: &str) -> Task<Result<Leadership, Error>> {
    let before = fake.world().children(ELECTION).len();
    let (election, value) = (client.election("e"), value.to_owned());
    let task = task::spawn("candidate", async move { election.campaign(value).await });
    fake.until("the candidate stands in the queue", |world| world.children(ELECTION).len() == before + 1)
        .await;
    task
}

async fn values(election: &Election) -> Vec<String> {
    election.candidates().await.unwrap().into_iter().map(|candidate| candidate.value).collect()
}

/// The value of the candidate that leads, once one does.
async fn led_by(election: &Election) -> String {
    loop {
        if let Some(leader) = election.leader().await.unwrap() {
            return leader.value;
        }
    }
}

fn named(candidates: &[Candidate], value: &str) -> Candidate {
    candidates.iter().find(|candidate| candidate.value == value).unwrap().clone()
}

#[tokio::test]
async fn the_leader_is_shown_with_its_token_session_and_path() {
    let fake = Fake::start().await;
    let (one, other) = (fake.client().await, fake.client().await);
    let first = one.election("e").campaign("one").await.unwrap();
    let leader = other.election("e").leader().await.unwrap().unwrap();
    assert_eq!((leader.token, leader.session), (first.token(), one.session_id()));
    assert_eq!(leader.path, first.path());
}

#[tokio::test]
async fn candidates_that_come_and_go_do_not_wake_observers() {
    let fake = Fake::start().await;
    let (leader, other, anybody) = (fake.client().await, fake.client().await, fake.client().await);
    let _leads = leader.election("e").campaign("leader").await.unwrap();
    let mut observer = anybody.election("e").observe();
    observer.next().await.unwrap();
    let session = anybody.session_id();
    let head = |(by, _, path): &(SessionId, OpCode, String)| *by == session && path.contains("-lock-");
    let watched = |world: &Keeper| world.requests().filter(head).count() >= 2;
    let waits = task::spawn("observer", async move { observer.next().await });
    fake.until("it watches the leader again", watched).await;
    for _ in 0..10 {
        let waiting = candidate(&fake, &other, "other").await;
        waiting.abort();
        fake.until("gone", |world| world.children(ELECTION).len() == 1).await;
    }
    assert!(!fake.world().events.contains_key(&session) && !waits.is_finished());
}

#[tokio::test]
async fn a_stream_of_leaders_ends_with_the_session() {
    let fake = Fake::start().await;
    let (one, anybody) = (fake.client().await, fake.client().await);
    let mut stream = pin!(anybody.election("e").observe().into_stream());
    let mut next = async || poll_fn(|cx| stream.as_mut().poll_next(cx)).await;
    assert_eq!(next().await, Some(Ok(None)));
    let _leads = one.election("e").campaign("one").await.unwrap();
    assert_eq!(next().await.unwrap().unwrap().unwrap().value, "one");
    fake.expire(&anybody);
    assert_eq!(next().await, Some(Err(Error::SessionExpired)));
    assert_eq!(next().await, None);
}

#[tokio::test]
async fn a_transfer_reaches_its_successor_through_those_in_between_with_rising_tokens() {
    let fake = Fake::start().await;
    let leader = fake.client().await;
    let first = leader.election("e").campaign("0").await.unwrap();
    let mut clients = Vec::new();
    let mut tasks = Vec::new();
    for value in ["1", "2", "3", "4"] {
        let client = fake.client().await;
        tasks.push(candidate(&fake, &client, value).await);
        clients.push(client);
    }
    let election = leader.election("e");
    let mut observer = election.observe();
    assert_eq!(observer.next().await.unwrap().unwrap().value, "0");
    let successor = named(&election.candidates().await.unwrap(), "3");
    let token = first.token();
    first.transfer_to(&successor).await.unwrap();
    let third = tasks.remove(2).await.unwrap().unwrap();
    assert!(third.token() > token && third.token() == successor.token);
    let told = loop {
        if let Some(told) = observer.next().await.unwrap() {
            break told;
        }
    };
    assert_eq!(told.value, "3", "somebody in between was taken for the leader");
    fake.until("all queue again", |world| world.children(ELECTION).len() == 4).await;
    assert_eq!(values(&election).await, ["3", "4", "1", "2"]);
    assert_eq!(leader.get(ELECTION).await.unwrap().data, Some("".into()), "the note is still there");
    let mut last = third.token();
    third.resign().await.unwrap();
    for waiting in [2, 0, 0] {
        let next = tasks.remove(waiting).await.unwrap().unwrap();
        assert!(next.token() > last);
        last = next.token();
        next.resign().await.unwrap();
    }
}

#[tokio::test]
async fn a_transfer_to_somebody_who_does_not_wait_changes_nothing() {
    let fake = Fake::start().await;
    let (leader, other) = (fake.client().await, fake.client().await);
    let election = leader.election("e");
    let leads = election.campaign("leader").await.unwrap();
    let ourselves = election.leader().await.unwrap().unwrap();
    let Err(TransferError::Kept(Kept { guard: leads, error: Error::NotWaiting })) =
        leads.transfer_to(&ourselves).await
    else {
        panic!("to itself")
    };
    let waiting = candidate(&fake, &other, "other").await;
    let gone = named(&election.candidates().await.unwrap(), "other");
    waiting.abort();
    fake.until("gone", |world| world.children(ELECTION).len() == 1).await;
    let Err(TransferError::Kept(Kept { guard: leads, error: Error::NotWaiting })) =
        leads.transfer_to(&gone).await
    else {
        panic!("to the dead")
    };
    let elsewhere = other.election("elsewhere").campaign("other").await.unwrap();
    let stranger = other.election("elsewhere").leader().await.unwrap().unwrap();
    let Err(TransferError::Kept(Kept { guard: leads, error: Error::NotWaiting })) =
        leads.transfer_to(&stranger).await
    else {
        panic!("to a stranger")
    };
    assert!(leads.is_held() && elsewhere.is_held());
    fake.expire(&leader);
    assert_eq!(leads.lost().await, LostReason::Expired);
    let Err(TransferError::Kept(kept)) = leads.transfer_to(&gone).await else { panic!("of the dead") };
    assert_eq!(kept.error, Error::SessionExpired);
}

#[tokio::test]
async fn when_the_successor_is_gone_the_first_leads_and_takes_the_note_down() {
    let fake = Fake::start().await;
    let (leader, one, two) = (fake.client().await, fake.client().await, fake.client().await);
    let election = leader.election("e");
    let leads = election.campaign("leader").await.unwrap();
    let (first, second) = (candidate(&fake, &one, "one").await, candidate(&fake, &two, "two").await);
    let successor = named(&election.candidates().await.unwrap(), "two");
    // The successor's session expires at the very moment at which the lead is given back.
    let session = two.session_id();
    fake.fault(Cut::Before, |request| matches!(request, Request::Delete { .. }));
    let transfer = task::spawn("transfer", async move { leads.transfer_to(&successor).await });
    fake.until("the note is left", |world| world.faults.is_empty()).await;
    fake.world().end_session(session);
    transfer.await.unwrap().unwrap();
    assert!(second.await.unwrap().is_err());
    let first = first.await.unwrap().unwrap();
    assert_eq!(leader.get(ELECTION).await.unwrap().data, Some("".into()), "the note is still there");
    assert_eq!(led_by(&election).await, "one");
    first.resign().await.unwrap();
}

#[tokio::test]
async fn a_transfer_survives_lost_connections() {
    for fault in [Cut::Before, Cut::AfterDone] {
        let fake = Fake::start().await;
        let (leader, one, two) = (fake.client().await, fake.client().await, fake.client().await);
        let election = leader.election("e");
        let leads = election.campaign("leader").await.unwrap();
        let (first, second) = (candidate(&fake, &one, "one").await, candidate(&fake, &two, "two").await);
        let successor = named(&election.candidates().await.unwrap(), "two");
        for _ in 0..2 {
            fake.fault(fault, |request| matches!(request, Request::Multi(_)));
            fake.fault(fault, |request| matches!(request, Request::Delete { .. }));
        }
        leads.transfer_to(&successor).await.unwrap();
        let second = second.await.unwrap().unwrap();
        assert_eq!(led_by(&election).await, "two", "{fault:?}");
        second.resign().await.unwrap();
        first.await.unwrap().unwrap().resign().await.unwrap();
        assert!(fake.world().children(ELECTION).is_empty());
    }
}

#[tokio::test]
async fn a_lead_is_lost_like_a_lock() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let leads = client.election("e").campaign("one").await.unwrap();
    assert_eq!(leads.run(async { 7 }).await, Ok(7));
    fake.world().delete(leads.path()).unwrap();
    assert_eq!(leads.lost().await, LostReason::Deleted);
    assert!(leads.run(async { 7 }).await.is_err());
    assert_eq!(leads.set_value("two").await, Err(Error::NotHeld));
    assert_eq!(leads.resign().await, Err(ReleaseError::NotHeld));
    let leads = client.election("e").campaign("one").await.unwrap();
    fake.expire(&client);
    assert_eq!(leads.lost().await, LostReason::Expired);
    assert_eq!(client.election("e").campaign("one").await.unwrap_err(), Error::SessionExpired);
}

#[tokio::test]
async fn a_campaign_given_up_after_any_number_of_polls_leaves_no_node() {
    let fake = Fake::start().await;
    let (client, other) = (fake.client().await, fake.client().await);
    let election = client.election("e");
    let leads = election.campaign("leader").await.unwrap();
    let waiting = candidate(&fake, &other, "other").await;
    let successor = named(&election.candidates().await.unwrap(), "other");
    // A note that our campaign will find, about a candidate that is gone then.
    let note = format!("successor={}", rowlock_proto::path::name(&successor.path));
    waiting.abort();
    leads.resign().await.unwrap();
    for polls in 0..100 {
        client.set(ELECTION, Some(note.clone().into()), None).await.unwrap();
        let leads = poll_at_most(election.campaign("me"), polls).await.is_some();
        client.sync("/").await.unwrap();
        fake.until("nothing is left", |world| world.children(ELECTION).is_empty()).await;
        if leads {
            assert!(polls > 4);
            assert_eq!(client.get(ELECTION).await.unwrap().data, Some("".into()));
            return;
        }
    }
    panic!("never got far");
}

#[tokio::test]
async fn a_campaign_with_a_timeout_ends_and_one_without_a_session_does_not_begin() {
    let fake = Fake::start().await;
    let (leader, client) = (fake.client().await, fake.client().await);
    let _leads = leader.election("e").campaign("leader").await.unwrap();
    let patience = Duration::from_millis(10);
    let error = client.election("e").campaign_timeout("other", patience).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    fake.until("gone", |world| world.children(ELECTION).len() == 1).await;
    assert!(matches!(client.election("").campaign("x").await, Err(Error::InvalidName(_))));
    assert!(matches!(client.election("").observe().next().await, Err(Error::InvalidName(_))));
    let other = client.clone();
    client.close().await.unwrap();
    assert_eq!(other.election("e").campaign("x").await.unwrap_err(), Error::Closed);
    assert_eq!(other.election("e").leader().await, Err(Error::Closed));
    assert_eq!(other.election("e").observe().next().await, Err(Error::Closed));
}
