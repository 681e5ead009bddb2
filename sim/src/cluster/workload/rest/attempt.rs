//! One attempt: a queue position, the lock, and its release.
//!
//! Invariant: the client reports [`ClientFact::Holds`] in the poll in which it checks the lease, and
//! [`ClientFact::LetGo`] before any step that releases the lock, including the drop of a hold.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::time::{self, Instant};
use rowlock_env::{rng, task};
use rowlock_proto::lock::Mode;
use rowlock_proto::report::{Queue, in_query};
use rowlock_proto::{FencingToken, SessionId};
use serde_json::{Value, json};

use super::super::Journal;
use super::super::chance::{about, between, chance, millis, pick, weighted};
use super::super::life::Place;
use super::Strays;
use super::call::{Asking, any_node};
use super::lease::Lease;
use crate::history::Lock;
use crate::history::client::{Answer, CallId, ClientFact, Failure, Op};

/// Percentages of requests with a late copy, and of repeated releases.
const STRAY_PERCENT: u64 = 20;
const REPEATED_PERCENT: u64 = 30;
/// Percentage of holds with a write of a znode behind a fence, and of releases with one.
const FENCED_PERCENT: u64 = 20;
/// Percentage of releases after which the client checks the queue, and the number of queue positions
/// requested.
const LOOKS_PERCENT: u64 = 20;
const QUEUE_MAX: u64 = 10_000;
/// Percentages of attempts that campaign, of attempts that reuse the previous attempt's name, and of holds
/// whose lease another client tries to use.
const ELECTION_PERCENT: u64 = 12;
const REUSED_PERCENT: u64 = 40;
const IMPOSTOR_PERCENT: u64 = 15;
/// Time limit of one node's reply, in addition to the wait.
pub(super) const EACH: Duration = Duration::from_millis(1_500);
/// Time limit of a reply about a lock.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

/// Takes a position, uses the lock and releases it. Returns false if the lease is of no more use.
pub(super) async fn run(place: &Place, lease: &Lease, strays: &mut Strays) -> bool {
    let profile = place.caller.profile();
    if chance(ELECTION_PERCENT) {
        let attempt = Attempt::new(place, lease, profile.election, Mode::Exclusive, strays);
        return attempt.run(json!({ "value": "by HTTP" }), strays).await;
    }
    let (permits, limit) = profile.permits;
    let (lock, mode) = match weighted(&[(Mode::Exclusive, 6), (Mode::Shared, 3), (Mode::Permits(1), 1)]) {
        mode @ Mode::Permits(_) => (permits, mode),
        mode => (pick(&profile.plain), mode),
    };
    let mut body = json!({ "label": "by HTTP" });
    match mode {
        Mode::Exclusive => {}
        Mode::Shared => body["mode"] = "shared".into(),
        Mode::Permits(permits) => {
            body["mode"] = "permits".into();
            (body["permits"], body["limit"]) = (permits.into(), limit.into());
        }
    }
    if chance(10) {
        body["lock_delay_ms"] = rng::below(1_500).into();
    }
    if chance(10) {
        body["min_hold_ms"] = rng::below(1_500).into();
    }
    Attempt::new(place, lease, lock, mode, strays).run(body, strays).await
}

/// Returns a name for an attempt at these locks: sometimes the previous attempt's name, if that attempt was
/// for none of these locks.
pub(super) fn request_id(locks: &[Lock], strays: &mut Strays) -> String {
    let is_free = |others: &[Lock]| others.iter().all(|other| !locks.contains(other));
    let earlier = strays.earlier.take().filter(|(others, _)| is_free(others) && chance(REUSED_PERCENT));
    earlier.map_or_else(
        || {
            let new = format!("{:016x}", rng::below(u64::MAX));
            strays.earlier = Some((locks.to_vec(), new.clone()));
            new
        },
        |(_, id)| id,
    )
}

/// Returns the wait of all requests of an attempt: sometimes longer than any lease.
pub(super) fn any_wait() -> Duration {
    match between(0, 9) {
        0..2 => Duration::ZERO,
        2..8 => millis(1, 3_000),
        _ => millis(8_000, 60_000),
    }
}

enum Got {
    Held(FencingToken),
    Busy,
    /// The position was removed.
    Gone,
    /// The client's patience is over.
    Impatient,
    Over,
}

