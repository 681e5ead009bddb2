//! The session: states, reconnects, ends.

use std::time::Duration;

use rowlock_client::{Client, ClientBuilder, ConnectError, Error, PreferLeader, SessionState};
use rowlock_env::net::Listener;
use rowlock_env::{task, time};
use rowlock_proto::Request;

use crate::fake::keeper::ANNOUNCED;
use crate::fake::{Cut, Fake, SHORT};
use crate::mutex::LOCK;
use crate::served::waiter;

#[tokio::test]
async fn a_lost_connection_suspends_and_the_session_goes_on() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mut states = client.states();
    assert_eq!(client.state(), SessionState::Connected);
    let session = client.session_id();
    fake.drop_connections();
    states.wait_for(|state| matches!(state, SessionState::Suspended { .. })).await.unwrap();
    states.wait_for(|state| *state == SessionState::Connected).await.unwrap();
    assert_eq!(client.session_id(), session);
    assert!(fake.world().has_session(session));
}

#[tokio::test]
async fn a_request_in_flight_fails_with_an_unknown_outcome_and_later_ones_wait_for_the_connection() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.fault(Cut::Before, |request| matches!(request, Request::Sync(_)));
    let error = client.sync("/").await.unwrap_err();
    assert_eq!(error, Error::ConnectionLoss);
    assert!(error.may_have_happened() && error.is_retryable());
    client.sync("/").await.unwrap();
}

#[tokio::test]
async fn an_expired_session_is_told_and_final_and_renewed_on_request() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mut states = client.states();
    let waiting = client.exists_watched("/never").await.unwrap().watch;
    fake.expire(&client);
    states.wait_for(|state| *state == SessionState::Expired).await.unwrap();
    let mut waiting = waiting;
    assert_eq!(waiting.changed().await.unwrap_err(), Error::SessionExpired);
    assert_eq!(client.get("/x").await.unwrap_err(), Error::SessionExpired);
    assert_eq!(client.valid_until(), None);
    let fresh = client.renew().await.unwrap();
    assert_eq!(fresh.state(), SessionState::Connected);
}

#[tokio::test]
async fn a_silent_server_is_left_for_another_one() {
    let (silent, live) = (Fake::start().await, Fake::start().await);
    silent.silence();
    let endpoints = format!("{},{}", silent.endpoint, live.endpoint);
    let config = Client::builder().endpoints(&endpoints).session_timeout(SHORT);
    // Whichever is tried first.
    for _ in 0..4 {
        let client = config.clone().connect().await.unwrap();
        assert!(live.world().has_session(client.session_id()));
    }
}

#[tokio::test]
async fn a_connect_string_is_enough_to_connect() {
    let fake = Fake::start().await;
    let client = Client::connect(format!("{}/app", fake.endpoint)).await.unwrap();
    let states = client.states();
    assert_eq!(states.current(), SessionState::Connected);
    assert_eq!(client.mutex("l").server_path(), "/app/locks/l");
    client.close().await.unwrap();
}

#[tokio::test]
async fn the_states_of_a_session_end_with_the_final_one() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mut states = client.states();
    client.close().await.unwrap();
    assert_eq!(states.next().await, Some(SessionState::Closed));
    assert_eq!(states.next().await, None);
    assert_eq!(states.wait_for(|state| *state == SessionState::Connected).await, None);
    assert_eq!(client.states().wait_for(|state| state.is_final()).await, Some(SessionState::Closed));
}

#[tokio::test]
async fn connecting_to_nobody_fails_in_time_and_says_why() {
    let fake = Fake::start().await;
    let config = fake.config().connect_timeout(Duration::from_millis(200));
    drop(fake);
    match config.connect().await.unwrap_err() {
        ConnectError::Unreachable { endpoints, source: Some(last), .. } => {
            assert!(endpoints.contains("127.0.0.1") && last.endpoint().contains("127.0.0.1"), "{last}");
            let cause = std::error::Error::source(&last).unwrap();
            assert!(cause.is::<std::io::Error>(), "{cause}");
        }
        other => panic!("{other}"),
    }
    assert!(matches!(Client::builder().connect().await, Err(ConnectError::Config(_))));
}

