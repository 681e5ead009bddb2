//! Contents of answers about positions: the client's own in full, others as far as the client may read them
//! and the answer has room.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::perms;
use rowlock_proto::lock::{Acquire, Claim, Party, QueuePosition};
use rowlock_proto::{FencingToken, Right, SessionId};
use rowlock_state::{LABEL_MAX, PARTIES_MAX_BYTES, PARTY_PATH_MAX};

use crate::book::{Author, Oracle, Position, split};
use crate::rights::allows;

/// Bytes of other clients' names in one answer so far.
#[derive(Default)]
pub(crate) struct Room(usize);

impl Oracle {
    /// Returns the session's positions for these requests.
    pub(crate) fn positions_of(&self, by: &Author, all: &[Acquire], room: &mut Room) -> Vec<QueuePosition> {
        let shown = |acquire: &Acquire| match self.attempt(by.session, &acquire.lock, &acquire.prefix) {
            Some(position) => self.shown_position(by, &position.claim(), room),
            None => QueuePosition::Absent,
        };
        all.iter().map(shown).collect()
    }

    /// Returns a session's position in a lock's queue, with the name `prefix` and a number.
    pub(crate) fn attempt(&self, session: SessionId, lock: &str, prefix: &str) -> Option<&Position> {
        let start = rowlock_proto::path::join(lock, prefix);
        let alike = self.from(&start).take_while(|(path, _)| path.starts_with(&start));
        let is_number = |text: &str| text.parse::<i32>().is_ok_and(|number| format!("{number:010}") == text);
        let (path, znode) = alike
            .filter(|(_, znode)| znode.stat.ephemeral_owner == session)
            .find(|(path, _)| is_number(&path[start.len()..]))?;
        let claim = Claim { path: path.clone(), token: FencingToken(znode.stat.czxid.0) };
        self.position_of(&claim).filter(|_| split(path).is_some_and(|(of, _)| of == lock))
    }

    pub(crate) fn shown_position(&self, by: &Author, claim: &Claim, room: &mut Room) -> QueuePosition {
        let Some(position) = self.position_of(claim) else { return QueuePosition::Absent };
        if position.granted_ms.is_some() {
            return QueuePosition::Held(claim.clone());
        }
        let (lock, _) = split(&claim.path).expect("a position is a child");
        let positions = &self.locks[lock].positions;
        let ahead = positions.iter().take_while(|other| other.claim() != *claim).count();
        let ahead = self.ahead_shown(by, lock, ahead);
        let holder = self.first_holder(lock).and_then(|holder| self.party(by, lock, holder, room));
        QueuePosition::Waiting { claim: claim.clone(), ahead, holder }
    }

    pub(crate) fn first_holder(&self, lock: &str) -> Option<&Position> {
        self.locks.get(lock)?.positions.first().filter(|first| first.granted_ms.is_some())
    }

    fn may_read(&self, by: &Author, path: &str) -> bool {
        self.znode(path).is_some_and(|znode| allows(&znode.acl, perms::READ, &by.who))
    }

    fn may_see(&self, by: &Author, lock: &str) -> bool {
        self.may_read(by, lock) && self.has_right(lock, Right::See, &by.who)
    }

    /// Returns a number of positions as shown: at most 1 to a client that may not read the lock.
    pub(crate) fn ahead_shown(&self, by: &Author, lock: &str, ahead: usize) -> u32 {
        if self.may_see(by, lock) { ahead as u32 } else { 1 }
    }

    /// Returns another client's position, if the reader may know of the position and the answer has room.
    pub(crate) fn party(&self, by: &Author, lock: &str, of: &Position, room: &mut Room) -> Option<Party> {
        if !self.may_see(by, lock) {
            return None;
        }
        let mut end = of.path.len().min(PARTY_PATH_MAX);
        while !of.path.is_char_boundary(end) {
            end -= 1;
        }
        let path: Arc<str> = of.path[..end].into();
        let (session, token, since_ms) = (SessionId::NONE, FencingToken(0), 0);
        let mut party = Party { path, session, token, label: Bytes::new(), since_ms };
        if self.may_read(by, &of.path) {
            let data = self.znode(&of.path).and_then(|znode| znode.data.clone()).unwrap_or_default();
            party.label = data.slice(..data.len().min(LABEL_MAX));
            (party.session, party.token) = (of.session, of.token);
            party.since_ms = of.granted_ms.unwrap_or(of.requested_ms);
        }
        let bytes = room.0 + party.path.len() + party.label.len() + size_of::<Party>();
        if bytes > PARTIES_MAX_BYTES {
            return None;
        }
        room.0 = bytes;
        Some(party)
    }
}
