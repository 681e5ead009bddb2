//! Fast path of acquire and release for one lock, the form of nearly all commands.
//!
//! Both functions have the effects of [`Machine::acquire`] and [`Machine::release`], and no others. All
//! checks precede all changes, so nothing needs a revert; the only lookup by path finds the lock, which knows
//! its znode. Unusual acquires (a lock's first use, permits, an owner that might close a circle, any delay,
//! quotas) go to the general functions.
//!
//! Invariant: neither a client nor another replica can observe which path a command took.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::perms;
use rowlock_proto::lock::{Acquire, Claim, Mode, Owner, QueuePosition};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, Right, path as paths};
use smallvec::smallvec;

use super::contender::{Contender, Key, QUEUE_MAX};
use super::lock::is_reserved;
use super::party::Room;
use super::publish::{self, EventPlace};
use crate::acl_table::SharedAcl;
use crate::arena::Number;
use crate::command::Author;
use crate::guard::decides;
use crate::machine::Machine;
use crate::ops::{permit, resolved};
use crate::outcome::{Change, ChangeKind, EndReason, EventSink, LockEventKind, PositionEnd};
use crate::tree::{Path, TreePosition};
use crate::znode::{Kind, Meta, Znode, ZnodeName};
use crate::{sequence, steps};

/// Inputs for the creation of a position.
struct New {
    lock: Number,
    /// Position of the znode in the tree.
    place: TreePosition,
    path: Arc<str>,
    acl: SharedAcl,
    /// True if the position holds the lock at once.
    holds: bool,
}