pub(super) struct Attempt<'a> {
    pub(super) place: &'a Place,
    pub(super) lease: &'a Lease,
    pub(super) lock: Lock,
    pub(super) mode: Mode,
    /// Time at which the client gives the lock up, before the cluster revokes the lock.
    pub(super) until: Option<Instant>,
    pub(super) request_id: String,
}

impl<'a> Attempt<'a> {
    fn new(place: &'a Place, lease: &'a Lease, lock: Lock, mode: Mode, strays: &mut Strays) -> Self {
        let request_id = request_id(&[lock], strays);
        Attempt { place, lease, lock, mode, until: None, request_id }
    }

    async fn run(&self, mut body: Value, strays: &mut Strays) -> bool {
        let (lock, mode, wait) = (self.lock, self.mode, any_wait());
        body["request_id"] = self.request_id.as_str().into();
        body["wait_ms"] = (wait.as_millis() as u64).into();
        let acquire = if self.is_election() { "campaign" } else { "acquire" };
        let asking = self.lease.asking(self.head(acquire), body);
        let patience = time::now() + about(Duration::from_secs(4));
        let call = Call::begin(self.lease, Op::Acquire { lock, mode });
        match self.acquire(&asking, (wait, patience), strays).await {
            Got::Held(token) => {
                call.end(Ok(Answer::Acquired(token)));
                self.hold(token, strays).await
            }
            Got::Busy => {
                call.end(Err(Failure::NotDone));
                true
            }
            Got::Gone => {
                call.end(Err(Failure::Unknown));
                true
            }
            Got::Impatient => {
                let has_left = self.leave(strays).await;
                call.end(Err(Failure::Unknown));
                has_left
            }
            Got::Over => {
                call.end(Err(Failure::Unknown));
                false
            }
        }
    }

    fn is_election(&self) -> bool {
        self.lock == self.place.caller.profile().election
    }

    /// Returns method and path of a request.
    fn head(&self, what: &str) -> String {
        let name = self.place.caller.lock_path(self.lock).trim_start_matches("/locks/");
        match name.strip_prefix("@elections/").filter(|_| what != "verify") {
            Some(election) => format!("POST /v1/elections/{election}/{what}"),
            None => format!("POST /v1/locks/{name}/{what}"),
        }
    }

    async fn acquire(
        &self,
        asking: &Asking,
        (wait, patience): (Duration, Instant),
        strays: &mut Strays,
    ) -> Got {
        // The answer comes within half of the lease's time.
        let wait = wait.min(self.lease.ttl / 2);
        loop {
            let Some(deadline) = self.lease.deadline() else { return Got::Over };
            if time::now() >= patience || self.place.is_over() {
                return Got::Impatient;
            }
            send_late(asking, strays);
            let sent = time::now();
            let left = deadline.saturating_since(sent);
            let request = Call::begin(self.lease, Op::Held { locks: vec![self.lock] });
            let Some(answer) = in_time(self.lease, wait, asking.once((wait + EACH).min(left))).await else {
                continue;
            };
            self.lease.update(sent, &answer);
            let (status, document) = &answer;
            match (*status, document["state"].as_str()) {
                (200, Some("held")) => {
                    request.end(Ok(Answer::Held(vec![token(document)])));
                    return Got::Held(token(document));
                }
                (202, Some("waiting")) => {
                    let position = document["position"].as_u64().expect("a waiting position has a number");
                    request.end(Ok(Answer::Waiting(position)));
                }
                (200, Some("busy")) | (400 | 422, _) => return Got::Busy,
                (200, Some("gone")) => return Got::Gone,
                (403 | 404 | 429, _) => return Got::Over,
                _ => panic!("{} {} gets {status} {document}", asking.head, asking.body),
            }
        }
    }

    /// Leaves the queue. Returns false if a late copy may still take a position, so that the lease must end.
    async fn leave(&self, strays: &mut Strays) -> bool {
        let release = self.release(json!({ "request_id": self.request_id }));
        send_late(&release, strays);
        let answer = release.until(time::now() + ANSWERED_WITHIN, EACH).await;
        answer.is_some_and(|(status, document)| status == 200 && document["released"] == true)
    }

    fn release(&self, what: Value) -> Asking {
        let release = if self.is_election() { "resign" } else { "release" };
        self.lease.asking(self.head(release), what)
    }