#[tokio::test]
async fn a_close_serves_what_was_asked_before_and_ends_the_session_on_the_server() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let session = client.session_id();
    let guard = client.mutex("l").lock().await.unwrap();
    let earlier = client.clone();
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let client = earlier.clone();
            task::spawn("call", async move { client.sync("/").await })
        })
        .collect();
    tokio::task::yield_now().await;
    client.close().await.unwrap();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert!(!fake.world().has_session(session));
    assert!(fake.world().children("/locks/l").is_empty() && !guard.is_held());
    assert_eq!(client.state(), SessionState::Closed);
    assert_eq!(client.sync("/").await.unwrap_err(), Error::Closed);
}

#[tokio::test]
async fn a_close_whose_reply_is_lost_still_closes() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let session = client.session_id();
    fake.fault(Cut::Before, |request| *request == Request::CloseSession);
    client.close().await.unwrap();
    assert!(!fake.world().has_session(session));
}

#[tokio::test]
async fn credentials_are_presented_on_every_connection() {
    let fake = Fake::start().await;
    let client = fake.config().auth("digest", "u:p").connect().await.unwrap();
    client.add_auth("digest", "v:q").await.unwrap();
    assert_eq!(fake.world().auths.len(), 2);
    fake.drop_connections();
    while client.sync("/").await.is_err() {}
    assert_eq!(fake.world().auths.len(), 4);
}

#[tokio::test]
async fn a_refused_credential_closes_the_session() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    assert_eq!(client.add_auth("nonsense", "x").await, Err(Error::AuthFailed));
    assert_eq!(client.state(), SessionState::Closed);
    assert_eq!(client.sync("/").await.unwrap_err(), Error::AuthFailed);
}

#[tokio::test]
async fn heartbeats_stop_when_the_last_handle_is_gone() {
    let fake = Fake::start().await;
    let client = fake.config().session_timeout(SHORT).connect().await.unwrap();
    let session = client.session_id();
    fake.until("a heartbeat", |world| world.pings > 0).await;
    drop(client);
    fake.until("the session was closed", |world| !world.has_session(session)).await;
    assert_eq!(fake.world().attachments(), 0);
}

#[tokio::test]
async fn calls_that_wait_for_a_connection_end_with_the_session() {
    let fake = Fake::start().await;
    let client = fake.config().session_timeout(SHORT).connect().await.unwrap();
    let until = client.valid_until().unwrap();
    fake.silence();
    fake.drop_connections();
    let mut states = client.states();
    states.wait_for(|state| *state != SessionState::Connected).await.unwrap();
    assert_eq!(client.sync("/").await.unwrap_err(), Error::SessionExpired);
    assert!(time::now() >= until);
}

#[tokio::test]
async fn a_session_moves_to_the_leader_before_anybody_sees_it_elsewhere() {
    let mut fake = Fake::rowlock().await;
    let leader = fake.another_door().await;
    fake.world().announced = Some(format!("{ANNOUNCED}leader {leader}\n"));
    let config = Client::builder().endpoints(&format!("{},{leader}", fake.endpoint));
    let mut stayed = 0;
    // Whichever is tried first.
    for _ in 0..16 {
        let client = config.clone().prefer_leader(PreferLeader::Always).connect().await.unwrap();
        assert_eq!(client.state(), SessionState::Connected);
        assert_eq!(fake.world().door_of(client.session_id()), Some(1));
        client.mutex("l").lock().await.unwrap().release().await.unwrap();

        let content = config.clone().connect().await.unwrap();
        stayed += usize::from(fake.world().door_of(content.session_id()) == Some(0));
        client.close().await.unwrap();
        content.close().await.unwrap();
    }
    assert!(stayed > 0, "of sixteen in random order");
}

#[tokio::test]
async fn a_leader_that_cannot_be_reached_is_done_without() {
    let fake = Fake::rowlock().await;
    let nobody = Listener::bind("127.0.0.1:0").await.unwrap().local_addr().to_string();
    fake.world().announced = Some(format!("{ANNOUNCED}leader {nobody}\n"));
    let config = Client::builder()
        .endpoints(&format!("{},{nobody}", fake.endpoint))
        .prefer_leader(PreferLeader::Always);
    for _ in 0..4 {
        let client = config.clone().connect().await.unwrap();
        let mut states = client.states();
        client.mutex("l").lock().await.unwrap().release().await.unwrap();
        assert!(!states.has_changed(), "it stays where it is");
        fake.drop_connections();
        states.wait_for(|state| matches!(state, SessionState::Suspended { .. })).await.unwrap();
        states.wait_for(|state| *state == SessionState::Connected).await.unwrap();
        client.close().await.unwrap();
    }
}

