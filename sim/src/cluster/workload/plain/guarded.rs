//! Locks under rules, their users, and the rules that operators draw for them.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_proto::lock::Claim;
use rowlock_proto::{Id, SessionId};
use rowlock_state::acl::digest_identity;

use super::super::chance::{chance, pick};
use crate::cluster::operator::SECRET;
use crate::cluster::record::client_address;
use crate::cluster::run::CLIENTS;
use crate::history::access::Bearer;
use crate::history::client::ClientId;

/// Locks under rules. The folder `ab` is a lock itself, and its name begins with that of the folder `a`.
pub(super) const LOCKS: [&str; 4] = ["/guarded/a/x", "/guarded/a/y", "/guarded/ab/x", "/guarded/ab"];
/// Locks that are not below another lock.
pub(super) const LEAVES: [&str; 3] = ["/guarded/a/x", "/guarded/a/y", "/guarded/ab/x"];
pub(super) const FOLDERS: [&str; 2] = ["/guarded", "/guarded/a"];
const PATTERNS: [&str; 8] = [
    "/guarded",
    "/guarded/*",
    "/guarded/a",
    "/guarded/a/*",
    "/guarded/a/x",
    "/guarded/ab",
    "/guarded/ab/*",
    "/guarded/ab/x",
];
const RIGHTS: [&str; 9] =
    ["all", "none", "take", "see", "take,see", "take,ask", "ask,see", "force,see", "take,ask,see"];
const USERS: [&[u8]; 3] = [b"ann:1", b"bob:2", b"cy:3"];
/// Percentage of patterns that have rules.
const NAMED_PERCENT: u64 = 35;
/// Percentage of identities that the rules of a pattern name.
const MEANT_PERCENT: u64 = 35;
/// Percentage of sessions that are an operator's.
const OPERATOR_PERCENT: u64 = 25;
/// Percentage of the other sessions that prove two users.
const TWO_PERCENT: u64 = 15;
/// Percentage of the other sessions that prove no user.
const UNPROVEN_PERCENT: u64 = 15;
/// Maximum number of places that all clients know.
const KNOWN_MAX: usize = 16;

/// A place in a queue, and the session that owns the place.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) lock: &'static str,
    pub(super) claim: Claim,
    pub(super) owner: SessionId,
}

/// The newest places of all clients, so that a client can guess a hidden place. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Guarded(Arc<Mutex<VecDeque<Known>>>);

impl Guarded {
    pub(super) fn add(&self, place: Known) {
        let mut all = self.0.lock();
        if all.len() >= KNOWN_MAX {
            all.pop_front();
        }
        all.push_back(place);
    }

    pub(super) fn any(&self) -> Option<Known> {
        let all: Vec<Known> = self.0.lock().iter().cloned().collect();
        (!all.is_empty()).then(|| pick(&all))
    }
}

/// The identities of a session.
#[derive(Clone)]
pub(super) struct Person {
    pub(super) proofs: Vec<Bytes>,
    /// Identities as the text of rules names them.
    pub(super) who: Vec<String>,
    pub(super) is_operator: bool,
}

impl Person {
    /// Draws the identities of a session from this address.
    pub(super) fn any(address: Ipv4Addr) -> Person {
        let is_operator = chance(OPERATOR_PERCENT);
        let proofs: Vec<&[u8]> = if is_operator {
            vec![SECRET]
        } else if chance(UNPROVEN_PERCENT) {
            Vec::new()
        } else if chance(TWO_PERCENT) {
            vec![USERS[0], pick(&USERS[1..])]
        } else {
            vec![pick(&USERS)]
        };
        let digests = proofs.iter().map(|proof| digest(proof));
        let superuser = is_operator.then(|| "super".to_owned());
        let who = superuser.into_iter().chain([format!("ip:{address}")]).chain(digests).collect();
        Person { proofs: proofs.into_iter().map(Bytes::from_static).collect(), who, is_operator }
    }

    /// Adds any user, who may be there already.
    pub(super) fn add_user(&mut self) {
        let proof = pick(&USERS);
        self.proofs.push(Bytes::from_static(proof));
        self.who.push(digest(proof));
    }
}

/// Draws an identity of a user, as an ACL names it.
pub(super) fn any_user() -> Id {
    digest_identity(&String::from_utf8_lossy(pick(&USERS)))
}

fn digest(proof: &[u8]) -> String {
    format!("digest:{}", digest_identity(&String::from_utf8_lossy(proof)).id)
}

/// Draws the text of rules.
pub(super) fn any_rules() -> String {
    let addresses = (0..CLIENTS).map(|n| format!("ip:{}", client_address(ClientId(n))));
    let users = USERS.iter().map(|proof| digest(proof));
    let fixed = ["anyone".to_owned(), format!("token:{}", Bearer::Worker.name())];
    let all: Vec<String> = fixed.into_iter().chain(users).chain(addresses).collect();
    let mut text = String::from("# drawn\n");
    for pattern in PATTERNS {
        if !chance(NAMED_PERCENT) {
            continue;
        }
        for who in all.iter().filter(|_| chance(MEANT_PERCENT)) {
            text.push_str(&format!("{} {pattern} {who}\n", pick(&RIGHTS)));
        }
    }
    text
}