    /// Works under the lock for a while, and releases the lock. Returns false if the lease is of no more use.
    pub(super) async fn hold(&self, token: FencingToken, strays: &mut Strays) -> bool {
        let mut hold = Hold { attempt: self, token, is_reported: false };
        if chance(IMPOSTOR_PERCENT) {
            self.be_refused(token).await;
        }
        if chance(FENCED_PERCENT) && !super::znodes::behind_fence(self, token, strays).await {
            return false;
        }
        let end = time::now() + about(self.place.caller.profile().work);
        while hold.is_held() && time::now() < end {
            if chance(40) && self.mode == Mode::Exclusive {
                // The write is on its way to the store; a loss of the lock meanwhile does not recall the
                // write.
                time::sleep(millis(0, 30)).await;
                let (lock, journal) = (self.lock, self.lease.journal());
                let report = |store| journal.record(ClientFact::Wrote { lock, token, store });
                self.place.caller.profile().stores.write(lock, token, report).await;
            } else {
                time::sleep(millis(10, 150)).await;
            }
        }
        if chance(25) && hold.is_held() && self.verify(token).await == Some(false) {
            hold.let_go();
        }
        hold.let_go();
        let Some(released) = self.release_and_wait(token, strays).await else { return false };
        if chance(REPEATED_PERCENT) {
            let again = self.release(json!({ "token": token.0.to_string() }));
            if let Some((200, document)) = again.once(EACH).await
                && document["released"] != released
            {
                // A session that an operator has ended meanwhile takes its outcomes along.
                assert!(!self.lease.is_open().await, "a release of {token} again says {document}");
            }
        }
        if chance(FENCED_PERCENT) && !super::znodes::behind_fence(self, token, strays).await {
            return false;
        }
        if chance(LOOKS_PERCENT) {
            // A node without a reply shows nothing.
            let _ = self.has_left().await;
        }
        true
    }

    /// Checks that the lease has no position left in the queue, however often the client sent its request.
    async fn has_left(&self) -> Option<()> {
        let membership = &self.place.caller.profile().membership;
        let node = any_node(membership)?;
        Asking::sync(membership, &node, EACH).await?;
        let lock = in_query(self.place.caller.lock_path(self.lock));
        let question = format!("/v1/queue?lock={lock}&limit={QUEUE_MAX}");
        let (status, queue) = Asking::get(membership, &question).at(&node, EACH).await?;
        let queue: Queue = serde_json::from_value(queue).ok().filter(|_| status == 200)?;
        let holders = queue.holders.iter().map(|holder| &holder.place);
        let mut places = holders.chain(queue.waiters.iter().map(|waiter| &waiter.place));
        let left = places.find(|place| place.session == Some(self.lease.session));
        assert!(left.is_none(), "{left:?} is left behind a release of {}", self.request_id);
        Some(())
    }

    /// Checks that requests with a wrong secret are refused.
    async fn be_refused(&self, token: FencingToken) {
        let mut asking = match between(0, 2) {
            0 => self.release(json!({ "token": token.0.to_string() })),
            1 => self.release(json!({ "request_id": self.request_id })),
            _ => self.lease.to_be_ended(),
        };
        asking.body["secret"] = self.lease.wrong_secret().into();
        if let Some((status, document)) = asking.once(EACH).await {
            // A request to end a lease that is already over gets the status of an ended lease. This request
            // did not end the lease; other checkers know about its locks.
            let is_refused = matches!(status, 403 | 404) || (status == 204 && !self.lease.is_open().await);
            assert!(is_refused, "{} with a wrong secret gets {status} {document}", asking.head);
        }
    }

    async fn verify(&self, token: FencingToken) -> Option<bool> {
        let call = Call::begin(self.lease, Op::Verify { lock: self.lock, token });
        let head = self.head("verify");
        let membership = &self.place.caller.profile().membership;
        let asking = Asking::new(membership, head, json!({ "token": token.0.to_string() }));
        let answer = asking.until(time::now() + ANSWERED_WITHIN, EACH).await;
        let held = answer.and_then(|(_, document)| document["held"].as_bool());
        call.end(held.map(Answer::Verified).ok_or(Failure::Unknown));
        held
    }

