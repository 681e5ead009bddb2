//! One life of a client's process: sessions one after another, with operations on each session until its end.

use std::sync::Arc;
use std::time::Duration;

use rowlock_client::{Client, SessionState};
use rowlock_env::sync::watch;
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_proto::SessionId;

use super::caller::Caller;
use super::chance::{about, between, chance, millis, weighted};
use super::theme::Operation;
use super::{Journal, Profile, operations, plain, rest};
use crate::history::access::{Access, Bearer};
use crate::history::client::{ClientFact, Link};

/// Longest delay from a process's start to its first session, in milliseconds.
const COMES_WITHIN_MS: u64 = 1_500;
/// Time limit of an attempt to open a session.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit for operations to end before the session closes; late operations are dropped.
const LAST_OPERATIONS: Duration = Duration::from_secs(3);
/// Time limit of closing a session; the cluster expires a session beyond the limit.
const CLOSE: Duration = Duration::from_secs(10);
/// Percentage of operations that come in a burst.
const BURSTS_PERCENT: u64 = 4;

pub(super) async fn live(profile: Profile, journal: Journal, closing: watch::Receiver<bool>) {
    let profile = Arc::new(profile);
    let token = profile.asks_tokens.then(|| format!("token:{}", Bearer::Worker.name()));
    let who = [format!("ip:{}", journal.address())].into_iter().chain(token).collect();
    journal.record(ClientFact::Access(Access::Proves { session: SessionId::NONE, who }));
    // A client that starts together with the cluster finds only the leader serving; without the delay all
    // clients would use that node.
    time::sleep(millis(0, COMES_WITHIN_MS)).await;
    while !*closing.borrow() {
        let Some(client) = open(&profile, closing.clone()).await else {
            time::sleep(millis(10, 200)).await;
            continue;
        };
        serve(Caller::new(client, journal.clone(), profile.clone()), closing.clone()).await;
    }
    journal.record(ClientFact::Ended);
}

/// Opens a session. Returns `None` if no node is reachable or the run ends.
async fn open(profile: &Profile, mut closing: watch::Receiver<bool>) -> Option<Client> {
    let mut config = Client::builder()
        .endpoints(&profile.membership.endpoints())
        .session_timeout(profile.session_timeout)
        .connect_timeout(CONNECT)
        .label(profile.host.to_string())
        .prefer_leader(profile.prefers_leader);
    if let Some(grace) = profile.grace {
        config = config.disconnect_grace(grace);
    }
    let opening = async {
        let client = config.connect().await.ok()?;
        // Locks query the extensions first: from here on the client sends calls in the order of their making.
        client.extensions().await.ok()?;
        Some(client)
    };
    tokio::select! {
        biased;
        client = opening => client,
        _ = closing.wait_for(|is_closing| *is_closing) => None,
    }
}

/// Context of an operation.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) caller: Caller,
    /// True when no new operation may begin.
    pub(super) is_ending: watch::Receiver<bool>,
}

impl Place {
    /// Returns whether no new operation may begin.
    pub(super) fn is_over(&self) -> bool {
        *self.is_ending.borrow() || self.caller.is_over()
    }

    /// Sleeps, but not beyond the end.
    pub(super) async fn rest(&self, long: Duration) {
        let mut is_ending = self.is_ending.clone();
        tokio::select! {
            biased;
            _ = is_ending.wait_for(|is_ending| *is_ending) => {}
            () = time::sleep(long) => {}
        }
    }
}

/// Runs all tasks of a session until its end.
async fn serve(caller: Caller, closing: watch::Receiver<bool>) {
    let (ending, is_ending) = watch::channel(false);
    let place = Place { caller: caller.clone(), is_ending };
    let mut tasks = vec![task::spawn("ticker", tick(place.clone()))];
    tasks.extend((0..caller.profile().lanes).map(|number| task::spawn("lane", lane(place.clone(), number))));
    let sides = caller.profile().sides;
    if sides.queues {
        tasks.push(task::spawn("queues", plain::queues::live(place.clone())));
    }
    if sides.follows {
        tasks.push(task::spawn("follow", plain::follow::live(place.clone())));
    }
    if sides.access {
        tasks.push(task::spawn("access", plain::access::live(place.clone())));
    }
    if sides.frames {
        tasks.push(task::spawn("frames", plain::frames::live(place.clone())));
    }
    if sides.floods {
        tasks.push(task::spawn("floods", plain::flood::live(place.clone())));
    }
    if sides.rest {
        tasks.push(task::spawn("rest", rest::live(place.clone())));
    }
    if sides.events {
        tasks.push(task::spawn("events", rest::events::live(place.clone())));
    }
    if sides.states {
        tasks.push(task::spawn("states", rest::state::live(place.clone())));
    }
    until_over(&caller, closing).await;
    caller.journal().record(ClientFact::Link { session: caller.session(), now: Link::Closing });
    ending.send(true);
    let deadline = time::now() + LAST_OPERATIONS;
    for one in tasks {
        end(one, deadline).await;
    }
    drop(place);
    // A session that cannot be closed in time expires by itself.
    let _ = time::timeout_at(time::now() + CLOSE, caller.client().close()).await;
}

/// Waits until the session has ended or is due to end, and reports its connections.
async fn until_over(caller: &Caller, mut closing: watch::Receiver<bool>) {
    let life = caller.profile().session_life;
    let mut states = caller.client().states();
    let mut last = Link::Up;
    let has_ended = |state: &SessionState| {
        let now = if *state == SessionState::Connected { Link::Up } else { Link::Down };
        if std::mem::replace(&mut last, now) != now {
            caller.journal().record(ClientFact::Link { session: caller.session(), now });
        }
        state.is_final()
    };
    tokio::select! {
        biased;
        _ = closing.wait_for(|is_closing| *is_closing) => {}
        _ = states.wait_for(has_ended) => {}
        () = async {
            match life {
                Some(life) => time::sleep(about(life)).await,
                None => std::future::pending().await,
            }
        } => {}
    }
}

async fn end(mut one: Task<()>, deadline: time::Instant) {
    if time::timeout_at(deadline, &mut one).await.is_err() {
        one.abort();
        // Drops the task's locks before this function returns.
        let _ = one.await;
    }
}

/// Reports periodically that the session is alive, and checks watches even without replies.
async fn tick(place: Place) {
    while !place.is_over() {
        place.caller.is_alive();
        place.caller.hear();
        place.rest(millis(200, 500)).await;
    }
}

/// Runs one operation after another. Every second lane never waits for a lock, so that blocked lanes do not
/// stall the client.
async fn lane(place: Place, number: usize) {
    let all = &place.caller.profile().operations;
    let free: Vec<(Operation, u64)> =
        all.iter().copied().filter(|(operation, _)| !operation.waits()).collect();
    let operations = if number % 2 == 1 && !free.is_empty() { &free } else { all };
    place.rest(millis(0, 300)).await;
    while !place.is_over() {
        let operation = weighted(operations);
        // Sometimes a burst of one operation without a pause.
        let times = if chance(BURSTS_PERCENT) { between(2, 10) } else { 1 };
        for _ in 0..times {
            if !place.is_over() {
                operations::run(operation, &place).await;
            }
        }
        place.rest(about(place.caller.profile().pause)).await;
    }
}
