//! HTTP clients (docs/rest.md) like the thin clients in `client/`: leases with keepalives of their own,
//! requests that are repeated at several nodes and arrive late or twice, and locks shared with all remaining
//! clients. These clients obey `client/README.md`, and report the same facts to the checkers.
//!
//! A lease has one attempt at a time, so that a loss still unknown to the client concerns one attempt only.

mod attempt;
mod call;
pub(super) mod events;
mod lease;
mod several;
pub(super) mod state;
mod stranger;
mod znodes;

use std::time::Duration;

use rowlock_env::task::Task;
use rowlock_env::time;
use rowlock_proto::{FencingToken, SessionId};
use serde_json::Value;

use super::chance::{about, between, chance, millis};
use super::life::Place;
use crate::history::Lock;
use crate::history::access::Bearer;
use crate::history::client::{Answer, Failure, Op};
use attempt::{ANSWERED_WITHIN, Call, EACH};
use call::Asking;
use lease::Lease;

/// Mean pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);
/// Percentage of leases that fall silent at some moment and expire.
const SILENT_PERCENT: u64 = 25;
/// Percentages of changes of znodes, and of attempts at several locks.
const ZNODES_PERCENT: u64 = 25;
const SEVERAL_PERCENT: u64 = 20;
/// Percentage of turns with requests of strangers before.
const STRANGERS_PERCENT: u64 = 40;
/// Bound on pending late copies of requests; the end of a lease drops its copies.
const STRAYS_MAX: usize = 16;

/// Uses leases one after another, until the run ends.
pub(super) async fn live(place: Place) {
    while !place.is_over() {
        let profile = place.caller.profile();
        let Some(lease) = Lease::open(&place, millis(1_500, 6_000)).await else {
            place.rest(millis(50, 400)).await;
            continue;
        };
        let silent_after = chance(SILENT_PERCENT).then(|| about(profile.session_timeout));
        let attempts = between(1, 12);
        tokio::select! {
            biased;
            () = lease.keep_alive(silent_after) => {}
            () = use_lease(&place, &lease, attempts) => {}
        }
        lease.end().await;
    }
}

async fn use_lease(place: &Place, lease: &Lease, attempts: u64) {
    let mut strays = Strays::default();
    for _ in 0..attempts {
        if place.is_over() || !lease.is_alive() {
            return;
        }
        if place.caller.profile().asks_tokens && chance(STRANGERS_PERCENT) {
            stranger::run(place).await;
        }
        let goes_on = if chance(ZNODES_PERCENT) {
            znodes::run(place, lease, &mut strays).await
        } else if chance(SEVERAL_PERCENT) && place.caller.profile().plain.len() > 1 {
            several::run(place, lease, &mut strays).await
        } else {
            attempt::run(place, lease, &mut strays).await
        };
        if !goes_on {
            return;
        }
        place.rest(about(PAUSE)).await;
    }
}

/// Takes a lock from the holder with this token, as an operator. `None` ends a lock-delay.
pub(super) async fn force(place: &Place, lock: Lock, token: Option<FencingToken>) {
    let profile = place.caller.profile();
    let name = profile.locks.path(lock).trim_start_matches("/locks/");
    let head = format!("DELETE /v1/locks/{name}/holders/{}", token.map_or(0, |token| token.0));
    let asking = Asking::new(&profile.membership, head, Value::Null).by(Bearer::Operator);
    // Reported without a session, so that the reply implies nothing about the order of the session's calls.
    let asker = (place.caller.journal(), SessionId::NONE);
    let call = token.map(|_| Call::of(asker, Op::Force { lock, token }));
    let answer = asking.until(time::now() + ANSWERED_WITHIN, EACH).await;
    let forced = answer.map(|(status, document)| {
        let forced = document["released"].as_bool().filter(|_| status == 200);
        forced.unwrap_or_else(|| panic!("{} gets {status} {document}", asking.head))
    });
    if let Some(call) = call {
        call.end(forced.map(Answer::Released).ok_or(Failure::Unknown));
    }
}

/// Late copies of requests whose replies the client ignores. Dropping this value aborts all copies.
#[derive(Default)]
pub(super) struct Strays {
    copies: Vec<Task<()>>,
    /// Locks and name of the previous attempt, if another attempt may reuse the name.
    earlier: Option<(Vec<Lock>, String)>,
    /// Name of the previous write of a znode.
    key: Option<znodes::Key>,
}

impl Strays {
    fn add(&mut self, copy: Task<()>) {
        self.copies.retain(|copy| !copy.is_finished());
        if self.copies.len() >= STRAYS_MAX {
            self.copies.remove(0).abort();
        }
        self.copies.push(copy);
    }
}

impl Drop for Strays {
    fn drop(&mut self) {
        self.copies.iter().for_each(Task::abort);
    }
}