    /// Releases the lock. Returns whether the lock was held until then; `None` if no node has replied, so
    /// that the lease must end.
    async fn release_and_wait(&self, token: FencingToken, strays: &mut Strays) -> Option<bool> {
        let call = Call::begin(self.lease, Op::Release { lock: self.lock, token });
        let release = self.release(json!({ "token": token.0.to_string() }));
        send_late(&release, strays);
        let answer = release.until(time::now() + ANSWERED_WITHIN, EACH).await;
        let released = answer.and_then(|(_, document)| document["released"].as_bool());
        call.end(released.map(Answer::Released).ok_or(Failure::Unknown));
        released
    }
}

/// Sometimes sends a copy of the request to some node much later, and ignores the reply.
pub(super) fn send_late(asking: &Asking, strays: &mut Strays) {
    if chance(STRAY_PERCENT) {
        let asking = asking.clone();
        strays.add(task::spawn("rest-stray", async move {
            time::sleep(millis(0, 3_000)).await;
            let _ = asking.once(EACH).await;
        }));
    }
}

/// Waits for the reply to an acquire, and reports the reply as due after `wait`.
pub(super) async fn in_time<T>(lease: &Lease, wait: Duration, reply: impl Future<Output = T>) -> T {
    let mut reply = pin!(reply);
    if let Ok(reply) = time::timeout(wait, &mut reply).await {
        return reply;
    }
    lease.journal().record(ClientFact::Waits { request: "acquire" });
    let _due = Due(lease);
    reply.await
}

/// Reply that is due. The drop reports that the client has the reply, or waits no longer.
struct Due<'a>(&'a Lease);

impl Drop for Due<'_> {
    fn drop(&mut self) {
        self.0.journal().record(ClientFact::Served);
    }
}

pub(super) fn token(document: &Value) -> FencingToken {
    let token = document["token"].as_str().and_then(|token| token.parse().ok());
    FencingToken(token.unwrap_or_else(|| panic!("a held lock has a token: {document}")))
}

/// A call whose beginning has been reported. Its drop reports an unknown outcome.
pub(super) struct Call<'a> {
    journal: &'a Journal,
    call: CallId,
    is_reported: bool,
}

impl<'a> Call<'a> {
    pub(super) fn begin(lease: &'a Lease, op: Op) -> Self {
        Call::of((lease.journal(), lease.session), op)
    }

    /// Reports the beginning of the call that `make` builds from the call's number.
    pub(super) fn next(lease: &'a Lease, make: impl FnOnce(CallId) -> Op) -> (Self, Arc<Op>) {
        let (journal, session, call) = (lease.journal(), lease.session, lease.journal().next_call());
        let op = Arc::new(make(call));
        journal.record(ClientFact::Invoked { call, session, op: op.clone() });
        (Call { journal, call, is_reported: false }, op)
    }

    /// Reports the beginning of a call by a client of this session.
    pub(super) fn of((journal, session): (&'a Journal, SessionId), op: Op) -> Self {
        let call = journal.next_call();
        journal.record(ClientFact::Invoked { call, session, op: Arc::new(op) });
        Call { journal, call, is_reported: false }
    }

    pub(super) fn end(mut self, result: Result<Answer, Failure>) {
        self.is_reported = true;
        self.journal.record(ClientFact::Returned { call: self.call, result });
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.is_reported {
            self.journal.record(ClientFact::Returned { call: self.call, result: Err(Failure::Unknown) });
        }
    }
}

struct Hold<'a> {
    attempt: &'a Attempt<'a>,
    token: FencingToken,
    /// Whether the hold has been reported and its end has not.
    is_reported: bool,
}

impl Hold<'_> {
    /// Checks the lease once and reports the result.
    fn is_held(&mut self) -> bool {
        let Attempt { lease, lock, mode, until, .. } = *self.attempt;
        let is_held = until.is_none_or(|until| time::now() < until) && lease.is_alive();
        if is_held {
            self.is_reported = true;
            lease.journal().record(ClientFact::Holds { lock, token: self.token, mode });
        } else {
            self.let_go();
        }
        is_held
    }

    fn let_go(&mut self) {
        if std::mem::replace(&mut self.is_reported, false) {
            let (lock, token) = (self.attempt.lock, self.token);
            self.attempt.lease.journal().record(ClientFact::LetGo { lock, token });
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}
