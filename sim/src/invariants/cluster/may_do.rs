//! may-do: no request that the rules in force at its position of the log forbid succeeds or changes a queue,
//! and no request that they permit is refused for lack of a right. Where nodes demand tokens, the same holds
//! for the roles of tokens. ACLs of znodes permit and forbid in the same way.

use rowlock_proto::report::{HistoryEntry, LockEventKind, PositionEnd};
use rowlock_proto::{ErrorCode, Right};

use super::super::Invariant;
use super::rules::{Reader, Rules};
use crate::history::access::{Access, Bearer, Need, is_guarded};
use crate::history::client::ClientFact;
use crate::history::{Book, Fact};

#[derive(Default)]
pub struct MayDo(Rules);

impl MayDo {
    fn check_answer(&self, reader: Reader, what: &Access) -> Result<(), String> {
        let Access::Answered { since, zxid, needs, result, .. } = what else { return Ok(()) };
        if !needs.is_empty() && needs.iter().all(Need::is_sight) {
            return Ok(());
        }
        let met = self.0.met(reader, needs, (*since, *zxid));
        match result {
            Ok(()) if !met.contains(&true) => Err(format!(
                "a request without {needs:?} succeeded at {zxid}: {}",
                self.0.describe(reader, *zxid)
            )),
            Err(ErrorCode::NoAuth) if !met.contains(&false) => Err(format!(
                "a request with {needs:?} was refused at {zxid}: {}",
                self.0.describe(reader, *zxid)
            )),
            _ => Ok(()),
        }
    }

    /// Checks the author of a new position, or of the end of another client's position. The request may have
    /// been refused, or never answered.
    fn check_effect(&self, entry: &HistoryEntry) -> Result<(), String> {
        let Some(event) = entry.event.lock() else { return Ok(()) };
        let lock = &event.lock;
        let (right, authors) = match &event.kind {
            LockEventKind::Requested { .. } => {
                (Right::Take, self.0.readers(|(_, session), _| session == event.session))
            }
            LockEventKind::Abandoned(PositionEnd { by: Some(by), .. })
            | LockEventKind::Lost(PositionEnd { by: Some(by), .. }) => {
                // The name of a digest lacks the hash.
                let digest = format!("{by}:");
                let is_author = |one: &String| one == by || one.starts_with(&digest);
                (Right::Force, self.0.readers(|_, who| who.iter().any(is_author)))
            }
            _ => return Ok(()),
        };
        let (needs, times) = ([Need::Right { lock: lock.clone(), right }], (entry.zxid, entry.zxid));
        let is_permitted = |author: &Reader| self.0.met(*author, &needs, times).contains(&true);
        match !is_guarded(lock) || authors.is_empty() || authors.iter().any(is_permitted) {
            true => Ok(()),
            false => Err(format!("{entry:?} without {needs:?}: {}", self.0.describe(authors[0], entry.zxid))),
        }
    }
}

/// Checks the status of an HTTP answer. The roles are read naively, without code of the product.
fn check_credential(bearer: Bearer, role: &str, status: u16) -> Result<(), String> {
    let is_right = match bearer.roles() {
        None => status == 401 || status == 429 && bearer != Bearer::Absent,
        Some(roles) if permit(roles, role) => ![401, 403, 429].contains(&status),
        Some(_) => status == 403,
    };
    match is_right {
        true => Ok(()),
        false => Err(format!("a request for {role} with the token {} got {status}", bearer.name())),
    }
}

fn permit(roles: &str, wanted: &str) -> bool {
    let (kind, path) = wanted.split_once(':').unwrap_or((wanted, ""));
    let names = |role: &str, kind: &str| {
        let pattern = role.split_once(':').filter(|(of, _)| *of == kind).map(|(_, pattern)| pattern);
        pattern.is_some_and(|pattern| match pattern.strip_suffix('*') {
            Some(folder) => path.len() > folder.len() && path.starts_with(folder),
            None => path == pattern,
        })
    };
    roles.split(',').any(|role| match (role, kind) {
        ("operator", _) | ("read", "read" | "see") => true,
        (role, "lease") => role.contains(':'),
        (role, "see") => names(role, "lock"),
        (role, kind) => names(role, kind),
    })
}

impl Invariant for MayDo {
    fn name(&self) -> &'static str {
        "may-do"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.0.observe(fact);
        match fact {
            Fact::Client { client, what: ClientFact::Access(what), .. } => match what {
                Access::Answered { session, .. } => self.check_answer((*client, *session), what),
                Access::Credential { bearer, role, status } => check_credential(*bearer, role, *status),
                _ => Ok(()),
            },
            Fact::LockEvent(entry) => self.check_effect(entry),
            _ => Ok(()),
        }
    }
}
