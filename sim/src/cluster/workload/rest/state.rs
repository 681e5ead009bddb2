//! Programs that lock a state by HTTP, as Terraform does: without keepalives, with retries while another
//! program holds the lock, and without notice of a loss. Sometimes a person forces a program's lock.

use std::time::Duration;

use rowlock_env::{rng, time};
use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId};
use serde_json::{Value, json};

use super::super::Journal;
use super::super::chance::{about, chance, millis};
use super::super::life::Place;
use super::attempt::{ANSWERED_WITHIN, Call, EACH, token};
use super::call::Asking;
use crate::history::Lock;
use crate::history::access::Bearer;
use crate::history::client::{Answer, ClientFact, Failure, Op};

/// Mean pause between two programs of a client.
const PAUSE: Duration = Duration::from_millis(800);
/// Mean time for which a program tries to get the lock.
const PATIENCE: Duration = Duration::from_secs(4);
/// Percentages of refusals after which a person forces the lock, and of programs that die with the lock.
const FORCED_PERCENT: u64 = 6;
const DIES_PERCENT: u64 = 5;

/// Runs programs one after another, until the run ends.
pub(in super::super) async fn live(place: Place) {
    while !place.is_over() {
        let program = Program { place: &place, id: format!("{:016x}", rng::below(u64::MAX)) };
        if let Some(token) = program.lock().await {
            program.work(token).await;
            if !chance(DIES_PERCENT) {
                program.unlock(token).await;
            }
        }
        place.rest(about(PAUSE)).await;
    }
}

struct Program<'a> {
    place: &'a Place,
    id: String,
}

impl Program<'_> {
    fn state(&self) -> Lock {
        self.place.caller.profile().state
    }

    fn journal(&self) -> &Journal {
        self.place.caller.journal()
    }

    fn asking(&self, method: &str, body: Value) -> Asking {
        let profile = self.place.caller.profile();
        let name = profile.locks.path(self.state()).trim_start_matches("/locks/@terraform/");
        let head = format!("{method} /v1/terraform/{name}");
        Asking::new(&profile.membership, head, body)
    }

    fn info(&self) -> Value {
        json!({ "ID": self.id, "Who": "a person", "Info": "" })
    }

    /// Begins a call without a session, because no client knows the session of the program's position.
    fn begin(&self, op: Op) -> Call<'_> {
        Call::of((self.journal(), SessionId::NONE), op)
    }

    /// Retries until the program has the lock. Returns `None` when the program gives up.
    async fn lock(&self) -> Option<FencingToken> {
        let asking = self.asking("LOCK", self.info());
        let patience = time::now() + about(PATIENCE);
        while time::now() < patience && !self.place.is_over() {
            let call = self.begin(Op::Held { locks: vec![self.state()] });
            match asking.once(EACH).await {
                Some((200, document)) => {
                    let token = token(&document);
                    call.end(Ok(Answer::Held(vec![token])));
                    return Some(token);
                }
                Some((423, document)) => {
                    let by = document["ID"].as_str().unwrap_or_default().to_owned();
                    assert!(!by.is_empty() && by != self.id, "{} is told of {document}", self.id);
                    call.end(Ok(Answer::Taken(by)));
                    if chance(FORCED_PERCENT) {
                        self.force().await;
                    }
                }
                Some((status, document)) => panic!("{} gets {status} {document}", asking.head),
                None => call.end(Err(Failure::Unknown)),
            }
            self.place.rest(millis(50, 800)).await;
        }
        None
    }

    /// Relies on the lock for a while.
    async fn work(&self, token: FencingToken) {
        let (lock, mode) = (self.state(), Mode::Exclusive);
        let _end = LetGo { journal: self.journal(), lock, token };
        let end = time::now() + about(self.place.caller.profile().work);
        while time::now() < end {
            self.journal().record(ClientFact::Holds { lock, token, mode });
            time::sleep(millis(10, 150)).await;
        }
    }

    /// Releases the lock. Only the reply to the first request tells whether the lock was held.
    async fn unlock(&self, token: FencingToken) {
        let (lock, asking) = (self.state(), self.asking("UNLOCK", self.info()));
        let call = self.begin(Op::Release { lock, token });
        let first = asking.once(EACH).await.map(|answer| released(&asking, answer));
        call.end(first.map(Answer::Released).ok_or(Failure::Unknown));
        if first.is_none() {
            let call = self.begin(Op::Force { lock, token: Some(token) });
            let answer = asking.until(time::now() + ANSWERED_WITHIN, EACH).await;
            let answer = answer.map(|answer| released(&asking, answer));
            call.end(answer.map(Answer::Released).ok_or(Failure::Unknown));
        }
    }

    /// Forces the lock, as a person who believes the program dead.
    async fn force(&self) {
        let asking = self.asking("UNLOCK", Value::Null).by(Bearer::Operator);
        let call = self.begin(Op::Force { lock: self.state(), token: None });
        let answer = asking.until(time::now() + ANSWERED_WITHIN, EACH).await;
        let answer = answer.map(|answer| released(&asking, answer));
        call.end(answer.map(Answer::Released).ok_or(Failure::Unknown));
    }
}

/// Returns whether an UNLOCK has released the lock. 409: another program has the lock.
fn released(asking: &Asking, (status, document): (u16, Value)) -> bool {
    match (status, document["released"].as_bool()) {
        (200, Some(released)) => released,
        (409, _) => false,
        _ => panic!("{} gets {status} {document}", asking.head),
    }
}

/// Reports the end of a hold when dropped.
struct LetGo<'a> {
    journal: &'a Journal,
    lock: Lock,
    token: FencingToken,
}

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.journal.record(ClientFact::LetGo { lock: self.lock, token: self.token });
    }
}