impl Machine {
    pub(super) fn acquire_alone<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        acquire: &Acquire,
        sink: &mut S,
    ) -> Option<Result<Response, ErrorCode>> {
        if decides!(
            "fast-path-refuses-acquire",
            by.stamp.enforce_quota || self.locks.has_delays() || !is_ordinary(acquire)
        ) {
            return None;
        }
        let found = self.locks.find(&acquire.lock)?;
        let lock = self.locks.at(found);
        let holds = lock.is_free_for(acquire.mode);
        // `Machine::acquire` answers requests without a wait, and requests that may close a circle.
        let may_wait = acquire.wait && acquire.owner == Owner::Unnamed;
        if decides!("fast-path-refuses-queue", !(holds || may_wait) || lock.len() >= QUEUE_MAX) {
            return None;
        }
        let near = (by.session, by.place);
        if decides!(
            "fast-path-knows-attempt",
            !lock.is_idle() && self.find_attempt(near, &acquire.lock, &acquire.prefix).is_some()
        ) {
            return None;
        }
        let parent = self.tree.node(lock.node);
        let is_ephemeral = matches!(parent.meta.kind, Kind::Ephemeral(_));
        assert!(!is_ephemeral, "only a delay keeps a lock known whose znode has no children");
        let may_take = || self.require(&acquire.lock, Right::Take, (by.who, by.stamp));
        if let Err(code) = permit(&parent.acl, perms::CREATE, by.who).and_then(|()| may_take()) {
            return Some(Err(code));
        }
        let acl = match resolved(acquire.acl.as_deref(), Some(parent), by.who) {
            Ok(acl) => acl,
            Err(code) => return Some(Err(code)),
        };
        let path = &mut self.scratch;
        path.clear();
        path.push_str(&acquire.lock);
        path.push('/');
        path.push_str(&acquire.prefix);
        sequence::push_number(path, parent.meta.creates);
        debug_assert_eq!(paths::validate(path), Ok(()), "a plain name below a znode makes a good path");
        let Err(at) = parent.children.find(&path.as_bytes()[acquire.lock.len() + 1..]) else {
            return Some(Err(ErrorCode::NodeExists));
        };
        let path = path.as_str().into();
        let place = TreePosition { parent: lock.node, at };
        let position = self.make_place(by, acquire, New { lock: found, place, path, acl, holds }, sink);
        Some(Ok(Response::QueuePositions(smallvec![position])))
    }

    fn make_place<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        acquire: &Acquire,
        new: New,
        sink: &mut S,
    ) -> QueuePosition {
        let New { lock, place, path, acl, holds } = new;
        let (zxid, time_ms, near) = (by.zxid, self.time_ms, (by.session, by.place));
        let name_at = acquire.lock.len() + 1;
        // Copied: the data may be a slice of a whole log entry or of a client's input buffer.
        let data = acquire.data.as_deref().map(Bytes::copy_from_slice);
        let znode = Znode::new(Meta::new(zxid, time_ms, Kind::Ephemeral(by.session)), data, acl);
        let id = self.tree.add(znode, place.parent);
        let name = ZnodeName::within(&path, name_at);
        self.tree.link(Path::cut(&path, name_at), name, (id, place), |meta| {
            assert!(meta.pzxid <= zxid, "a znode is created below what is newer than itself");
            meta.creates = sequence::next(meta.creates);
            meta.pzxid = zxid;
        });
        let levels = self.locks.at(lock).levels;
        let address = self.sessions.add_place(near, (place.parent, &path, levels, id), by.who);
        let mut contender = Contender::acquired(acquire, by, address, time_ms);
        contender.node = id;
        let (parent, znode) = (self.tree.node(place.parent), self.tree.node(id));
        let acls = (znode.acl.entries(), parent.acl.entries());
        let kind = ChangeKind::Created;
        sink.changed(&Change {
            zxid,
            path: &path,
            kind,
            acl: acls.0,
            parent_acl: acls.1,
            rules: &self.rules,
        });
        let label = publish::label_of(znode.data().map(|data| &data[..]));
        let event = EventPlace { lock: &acquire.lock, path: &path, czxid: zxid, label, acls };
        let ahead = self.locks.at(lock).len() as u32;
        event.publish((zxid, time_ms), &contender, LockEventKind::Requested { ahead }, sink);
        if decides!("fast-path-grants", holds) {
            publish::grant(&mut contender, &self.sessions, time_ms);
            event.publish((zxid, time_ms), &contender, LockEventKind::Granted { waited_ms: 0 }, sink);
        }
        let limit = self.locks.at(lock).limit;
        let key = Key { czxid: zxid, path: path.clone() };
        self.locks.enter_at((lock, place.parent), key, contender, limit);
        let claim = Claim { path, token: FencingToken(zxid.0) };
        if holds {
            return QueuePosition::Held(claim);
        }
        let (lock, mut room) = (self.locks.at(lock), Room::of(by));
        let ahead = self.ahead_shown(lock, ahead as usize, &room);
        QueuePosition::Waiting { claim, ahead, holder: self.holder(lock, &mut room) }
    }

    pub(super) fn release_alone<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        claim: &Claim,
        sink: &mut S,
    ) -> Option<Response> {
        let (lock, at, path, place) = self.find_held(by, claim)?;
        let (zxid, time_ms, czxid) = (by.zxid, self.time_ms, rowlock_proto::Zxid(claim.token.0));
        let gone = self.tree.unlink(path, place, |meta| {
            assert!(meta.pzxid <= zxid, "a znode goes before what is newer came beside it");
            meta.pzxid = zxid;
        });
        let levels = self.locks.at(lock).levels;
        self.sessions.remove_place((by.session, by.place), (place.parent, path.full), (gone.id, levels));
        let (key, contender) = self.locks.leave_at(lock, at);
        assert!(contender.node == gone.id && contender.session == by.session, "another place has gone");
        let znode = self.tree.node(gone.id);
        let acls = (znode.acl.entries(), gone.parent_acl.entries());
        let kind = ChangeKind::Deleted;
        sink.changed(&Change {
            zxid,
            path: &key.path,
            kind,
            acl: acls.0,
            parent_acl: acls.1,
            rules: &self.rules,
        });
        let label = publish::label_of(znode.data().map(|data| &data[..]));
        let event = EventPlace { lock: path.parent(), path: &key.path, czxid, label, acls };
        let granted_ms = contender.granted_ms.expect("it holds the lock");
        let (held_ms, waited_ms) = (Some(time_ms - granted_ms), granted_ms - contender.requested_ms);
        let end = PositionEnd { reason: EndReason::Released, waited_ms, held_ms, by: None };
        event.publish((zxid, time_ms), &contender, LockEventKind::Released(end), sink);
        if let Some(until_ms) = contender.delays_until_ms(EndReason::Released, time_ms) {
            self.locks.delay(path.parent(), until_ms);
        }
        self.grant_ready_at(zxid, lock, sink);
        self.tree.forget(gone.id);
        debug_assert!(steps::uncounted(|| self.holder_of(claim)).is_none(), "what was given back is held");
        Some(Response::Held(smallvec![true]))
    }
}

/// Returns whether an acquire is well formed and needs no unusual step on a known lock.
fn is_ordinary(acquire: &Acquire) -> bool {
    acquire.lock.len() > 1
        && !is_reserved(&acquire.lock)
        && paths::is_plain_name(&acquire.prefix)
        && !matches!(acquire.mode, Mode::Permits(_))
        && acquire.has_good_times()
}
