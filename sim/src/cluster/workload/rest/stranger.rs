//! Requests with credentials that permit little or nothing, at nodes that demand tokens.

use serde_json::{Value, json};

use super::super::chance::{between, pick};
use super::super::life::Place;
use super::attempt::EACH;
use super::call::Asking;
use crate::history::access::{Access, Bearer};
use crate::history::client::ClientFact;

const STRANGERS: [Bearer; 5] =
    [Bearer::Reader, Bearer::Narrow, Bearer::Ended, Bearer::Unknown, Bearer::Absent];
/// Lock that [`Bearer::Narrow`] may take. No other client uses the lock.
const NARROW: &str = "narrow/one";

/// Maximum number of requests in a row.
const REQUESTS: u64 = 5;

/// Sends requests of strangers, and records the statuses of the answers.
pub(super) async fn run(place: &Place) {
    for _ in 0..between(1, REQUESTS) {
        try_one(place).await;
    }
}

async fn try_one(place: &Place) {
    let bearer = pick(&STRANGERS);
    let profile = place.caller.profile();
    let lock = profile.locks.path(pick(&profile.plain));
    let (head, body, role) = pick(&requests(lock.trim_start_matches("/locks/")));
    let asking = Asking::new(&profile.membership, head, body).by(bearer);
    if let Some((status, _)) = asking.once(EACH).await {
        let what = Access::Credential { bearer, role, status };
        place.caller.journal().record(ClientFact::Access(what));
    }
}

/// Returns requests about the lock, each with its document and the role that it needs. A stranger with the
/// role changes nothing that another client can notice.
fn requests(lock: &str) -> Vec<(String, Value, String)> {
    let short = || json!({ "ttl_ms": 2_000 });
    let token = || json!({ "token": "1" });
    let nothing = || Value::Null;
    let [this, see, znode] = ["lock", "see", "znode"].map(|kind| format!("{kind}:/locks/{lock}"));
    let all = [
        (format!("POST /v1/locks/{lock}/acquire"), short(), &*this),
        (format!("POST /v1/locks/{lock}/release"), token(), &this),
        (format!("POST /v1/locks/{lock}/verify"), token(), &this),
        (format!("POST /v1/locks/{lock}/ask"), json!({ "reason": "stranger" }), &this),
        (format!("POST /v1/locks/{NARROW}/verify"), token(), "lock:/locks/narrow/one"),
        (format!("DELETE /v1/locks/{lock}/holders/1"), nothing(), "operator"),
        ("DELETE /v1/sessions/0x1".to_owned(), nothing(), "operator"),
        ("POST /v1/leases".to_owned(), short(), "lease"),
        (format!("GET /v1/znodes/locks/{lock}?view=stat"), nothing(), &znode),
        (format!("DELETE /v1/znodes/locks/{lock}"), nothing(), &znode),
        (format!("GET /v1/queue?lock=/locks/{lock}"), nothing(), &see),
        (format!("GET /v1/watch?lock=/locks/{lock}"), nothing(), &see),
        ("GET /v1/elections/lead/leader".to_owned(), nothing(), "see:/locks/@elections/lead"),
        ("GET /v1/locks?limit=3".to_owned(), nothing(), "read"),
        ("GET /v1/history?limit=3".to_owned(), nothing(), "read"),
        ("GET /v1/status".to_owned(), nothing(), "read"),
    ];
    all.into_iter().map(|(head, body, role)| (head, body, role.to_owned())).collect()
}
