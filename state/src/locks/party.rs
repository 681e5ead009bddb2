//! What an answer says of places: the client's own in full, and others by name as far as there is room.
//!
//! Names are as long as other clients like them, and one acquire may ask for a thousand locks. Without a bound, an
//! answer would be a thousand times as large as its request, in memory, on its way, and among the kept outcomes.

use rowlock_proto::lock::{Claim, Party, Standing};
use rowlock_proto::{FencingToken, SessionId};

use super::index::Lock;
use super::key::Key;
use super::publish::{place, shortened};
use super::{PARTIES_MAX_BYTES, PARTY_PATH_MAX};
use crate::machine::Machine;

/// What is left of the bytes for names of others in one answer.
pub(crate) struct Room(usize);

impl Room {
    pub(crate) fn of_an_answer() -> Room {
        Room(PARTIES_MAX_BYTES)
    }

    /// Takes it, if there is so much.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.checked_sub(bytes)?;
        Some(())
    }
}

impl Machine {
    pub(super) fn standing(&self, path: &str, key: Key, room: &mut Room) -> Standing {
        let claim = Claim { path: key.path.to_string(), token: FencingToken(key.czxid.0) };
        let key = key.as_ref();
        match self.locks.get(path) {
            Some(lock) if lock.holder(key).is_some() => Standing::Held(claim),
            Some(lock) if lock.waiter(key).is_some() => {
                Standing::Waiting { claim, ahead: lock.ahead(key) as u32, holder: self.holder(lock, room) }
            }
            _ => Standing::Absent,
        }
    }

    /// Says of each of the session's places where it stands now.
    pub(crate) fn renew_standings(&self, session: SessionId, standings: &mut [Standing]) {
        let mut room = Room::of_an_answer();
        for standing in standings {
            let (Standing::Held(claim) | Standing::Waiting { claim, .. }) = &*standing else { continue };
            let found = place(claim).filter(|(path, key)| {
                let lock = self.locks.get(path);
                let contender = lock.and_then(|lock| lock.holder(*key).or_else(|| lock.waiter(*key)));
                contender.is_some_and(|contender| contender.session == session)
            });
            *standing = found.map_or(Standing::Absent, |(path, key)| {
                let key = Key { czxid: key.czxid, path: key.path.into() };
                self.standing(path, key, &mut room)
            });
        }
    }

    /// The first holder, as shown to others.
    pub(super) fn holder(&self, lock: &Lock, room: &mut Room) -> Option<Party> {
        lock.holders.first().and_then(|(key, _)| self.party(lock, key, room))
    }

    /// A place as shown to others, if there is room for it.
    pub(super) fn party(&self, lock: &Lock, key: &Key, room: &mut Room) -> Option<Party> {
        let contender = lock.holders.get(key).or_else(|| lock.waiters.get(key));
        let contender = contender.expect("the caller has found the place");
        let label = self.tree.get(&key.path).and_then(|znode| znode.data().cloned()).unwrap_or_default();
        let (path, label) = (shown(&key.path), label.slice_ref(shortened(&label)));
        room.take(path.len() + label.len() + size_of::<Party>())?;
        Some(Party {
            path: path.to_owned(),
            session: contender.session,
            token: FencingToken(key.czxid.0),
            label,
            since_ms: contender.granted_ms.unwrap_or(contender.requested_ms),
        })
    }
}

/// As much of a path as others are shown: its beginning.
fn shown(path: &str) -> &str {
    let mut end = path.len().min(PARTY_PATH_MAX);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    &path[..end]
}
