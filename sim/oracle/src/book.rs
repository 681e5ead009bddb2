//! The book: znodes, sessions and locks as the log has made them so far, with a list of positions for each
//! lock in the order of entry. All other files change or read this book.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{ASK_BY_MAX_BYTES, Claim, Mode, Owner};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId, Stat, Zxid};
use rowlock_state::Lifetime;
use rowlock_state::command::{Attachment, Ordinal, Stamp};
use rowlock_state::outcome::{ChangeKind, EndReason};
use rowlock_state::{ClusterVersion, Proof, Question};

use crate::events::Event;

pub(crate) type Reply<T> = Result<T, ErrorCode>;

/// The naive model of the replicated state.
pub struct Oracle {
    pub(crate) znodes: BTreeMap<Arc<str>, Arc<Znode>>,
    /// Values of changed znodes before the running command, in order of the changes.
    pub(crate) undo: Vec<(Arc<str>, Option<Arc<Znode>>)>,
    /// Locks with positions or a delay.
    pub(crate) locks: BTreeMap<Arc<str>, Lock>,
    /// Locks that the running command may have changed.
    pub(crate) touched: BTreeSet<Arc<str>>,
    pub(crate) sessions: BTreeMap<SessionId, Open>,
    pub(crate) zxid: Zxid,
    pub(crate) time_ms: i64,
    pub(crate) entry: Ordinal,
    pub(crate) grace_ms: u32,
    pub(crate) is_founded: bool,
    pub(crate) version: ClusterVersion,
    pub(crate) is_version_held: bool,
    /// Events of the running command.
    pub(crate) events: Vec<Event>,
    /// The machine's answer to the running command, for the few answers that the model leaves open.
    pub(crate) given: Reply<Response>,
    pub(crate) news: News,
}

/// Changes by the running command, for the promises.
#[derive(Default)]
pub(crate) struct News {
    /// Session whose command runs.
    pub by: SessionId,
    pub entered: Vec<Position>,
    /// Locks with a new holder.
    pub granted: BTreeSet<Arc<str>>,
    pub left: Vec<(Position, EndReason)>,
    /// The promise about the command's answer, if there is one beside `the-oracle-agrees`.
    pub about: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Znode {
    pub data: Option<Bytes>,
    pub acl: Arc<[Acl]>,
    pub stat: Stat,
    pub creates: i32,
    pub lifetime: Lifetime,
}

impl Znode {
    /// Returns whether a container or TTL znode without children has served its purpose.
    pub(crate) fn is_due(&self, now_ms: i64) -> bool {
        match self.lifetime {
            Lifetime::Persistent | Lifetime::Session => false,
            Lifetime::Container => self.creates != 0,
            Lifetime::Ttl(ttl_ms) => now_ms - self.stat.mtime_ms > ttl_ms,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub proof: Proof,
    pub timeout_ms: u32,
    pub longest_timeout_ms: u32,
    pub attachment: Attachment,
    /// The client knows the outcomes up to this number.
    pub acked: u64,
    /// Outcomes of later writes.
    pub outcomes: BTreeMap<u64, Reply<Response>>,
}

/// Lock with positions or a delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    pub positions: Vec<Position>,
    /// End of a delay, before which no position gets the lock; 0: no delay.
    pub delayed_until_ms: i64,
}

/// Position in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    pub path: Arc<str>,
    pub token: FencingToken,
    pub session: SessionId,
    pub mode: Mode,
    pub owner: Owner,
    pub is_acquired: bool,
    pub max_hold_ms: u32,
    pub lock_delay_ms: u32,
    pub min_hold_ms: u32,
    pub min_hold_lapses: bool,
    pub requested_ms: i64,
    /// Time of the grant; `None` for a waiter.
    pub granted_ms: Option<i64>,
    pub asked: Option<Question>,
    pub address: String,
}

impl Position {
    /// Makes the position of a plain create. The name states the mode, as in Curator's and kazoo's recipes.
    pub(crate) fn plain(path: &Arc<str>, by: &Author, zxid: Zxid, now_ms: i64) -> Position {
        let has = |word: &str| split(path).is_some_and(|(_, name)| name.contains(word));
        let mode = match (has("__READ__") || has("__rlock__"), has("-lease-")) {
            (true, _) => Mode::Shared,
            (false, true) => Mode::Permits(1),
            (false, false) => Mode::Exclusive,
        };
        Position {
            path: path.clone(),
            token: FencingToken(zxid.0),
            session: by.session,
            mode,
            owner: Owner::Unnamed,
            is_acquired: false,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            min_hold_ms: 0,
            min_hold_lapses: false,
            requested_ms: now_ms,
            granted_ms: None,
            asked: None,
            address: address_in(&by.who).to_owned(),
        }
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim { path: self.path.clone(), token: self.token }
    }