/// A client of two servers that was opened by the one that does not lead.
async fn away_from_the_leader(fake: &Fake, config: &ClientBuilder) -> Client {
    loop {
        let client = config.clone().connect().await.unwrap();
        if fake.world().door_of(client.session_id()) == Some(0) {
            return client;
        }
        client.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_session_moves_to_the_leader_when_it_has_nothing_to_do_but_to_wait() {
    let mut fake = Fake::rowlock().await;
    let leader = fake.another_door().await;
    fake.world().announced = Some(format!("{ANNOUNCED}leader {leader}\n"));
    let holder = fake.client().await;
    let config = Client::builder().endpoints(&format!("{},{leader}", fake.endpoint));
    let client = away_from_the_leader(&fake, &config).await;
    client.mutex("free").lock().await.unwrap().release().await.unwrap();
    assert_eq!(fake.world().door_of(client.session_id()), Some(0), "it did not have to wait");

    let guard = holder.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &client).await;
    let session = client.session_id();
    fake.until("the session moves", |world| world.door_of(session) == Some(1)).await;
    client.sync("/").await.unwrap();
    assert_eq!(fake.world().contenders(LOCK), 2, "it keeps its one place");
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(task.await.unwrap().unwrap().token() > token);
    assert_eq!((client.state(), client.session_id()), (SessionState::Connected, session));
}

#[tokio::test]
async fn a_session_at_work_moves_when_the_leader_has_room_and_follows_the_lead() {
    let mut fake = Fake::rowlock().await;
    let leader = fake.another_door().await;
    let config = Client::builder().endpoints(&format!("{},{leader}", fake.endpoint)).session_timeout(SHORT);
    fake.world().announced = Some(format!("{ANNOUNCED}leader {leader}\n"));
    let client = away_from_the_leader(&fake, &config).await;
    let (session, lock) = (client.session_id(), client.mutex("l"));
    let door = || fake.world().door_of(session);
    for _ in 0..40 {
        lock.lock().await.unwrap().release().await.unwrap();
    }
    assert_eq!(door(), Some(0), "nothing says that the leader has room");
    let announced = [(leader, 1), (fake.endpoint.clone(), 0)];
    for (leader, there) in announced {
        fake.world().announced = Some(format!("{ANNOUNCED}leader {leader}\ninvites 1\n"));
        while door() != Some(there) {
            lock.lock().await.unwrap().release().await.unwrap();
        }
    }
    assert_eq!((client.state(), client.session_id()), (SessionState::Connected, session));
}

#[tokio::test]
async fn a_session_that_could_lose_something_does_not_move_to_wait() {
    let mut fake = Fake::rowlock().await;
    let leader = fake.another_door().await;
    fake.world().announced = Some(format!("{ANNOUNCED}leader {leader}\n"));
    let holder = fake.client().await;
    let _guard = holder.mutex("l").lock().await.unwrap();
    let config = Client::builder().endpoints(&format!("{},{leader}", fake.endpoint));
    let (graceful, content) =
        (config.clone().disconnect_grace(SHORT), config.clone().prefer_leader(PreferLeader::Never));
    for (config, holds) in [(config, true), (graceful, false), (content, false)] {
        let client = away_from_the_leader(&fake, &config).await;
        let held = if holds { Some(client.mutex("mine").lock().await.unwrap()) } else { None };
        let task = waiter(&fake, &client).await;
        // Behind the answer that has it wait.
        client.sync("/").await.unwrap();
        assert_eq!(fake.world().door_of(client.session_id()), Some(0));
        task.abort();
        drop(held);
        client.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_wait_goes_on_where_it_began_when_the_leader_cannot_be_reached() {
    let fake = Fake::rowlock().await;
    let nobody = Listener::bind("127.0.0.1:0").await.unwrap().local_addr().to_string();
    fake.world().announced = Some(format!("{ANNOUNCED}leader {nobody}\n"));
    let holder = fake.client().await;
    let guard = holder.mutex("l").lock().await.unwrap();
    let client = Client::builder().endpoints(&format!("{},{nobody}", fake.endpoint)).connect().await.unwrap();
    let mut states = client.states();
    let task = waiter(&fake, &client).await;
    states.wait_for(|state| matches!(state, SessionState::Suspended { .. })).await.unwrap();
    states.wait_for(|state| *state == SessionState::Connected).await.unwrap();
    client.sync("/").await.unwrap();
    guard.release().await.unwrap();
    assert!(task.await.unwrap().unwrap().is_held());
    assert!(!states.has_changed(), "it has tried once");
}
