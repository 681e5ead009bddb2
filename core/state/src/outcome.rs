//! Results of applying a command: an answer for the sender, events for watchers, and the outcomes that one
//! session keeps.

use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Claim, Party, QueuePosition};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{ErrorCode, SessionId, Zxid};
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use crate::command::Attachment;
use crate::digest::Hasher;
use crate::locks::Question;
use crate::rules::Rules;
use crate::shared_map::SharedMap;

pub use rowlock_proto::lock_event::{EndReason, LockEvent, LockEventKind, PositionEnd};
/// The answer to one proposal, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The last zxid after this command: the command's own, if the command took one.
    pub zxid: Zxid,
    /// The response to the client's request, or the error of a refusal. The cluster's own commands have an
    /// empty response.
    pub result: Result<Response, ErrorCode>,
    /// The attachment given by `OpenSession` or `Reattach`, beside an empty response.
    pub attached: Option<Attached>,
}

/// A session as attached to the connection that opened or resumed the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    pub session: SessionId,
    /// Attachment for this connection's proposals.
    pub attachment: Attachment,
    pub timeout_ms: u32,
}

impl Applied {
    /// Returns the size in bytes, approximately.
    pub fn weight(&self) -> usize {
        weight(&self.result)
    }
}

/// The kind of a znode's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The znode was created; the parent's children changed.
    Created,
    /// The znode was deleted; the parent's children changed.
    Deleted,
    DataChanged,
}

/// A change of one znode. The watch table decides which watches fire.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub zxid: Zxid,
    /// Full path of the znode.
    pub path: &'a str,
    pub kind: ChangeKind,
    /// The znode's ACL (the last ACL, if deleted): only clients with READ receive events.
    pub acl: &'a [Acl],
    /// The parent's ACL, for child watches on the parent.
    pub parent_acl: &'a [Acl],
    /// The rules of locks: only clients that may see the znode receive events.
    pub rules: &'a Rules,
}

/// Command behind a lock event, and the permissions that decide who may read the event.
#[derive(Clone, Copy, Debug)]
pub struct EventContext<'a> {
    pub zxid: Zxid,
    /// Time of the command's batch: the leader's clock, milliseconds since 1970.
    pub time_ms: i64,
    /// The queue znode's ACL (the last ACL, if deleted).
    pub acl: &'a [Acl],
    /// The ACL of the lock's znode.
    pub lock_acl: &'a [Acl],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionEnd {
    /// The client closed the session.
    Closed,
    Expired,
    /// A superuser ended the session. The client may not know yet, as after an expiry.
    Ended,
}

/// Receives the changes of a command in order, during apply. Defined here, implemented by layers above.
pub trait EventSink {
    fn changed(&mut self, change: &Change<'_>);
    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32);
    /// Called when a session has moved to another connection of any node.
    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32);
    /// Called when a session has ended, after the deletions of its ephemerals.
    fn session_ended(&mut self, session: SessionId, end: SessionEnd);
    /// Called when a lock's queue has changed, after the znode changes of the same command.
    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        let _ = (event, context);
    }
    /// Called with a holder's new question: an [`LockEventKind::Asked`], and the only call for this kind.
    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        let _ = (event, context, question);
    }
}

impl EventSink for () {
    fn changed(&mut self, _: &Change<'_>) {}
    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}
}

/// Limit of outcomes kept per session.
pub const OUTCOMES_MAX: usize = 1_024;

/// Limit of kept bytes at which a session keeps no further outcome.
pub const OUTCOMES_MAX_BYTES: usize = 1 << 20;

/// Limit of bytes kept by all sessions, beyond which each session may keep [`OUTCOMES_SMALL_BYTES`].
pub const OUTCOMES_ALL_BYTES: usize = 256 << 20;

/// Limit of bytes per session while all sessions together keep much: enough for a client that acknowledges.
pub const OUTCOMES_SMALL_BYTES: usize = 16 << 10;

/// Returns the limit of bytes per session while all sessions keep `all_bytes`.
fn allowance(all_bytes: usize) -> usize {
    if all_bytes < OUTCOMES_ALL_BYTES { OUTCOMES_MAX_BYTES } else { OUTCOMES_SMALL_BYTES }
}

/// Outcome of the first execution of a write.
pub(crate) type Stored = Result<Response, ErrorCode>;

/// Outcomes that one session keeps, in a compact form, with their bytes and their digest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcomes {
    /// The client knows the outcomes up to this number.
    acked: u64,
    kept: SharedMap<u64, Kept>,
    bytes: usize,
    digest: u64,
}

/// A kept outcome and its share of the sums.
#[derive(Clone, Debug)]
struct Kept {
    form: Form,
    bytes: usize,
    hash: u64,
}

/// Compact form of a kept outcome: frequent outcomes of locks without the surrounding lists.
#[derive(Clone, Debug)]
enum Form {
    Held(Claim),
    Released(bool),
    Other(Box<Stored>),
}