    /// Returns the time until which the lock is kept if this hold ends now for this reason.
    pub(crate) fn kept_until_ms(&self, why: EndReason, now_ms: i64) -> Option<i64> {
        let granted_ms = self.granted_ms?;
        let after_session = [EndReason::SessionExpired, EndReason::SessionEnded].contains(&why);
        let delay_ms = if after_session { self.lock_delay_ms } else { 0 };
        let minimum_ms = match why {
            EndReason::Forced => 0,
            EndReason::Released => self.min_hold_ms,
            _ if self.min_hold_lapses => 0,
            _ => self.min_hold_ms,
        };
        let until_ms = (now_ms + i64::from(delay_ms)).max(granted_ms + i64::from(minimum_ms));
        (until_ms > now_ms).then_some(until_ms)
    }
}

/// Change of a znode by the running command.
pub(crate) struct Change {
    pub path: Arc<str>,
    pub kind: ChangeKind,
    pub acl: Vec<Acl>,
    pub parent_acl: Vec<Acl>,
    pub data: Option<Bytes>,
    pub owner: SessionId,
    pub czxid: Zxid,
    /// The created znode as a queue position.
    pub position: Option<Position>,
}

impl Change {
    pub(crate) fn new(
        path: &str,
        kind: ChangeKind,
        (acl, parent_acl): (Vec<Acl>, Vec<Acl>),
        data: Option<Bytes>,
        owner: SessionId,
        czxid: Zxid,
    ) -> Change {
        Change { path: path.into(), kind, acl, parent_acl, data, owner, czxid, position: None }
    }
}

/// Cause of a command's changes.
pub(crate) struct Cause {
    pub session: SessionId,
    pub who: Arc<[Id]>,
    pub why: Option<EndReason>,
}

impl Cause {
    pub(crate) fn of(by: &Author, why: Option<EndReason>) -> Cause {
        Cause { session: by.session, who: by.who.clone(), why }
    }

    pub(crate) fn of_the_cluster(why: Option<EndReason>) -> Cause {
        Cause { session: SessionId::NONE, who: [].into(), why }
    }

    /// Returns the name of the client: the first proven identity, else the address; of a digest the user.
    pub(crate) fn name(&self) -> Option<String> {
        let is_name = |id: &&Id| !["ip", "super", "world"].contains(&&*id.scheme);
        let id = self.who.iter().find(is_name).or(self.who.first())?;
        let shown = if id.scheme == "digest" { id.id.split(':').next()? } else { &id.id };
        let name = if shown.is_empty() { id.scheme.clone() } else { format!("{}:{shown}", id.scheme) };
        let mut bytes = 0;
        let fits = |letter: &char| {
            bytes += letter.len_utf8();
            bytes <= ASK_BY_MAX_BYTES
        };
        Some(name.chars().take_while(fits).collect())
    }
}

/// Reports whether modes hold beside each other, up to a limit of permits.
pub(crate) fn go_together(one: Mode, other: Mode) -> bool {
    matches!((one, other), (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_)))
}

/// Sender of a request.
pub(crate) struct Author {
    pub session: SessionId,
    pub who: Arc<[Id]>,
    pub stamp: Stamp,
}

/// Returns the address among a client's identities; empty if unknown.
pub(crate) fn address_in(who: &[Id]) -> &str {
    who.iter().find(|id| id.scheme == "ip").map_or("", |id| &id.id)
}

/// Splits a path at its last slash into parent and name; `None` without a slash.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let (parent, name) = path.rsplit_once('/')?;
    Some((if parent.is_empty() { "/" } else { parent }, name))
}
