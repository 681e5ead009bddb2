use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time::{self, Instant};
use rowlock_proto::SessionId;
use serde_json::{Value, json};

use super::super::Journal;
use super::super::chance::{chance, millis};
use super::super::life::Place;
use super::attempt::{ANSWERED_WITHIN, EACH};
use super::call::Asking;
use crate::cluster::membership::Membership;
use crate::history::client::ClientFact;

/// Part of a lease's duration on which the client relies, in percent: clocks do not run equally fast.
const COUNTED_PERCENT: u32 = 90;

/// An open lease, as far as its client knows.
pub(super) struct Lease {
    journal: Journal,
    membership: Membership,
    pub(super) session: SessionId,
    id: String,
    pub(super) secret: String,
    pub(super) ttl: Duration,
    /// Time until which the client may rely on the lease. `None`: the lease is over.
    deadline: Mutex<Option<Instant>>,
    /// Time at which the cluster may revoke a lock of the lease: a deadline of the lease as well
    /// (`client/README.md`).
    revoked: Mutex<Option<Instant>>,
}

impl Lease {
    /// Opens a lease at a random node. Returns `None` without a quick reply.
    pub(super) async fn open(place: &Place, ttl: Duration) -> Option<Lease> {
        let (journal, membership) =
            (place.caller.journal().clone(), place.caller.profile().membership.clone());
        let body = json!({ "ttl_ms": ttl.as_millis() as u64 });
        let asking = Asking::new(&membership, "POST /v1/leases".to_owned(), body);
        let sent = time::now();
        let (status, answer) = asking.once(ttl / 3).await?;
        assert!(status == 201, "a lease is opened, or refused for a while: {status} {answer}");
        let id = text(&answer, "lease");
        let session = i64::from_str_radix(id.trim_start_matches("0x"), 16).expect("a session's number");
        let (session, secret) = (SessionId(session), text(&answer, "secret"));
        let timeout_ms = u32::try_from(answer["ttl_ms"].as_u64()?).ok()?;
        let ttl = Duration::from_millis(timeout_ms.into());
        let deadline = Mutex::new(Some(sent + ttl * COUNTED_PERCENT / 100));
        journal.record(ClientFact::Session { session, timeout_ms, grace_ms: None });
        journal.record(ClientFact::Lease { session });
        Some(Lease { journal, membership, session, id, secret, ttl, deadline, revoked: Mutex::default() })
    }

    /// Returns a request with the lease's secret.
    pub(super) fn asking(&self, head: String, mut body: Value) -> Asking {
        body["secret"] = self.secret.as_str().into();
        Asking::new(&self.membership, head, body)
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns the time until which the client may rely on the lease.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let mut deadline = self.deadline.lock();
        // A deadline that has passed never moves.
        let revoked = *self.revoked.lock();
        *deadline = deadline.map(|known| known.min(revoked.unwrap_or(known)));
        *deadline = deadline.filter(|deadline| time::now() < *deadline);
        *deadline
    }

    /// Returns whether the lease is alive as far as the client knows, and reports a lease that is alive.
    pub(super) fn is_alive(&self) -> bool {
        let Some(deadline) = self.deadline() else { return false };
        let for_ms = deadline.saturating_since(time::now()).as_millis();
        let for_ms = u32::try_from(for_ms).unwrap_or(u32::MAX);
        self.journal.record(ClientFact::Alive { session: self.session, for_ms });
        true
    }

    /// Updates the deadline by the reply to a request sent at `sent`.
    pub(super) fn update(&self, sent: Instant, (status, answer): &(u16, Value)) {
        if *status == 404 || *status == 403 {
            // The lease is over; or the cluster is a new cluster, in which another client has the lease's
            // number.
            *self.deadline.lock() = None;
        } else if let (Some(valid_for_ms), Some(known)) = (answer["valid_for_ms"].as_u64(), self.deadline()) {
            let until = sent + Duration::from_millis(valid_for_ms) * COUNTED_PERCENT / 100;
            *self.deadline.lock() = Some(known.max(until));
        }
        self.hear(sent, answer);
    }

    /// Moves the deadline of questions, only to an earlier time.
    fn hear(&self, sent: Instant, answer: &Value) {
        let questions = answer["asked"].as_array().into_iter().flatten();
        let left = questions.filter_map(|question| question["revoked_in_ms"].as_i64());
        let at = left.map(|ms| sent + Duration::from_millis(ms.max(0).unsigned_abs())).min();
        let mut revoked = self.revoked.lock();
        *revoked = revoked.into_iter().chain(at).min();
    }

    /// Sends keepalives at a third of the lease's duration, until `silent_after` (`None`: always). Returns
    /// when the lease is over.
    pub(super) async fn keep_alive(&self, silent_after: Option<Duration>) {
        let silent_from = silent_after.map(|after| time::now() + after);
        let mut due = time::now() + self.ttl / 3;
        while let Some(deadline) = self.deadline() {
            let is_silent = silent_from.is_some_and(|from| time::now() >= from);
            time::sleep_until(if is_silent { deadline } else { due.min(deadline) }).await;
            if is_silent || self.deadline().is_none() {
                continue;
            }
            let sent = time::now();
            due = sent + self.ttl / 3;
            if let Some(answer) = self.keepalive().until(due.min(deadline), self.ttl / 6).await {
                self.update(sent, &answer);
                self.is_alive();
            }
        }
    }

    /// Returns whether a leader knows the lease; false without a reply.
    pub(super) async fn is_open(&self) -> bool {
        self.keepalive().once(self.ttl / 6).await.is_some_and(|(status, _)| status == 200)
    }

    fn keepalive(&self) -> Asking {
        self.asking(format!("POST /v1/leases/{}/keepalive", self.id), json!({}))
    }

    /// Ends the lease, or leaves the lease to expire.
    pub(super) async fn end(self) {
        *self.deadline.lock() = None;
        // With time enough for an answer about a write whose leader has changed.
        let limit = if chance(30) { ANSWERED_WITHIN + EACH } else { millis(200, 2_000) };
        if chance(70) && self.to_be_ended().once(limit).await.is_some_and(|answer| answer.0 == 204) {
            self.journal.record(ClientFact::HasEnded { session: self.session });
        }
    }

    /// Returns the request that ends the lease.
    pub(super) fn to_be_ended(&self) -> Asking {
        self.asking(format!("DELETE /v1/leases/{}", self.id), json!({}))
    }

    /// Returns a secret that has the lease's form and differs in the last digit.
    pub(super) fn wrong_secret(&self) -> String {
        let (rest, last) = self.secret.split_at(self.secret.len() - 1);
        format!("{rest}{}", if last == "0" { "1" } else { "0" })
    }
}

fn text(answer: &Value, field: &str) -> String {
    answer[field].as_str().unwrap_or_else(|| panic!("{answer} has no {field}")).to_owned()
}