impl Kept {
    fn new(id: u64, stored: &Stored) -> Self {
        let form = match stored {
            Ok(Response::QueuePositions(positions)) => match positions.as_slice() {
                [QueuePosition::Held(claim)] => Form::Held(claim.clone()),
                _ => Form::Other(Box::new(stored.clone())),
            },
            Ok(Response::Held(held)) => match held.as_slice() {
                [held] => Form::Released(*held),
                _ => Form::Other(Box::new(stored.clone())),
            },
            _ => Form::Other(Box::new(stored.clone())),
        };
        let bytes = weight(stored);
        let kept = Kept { form, bytes, hash: hash(id, stored, bytes) };
        debug_assert_eq!(kept.stored(), *stored, "the short form of outcome {id} is that of another one");
        kept
    }

    fn stored(&self) -> Stored {
        match &self.form {
            Form::Held(claim) => Ok(Response::QueuePositions(smallvec![QueuePosition::Held(claim.clone())])),
            Form::Released(held) => Ok(Response::Held(smallvec![*held])),
            Form::Other(stored) => (**stored).clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutcomeRecord {
    pub session: SessionId,
    pub id: u64,
    pub stored: Stored,
}

impl Outcomes {
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.kept.iter().map(|(id, _)| *id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Stored)> {
        self.kept.iter().map(|(id, kept)| (*id, kept.stored()))
    }

    /// Returns whether the write with this number is over.
    pub(crate) fn knows(&self, id: u64) -> bool {
        id <= self.acked || self.kept.get(&id).is_some()
    }

    pub(crate) fn get(&self, id: u64) -> Option<Stored> {
        self.kept.get(&id).map(Kept::stored)
    }

    /// Forgets the outcomes that the client knows.
    pub(crate) fn acknowledge(&mut self, acked: u64) {
        self.acked = self.acked.max(acked);
        while self.kept.first().is_some_and(|(id, _)| *id <= self.acked) {
            let (_, kept) = self.kept.pop_first().expect("just looked at");
            self.sub(&kept);
        }
        self.check_empty();
    }

    /// Asserts that sums over no outcomes are zero.
    fn check_empty(&self) {
        let sums = (self.bytes, self.digest);
        assert!(!self.kept.is_empty() || sums == (0, 0), "no outcome is kept, with the sums {sums:?}");
    }

    /// Returns the bytes of all kept outcomes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the session keeps no further outcome while all sessions keep `all_bytes`.
    pub(crate) fn is_full(&self, all_bytes: usize) -> bool {
        self.kept.len() >= OUTCOMES_MAX || self.bytes >= allowance(all_bytes)
    }

    /// Returns whether a write with this number is new, in order, and within the bounds: the usual case.
    pub(crate) fn takes(&self, id: u64, all_bytes: usize) -> bool {
        id > self.acked && self.kept.last_key().is_none_or(|last| *last < id) && !self.is_full(all_bytes)
    }

    pub(crate) fn keep(&mut self, id: u64, stored: &Stored) {
        assert!(id > self.acked, "outcome {id} is kept for nobody");
        let kept = Kept::new(id, stored);
        self.add(&kept);
        let old = self.kept.insert(id, kept);
        assert!(old.is_none(), "an outcome is kept once");
    }

    /// Keeps an outcome accepted by [`takes`](Self::takes), and forgets the outcomes that the client knows.
    /// In most cases the client knows the previous outcome, and the new outcome reuses its slot.
    pub(crate) fn keep_next(&mut self, id: u64, stored: &Stored, acked: u64) {
        assert!(acked < id, "a client knows outcome {acked} before write {id} is over");
        assert!(self.kept.last_key().is_none_or(|last| *last < id), "outcome {id} is not the newest one");
        if let Some((known, place)) = self.kept.only_mut().filter(|(known, _)| *known <= acked) {
            assert!(self.bytes == place.bytes && self.digest == place.hash, "one outcome is the whole sum");
            *known = id;
            *place = Kept::new(id, stored);
            (self.bytes, self.digest) = (place.bytes, place.hash);
            self.acked = self.acked.max(acked);
        } else {
            self.keep(id, stored);
            self.acknowledge(acked);
        }
        debug_assert!(self.kept.len() <= OUTCOMES_MAX, "a session keeps {} outcomes", self.kept.len());
    }

    fn add(&mut self, kept: &Kept) {
        self.bytes += kept.bytes;
        self.digest = self.digest.wrapping_add(kept.hash);
    }

    fn sub(&mut self, kept: &Kept) {
        assert!(self.bytes >= kept.bytes, "an outcome is forgotten that was not counted");
        self.bytes -= kept.bytes;
        self.digest = self.digest.wrapping_sub(kept.hash);
    }

    /// Adds the outcomes to the hash of their session; adds nothing if there are none.
    pub(crate) fn add_to(&self, hasher: Hasher) -> Hasher {
        if self.acked == 0 && self.kept.is_empty() {
            return hasher;
        }
        hasher.word(self.acked).word(self.digest)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.kept.check()?;
        let mut again = Outcomes::default();
        for (id, stored) in self.iter() {
            again.keep(id, &stored);
        }
        if again.bytes != self.bytes || again.digest != self.digest {
            return Err("the kept outcomes are miscounted".to_owned());
        }
        // The write behind the acknowledged ones is always admitted.
        let others = self.kept.iter().filter(|(id, _)| **id != self.acked + 1).map(|(_, kept)| kept.bytes);
        let (count, bytes, largest) =
            others.fold((0, 0, 0), |(count, sum, largest), one| (count + 1, sum + one, largest.max(one)));
        if count > OUTCOMES_MAX || bytes - largest >= OUTCOMES_MAX_BYTES {
            return Err(format!("{} outcomes with {} bytes are kept", self.kept.len(), self.bytes));
        }
        match self.kept.first() {
            Some((id, _)) if *id <= self.acked => Err(format!("outcome {id} is kept for nobody")),
            _ => Ok(()),
        }
    }
}

/// Returns the size in bytes, approximately.
pub(crate) fn weight(stored: &Stored) -> usize {
    const BASE: usize = 64;
    const STAT: usize = 80;
    let of_party = |party: &Party| BASE + party.path.len() + party.label.len();
    let of_state = |position: &QueuePosition| match position {
        QueuePosition::Held(claim) => BASE + claim.path.len(),
        QueuePosition::Waiting { claim, holder, .. } => {
            BASE + claim.path.len() + holder.as_ref().map_or(0, of_party)
        }
        QueuePosition::Busy { holder, .. } => BASE + holder.as_ref().map_or(0, of_party),
        QueuePosition::Deadlock(circle) => BASE + circle.iter().map(of_party).sum::<usize>(),
        QueuePosition::LimitIs(_) | QueuePosition::Absent => BASE,
    };
    let of_result = |result: &OpResult| match result {
        OpResult::Create(path) => BASE + path.len(),
        OpResult::Create2(path, _) | OpResult::CreateContainer(path, _) | OpResult::CreateTtl(path, _) => {
            BASE + STAT + path.len()
        }
        _ => BASE + STAT,
    };
    BASE + match stored {
        Ok(Response::Path(path) | Response::PathStat(path, _)) => STAT + path.len(),
        Ok(Response::Multi(results)) => results.iter().map(of_result).sum(),
        Ok(Response::QueuePositions(positions)) => positions.iter().map(of_state).sum(),
        Ok(Response::Held(held)) => held.len(),
        // No logged request has another response.
        Ok(_) => STAT,
        Err(_) => 0,
    }
}

/// Hashes an outcome, in as much detail as replicas could differ by accident.
fn hash(id: u64, stored: &Stored, weight: usize) -> u64 {
    let hasher = Hasher::new(8).word(id).word(weight as u64);
    match stored {
        Ok(Response::Path(path)) => hasher.bytes(path.as_bytes()),
        Ok(Response::PathStat(path, stat)) => hasher.bytes(path.as_bytes()).int(stat.czxid.0),
        Ok(Response::Stat(stat)) => hasher.int(stat.mzxid.0).int(i64::from(stat.version.0)),
        Ok(Response::Held(held)) if held.len() == 1 => hasher.bytes(&[u8::from(held[0])]),
        Ok(Response::Held(held)) => {
            hasher.bytes(&held.iter().map(|held| u8::from(*held)).collect::<SmallVec<[u8; 8]>>())
        }
        Ok(_) => hasher,
        Err(code) => hasher.int(i64::from(code.code())),
    }
    .finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that keeps outcomes of this size.
    fn keeping(bytes: usize) -> Outcomes {
        let stored = |len: usize| Ok(Response::Multi(vec![OpResult::Create("p".repeat(len))]));
        let mut outcomes = Outcomes::default();
        let least = weight(&stored(0));
        for id in 1.. {
            let left = bytes - outcomes.bytes();
            if left == 0 {
                break;
            }
            // The rest is empty, or suffices for one more.
            let len = if left < 2 * least + 2_000 { left } else { least + 2_000 };
            outcomes.keep(id, &stored(len - least));
        }
        outcomes.check().unwrap();
        assert_eq!(outcomes.bytes(), bytes);
        outcomes
    }

    #[test]
    fn a_sessions_outcomes_are_bounded_tighter_when_all_keep_much() {
        let (next, little, much) = (OUTCOMES_MAX as u64 + 1, OUTCOMES_ALL_BYTES - 1, OUTCOMES_ALL_BYTES);
        for (bytes, takes_while_little, takes_while_much) in [
            (0, true, true),
            (OUTCOMES_SMALL_BYTES - 1, true, true),
            (OUTCOMES_SMALL_BYTES, true, false),
            (OUTCOMES_MAX_BYTES - 1, true, false),
            (OUTCOMES_MAX_BYTES, false, false),
        ] {
            let outcomes = keeping(bytes);
            let takes = (outcomes.takes(next, little), outcomes.takes(next, much));
            assert_eq!(takes, (takes_while_little, takes_while_much), "{} bytes", outcomes.bytes());
        }
    }
}
