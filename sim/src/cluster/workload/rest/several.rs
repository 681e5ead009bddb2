//! One attempt at several locks: one request for all positions, a release for each lock.

use std::time::Duration;

use rowlock_env::{rng, time};
use rowlock_proto::FencingToken;
use rowlock_proto::lock::Mode;
use serde_json::{Value, json};

use super::super::chance::{about, between, chance};
use super::super::life::Place;
use super::Strays;
use super::attempt::{Attempt, Call, EACH, any_wait, in_time, request_id, send_late, token};
use super::lease::Lease;
use crate::history::Lock;
use crate::history::client::{Answer, Failure, Op};

/// Percentage of attempts whose holds have a maximum.
const MAXIMUM_PERCENT: u64 = 50;
/// Part of the maximum on which the client relies, in percent.
const COUNTED_PERCENT: u64 = 90;

/// Takes all positions, uses the locks in turn, and releases each. Returns false if the lease may have
/// positions left and is of no more use.
pub(super) async fn run(place: &Place, lease: &Lease, strays: &mut Strays) -> bool {
    let mut locks = place.caller.profile().plain.clone();
    rng::shuffle(&mut locks);
    locks.truncate(usize::try_from(between(2, locks.len() as u64)).unwrap_or(2));
    let (wait, mode, began) = (any_wait(), Mode::Exclusive, time::now());
    let request_id = request_id(&locks, strays);
    let name = |lock: &Lock| place.caller.lock_path(*lock).trim_start_matches("/locks/").to_owned();
    let parts: Vec<Value> = locks.iter().map(|lock| json!({ "lock": name(lock) })).collect();
    let mut body = json!({ "request_id": request_id, "locks": parts, "wait_ms": wait.as_millis() as u64 });
    let maximum_ms = chance(MAXIMUM_PERCENT).then(|| between(100, 2_000));
    if let Some(maximum_ms) = maximum_ms {
        body["max_hold_ms"] = maximum_ms.into();
    }
    let asking = lease.asking("POST /v1/locks/acquire".to_owned(), body);
    let calls: Vec<Call<'_>> =
        locks.iter().map(|lock| Call::begin(lease, Op::Acquire { lock: *lock, mode })).collect();
    let patience = began + about(Duration::from_secs(4));
    let tokens: Vec<FencingToken> = loop {
        let Some(deadline) = lease.deadline().filter(|_| time::now() < patience && !place.is_over()) else {
            return false;
        };
        send_late(&asking, strays);
        let sent = time::now();
        let request = Call::begin(lease, Op::Held { locks: locks.clone() });
        let left = deadline.saturating_since(sent);
        let wait = wait.min(lease.ttl / 2);
        let reply = asking.once((wait + EACH).min(left));
        let Some(answer) = in_time(lease, wait, reply).await else { continue };
        lease.update(sent, &answer);
        let (status, document) = &answer;
        match (*status, document["state"].as_str()) {
            (200, Some("held")) => {
                let all = document["locks"].as_array().into_iter().flatten();
                let tokens: Vec<FencingToken> = all.map(token).collect();
                request.end(Ok(Answer::Held(tokens.clone())));
                break tokens;
            }
            (202, Some("waiting")) => {}
            (200, Some("busy")) if wait.is_zero() => {
                calls.into_iter().for_each(|call| call.end(Err(Failure::NotDone)));
                return true;
            }
            (200, Some("busy" | "gone")) | (403 | 404 | 422 | 429, _) => return false,
            _ => panic!("{} {} gets {status} {document}", asking.head, asking.body),
        }
    };
    calls.into_iter().zip(&tokens).for_each(|(call, token)| call.end(Ok(Answer::Acquired(*token))));
    // The cluster grants the locks after the first request.
    let until = maximum_ms.map(|ms| began + Duration::from_millis(ms * COUNTED_PERCENT / 100));
    for (lock, token) in locks.into_iter().zip(tokens) {
        let attempt = Attempt { place, lease, lock, mode, until, request_id: request_id.clone() };
        if !attempt.hold(token, strays).await {
            return false;
        }
    }
    true
}
