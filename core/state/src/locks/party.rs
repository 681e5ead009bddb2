//! Contents of answers about positions: the client's own positions in full, other positions by name as far as
//! room and READ permissions allow.
//!
//! Clients choose the length of names, and one acquire may ask for a thousand locks. Without a bound an
//! answer would be a thousand times as large as its request, in memory, on the network and among kept
//! outcomes.
//!
//! Invariant: an answer shows nothing of a position that a plain client with the same rights could not read.
//! The position's name needs READ on the lock's znode, the rest also READ on the position.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Id, perms};
use rowlock_proto::lock::{Claim, Party, QueuePosition};
use rowlock_proto::{FencingToken, Right, SessionId};

use super::contender::{Contender, Key, LABEL_MAX, PARTIES_MAX_BYTES, PARTY_PATH_MAX};
use super::lock::Lock;
use super::publish::{place, shortened};
use crate::arena::Number;
use crate::command::Author;
use crate::guard::decides;
use crate::machine::Machine;

/// Remaining bytes of an answer for names of other clients, and the answer's reader.
pub(crate) struct Room<'a> {
    bytes: usize,
    who: &'a [Id],
}

/// Part of a position that the reader may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    Nothing,
    Name,
    All,
}

impl<'a> Room<'a> {
    pub(crate) fn of_an_answer(who: &'a [Id]) -> Room<'a> {
        Room { bytes: PARTIES_MAX_BYTES, who }
    }

    pub(super) fn of(by: &Author<'a>) -> Room<'a> {
        Room::of_an_answer(by.who)
    }

    /// Takes bytes from the rest, if enough are left.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(())
    }

    fn may_read(&self, machine: &Machine, znode: Number) -> bool {
        machine.tree.node(znode).acl.allows(perms::READ, self.who)
    }

    fn may_see(&self, machine: &Machine, lock: &Lock) -> bool {
        machine.rules.allow(&lock.path, Right::See, self.who)
    }

    /// Returns the part of a position that the reader may see.
    fn sight(&self, machine: &Machine, lock: &Lock, place: &Contender) -> Sight {
        match self.may_read(machine, lock.node) && self.may_see(machine, lock) {
            false => Sight::Nothing,
            true if self.may_read(machine, place.node) => Sight::All,
            true => Sight::Name,
        }
    }
}

impl Machine {
    pub(super) fn position(&self, path: &str, key: Key, room: &mut Room<'_>) -> QueuePosition {
        let claim = Claim { path: key.path.clone(), token: FencingToken(key.czxid.0) };
        let key = key.as_ref();
        let Some(lock) = self.locks.get(path) else { return QueuePosition::Absent };
        match lock.contender(key) {
            Some(contender) if contender.granted_ms.is_some() => QueuePosition::Held(claim),
            Some(_) => {
                let ahead = self.ahead_shown(lock, lock.ahead(key), room);
                QueuePosition::Waiting { claim, ahead, holder: self.holder(lock, room) }
            }
            None => QueuePosition::Absent,
        }
    }

    /// Returns the number of positions in front, as shown: without READ on the lock at most 1.
    pub(super) fn ahead_shown(&self, lock: &Lock, ahead: usize, room: &Room<'_>) -> u32 {
        // A delay may outlast the znode of a lock without a queue.
        let znode = lock.znode().or_else(|| self.tree.find(&lock.path));
        let is_readable = decides!(
            "queue-length-is-visible",
            znode.is_some_and(|znode| room.may_read(self, znode)) && room.may_see(self, lock)
        );
        if is_readable { ahead as u32 } else { 1 }
    }

    /// Updates the states of the session's positions.
    pub(crate) fn renew_positions(
        &self,
        session: SessionId,
        positions: &mut [QueuePosition],
        mut room: Room<'_>,
    ) {
        for position in positions {
            let (QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. }) = &*position else {
                continue;
            };
            let found = place(claim).filter(|(path, key)| {
                let lock = self.locks.get(path);
                let contender = lock.and_then(|lock| lock.contender(*key));
                contender
                    .is_some_and(|contender| decides!("position-is-of-session", contender.session == session))
            });
            *position = found.map_or(QueuePosition::Absent, |(path, key)| {
                let key = Key { czxid: key.czxid, path: key.path.into() };
                self.position(path, key, &mut room)
            });
        }
    }

    /// Returns the first holder, if the reader may see the holder.
    pub(super) fn holder(&self, lock: &Lock, room: &mut Room<'_>) -> Option<Party> {
        lock.first_holder().and_then(|(key, contender)| self.neighbour(lock, (key, contender), room))
    }

    /// Returns a position as shown to other clients, if the reader may know of the position and room is left.
    pub(super) fn neighbour(
        &self,
        lock: &Lock,
        (key, contender): (&Key, &Contender),
        room: &mut Room<'_>,
    ) -> Option<Party> {
        match room.sight(self, lock, contender) {
            Sight::Nothing => None,
            sight => self.party_seen((key, contender), sight, room),
        }
    }

    /// Returns a position as shown to other clients, if room is left; fields that the reader may not see are
    /// empty.
    pub(super) fn party(&self, lock: &Lock, key: &Key, room: &mut Room<'_>) -> Option<Party> {
        let contender = lock.contender(key.as_ref()).expect("the caller has found the place");
        let sight = room.sight(self, lock, contender);
        self.party_seen((key, contender), sight, room)
    }

    fn party_seen(
        &self,
        (key, contender): (&Key, &Contender),
        sight: Sight,
        room: &mut Room<'_>,
    ) -> Option<Party> {
        let mut party = Party {
            path: if sight == Sight::Nothing { "".into() } else { shown(&key.path) },
            session: SessionId::NONE,
            token: FencingToken(0),
            label: Bytes::new(),
            since_ms: 0,
        };
        if decides!("holder-is-visible", sight == Sight::All) {
            let label = self.tree.node(contender.node).data().cloned().unwrap_or_default();
            (party.session, party.token) = (contender.session, FencingToken(key.czxid.0));
            party.label = label.slice_ref(shortened(&label));
            party.since_ms = contender.granted_ms.unwrap_or(contender.requested_ms);
        }
        assert!(party.path.len() <= PARTY_PATH_MAX && party.label.len() <= LABEL_MAX, "too much is shown");
        room.take(party.path.len() + party.label.len() + size_of::<Party>())?;
        Some(party)
    }
}

/// Returns the beginning of a path, as shown to other clients.
fn shown(path: &Arc<str>) -> Arc<str> {
    if path.len() <= PARTY_PATH_MAX {
        return path.clone();
    }
    let mut end = path.len().min(PARTY_PATH_MAX);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    assert!(path.len().min(PARTY_PATH_MAX) - end < 4, "a character has four bytes at most");
    path[..end].into()
}
