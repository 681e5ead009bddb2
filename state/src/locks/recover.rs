//! The queues of a state from before they were indexed: found by the names of the ephemeral znodes.

use super::contender::Contender;
use super::key::Key;
use crate::machine::Machine;
use crate::outcome::{Change, EventSink, SessionEnd};
use crate::tree::split;

impl Machine {
    /// Takes every ephemeral znode whose name ends with a number of the server's form for a place in its
    /// parent's queue.
    pub(crate) fn find_contenders(&mut self) {
        let mut found: Vec<(String, Key, Contender)> = Vec::new();
        for (session, open) in self.sessions() {
            for path in open.ephemerals() {
                let (Some((lock, name)), Some(znode)) = (split(path), self.tree.get(path)) else { continue };
                if has_number(name) {
                    let contender = Contender::plain(name, session, &[], znode.meta.ctime_ms);
                    let key = Key { czxid: znode.meta.czxid, path: path.into() };
                    found.push((lock.to_owned(), key, contender));
                }
            }
        }
        found.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        for (lock, key, contender) in found {
            let limit = self.limit_of(&lock);
            self.locks.enter(&lock, key, contender, limit);
            self.settle(self.last_zxid, &lock, &mut Nobody);
        }
        debug_assert!(self.locks.check().is_ok(), "queues that were found are queues");
    }
}

fn has_number(name: &str) -> bool {
    name.bytes().rev().take_while(u8::is_ascii_digit).count() >= 9
}

/// What happened then was told then.
struct Nobody;

impl EventSink for Nobody {
    fn changed(&mut self, _: &Change<'_>) {}
    fn session_opened(&mut self, _: rowlock_proto::SessionId, _: crate::command::Attachment, _: u32) {}
    fn session_attached(&mut self, _: rowlock_proto::SessionId, _: crate::command::Attachment, _: u32) {}
    fn session_ended(&mut self, _: rowlock_proto::SessionId, _: SessionEnd) {}
}
