//! convert: changes the mode of a hold.

use rowlock_proto::lock::{Claim, Mode, QueuePosition};
use rowlock_proto::request::Create;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode};
use smallvec::smallvec;

use super::cause::Cause;
use super::key::queue_path;
use super::party::Room;
use super::publish::place;
use crate::author::Author;
use crate::guard::decides;
use crate::machine::Machine;
use crate::outcome::{EndReason, EventSink};
use crate::steps;

impl Machine {
    /// Converts to a weaker mode in place: position and token stay, and waiters compatible with the weaker
    /// mode get the lock. Converts to a stronger mode only if the queue has no other position (fairness
    /// forbids more) and no lock-delay lasts. A stronger mode gets a new position and a new token: clients
    /// that read the queue by names see a writer there.
    pub(crate) fn convert<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        claim: &Claim,
        mode: Mode,
        prefix: &str,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        let positions = |position| Ok(Response::QueuePositions(smallvec![position]));
        if decides!("conversion-is-by-stranger", self.holder_of(claim) != Some(by.session)) {
            return positions(QueuePosition::Absent);
        }
        let (path, key) = place(claim).ok_or(ErrorCode::BadArguments)?;
        let lock = self.locks.get(path).expect("it has a holder");
        let holder = lock.holder(key).expect("it was found");
        match (holder.mode, mode) {
            (before, after) if before == after => {}
            (Mode::Exclusive, Mode::Shared) => {
                self.locks.change(path, key, |holder| holder.mode = mode);
                self.notify_converted(by.zxid, path, key, sink);
                self.grant_ready(by.zxid, path, sink);
            }
            (Mode::Permits(before), Mode::Permits(after))
                if decides!("conversion-gives-permits-back", 0 < after && after < before) =>
            {
                self.locks.change(path, key, |holder| holder.mode = mode);
                self.notify_converted(by.zxid, path, key, sink);
                self.grant_ready(by.zxid, path, sink);
            }
            (Mode::Shared, Mode::Exclusive)
                if decides!("upgrade-meets-others", lock.len() > 1 || lock.delayed_until_ms != 0) =>
            {
                let other = lock.holders().find(|(other, _)| other.as_ref() != key);
                let mut room = Room::of(by);
                let ahead = self.ahead_shown(lock, lock.len() - 1, &room);
                let holder = other.and_then(|other| self.neighbour(lock, other, &mut room));
                return positions(QueuePosition::Busy { ahead, holder });
            }
            (Mode::Shared, Mode::Exclusive) => return self.upgrade(by, claim, prefix, sink),
            _ => return Err(ErrorCode::BadArguments),
        }
        debug_assert_eq!(
            steps::uncounted(|| Some(self.locks.get(path)?.holder(key)?.mode)),
            Some(mode),
            "{path} is held in another mode than was answered"
        );
        positions(QueuePosition::Held(claim.clone()))
    }

    fn upgrade<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        claim: &Claim,
        prefix: &str,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        let (path, key) = place(claim).ok_or(ErrorCode::BadArguments)?;
        if prefix.is_empty() || prefix.contains('/') {
            return Err(ErrorCode::BadArguments);
        }
        let old = self.tree.get(&claim.path).expect("a contender is a znode");
        let create = Create {
            path: queue_path(path, prefix),
            data: old.data().cloned(),
            acl: Some(old.acl.entries().into()),
            flags: CreateMode::EphemeralSequential.flags(),
        };
        let mut created = self.create(by, &create, None)?;
        let before = self.locks.get(path).and_then(|lock| lock.holder(key)).expect("it was found");
        let mut contender = before.clone();
        (contender.mode, contender.granted_ms, contender.revoke_at_ms) = (Mode::Exclusive, None, None);
        contender.requested_ms = self.time_ms;
        let asked = contender.asked.clone();
        created.contender = Some(contender);
        let new = created.key().expect("it is ephemeral");
        assert!(new.as_ref() > key, "a new place has a later token than the old one");
        // The minimum hold goes on at the new position, counted from the new grant.
        self.locks.change(path, key, |holder| holder.min_hold_ms = 0);
        let removed = self.remove(by.zxid, &claim.path);
        let why = Some(EndReason::Released);
        self.publish(Cause::new(by, why), &mut [removed, created], sink);
        assert!(
            self.locks.get(path).is_some_and(|lock| lock.delayed_until_ms == 0),
            "{path}: a place was kept from its own successor"
        );
        let holder = self.locks.get(path).and_then(|lock| lock.holder(new.as_ref()));
        let goes_on = holder.and_then(|holder| holder.asked.as_ref());
        assert_eq!(goes_on, asked.as_ref(), "{path}: a conversion has lost a question");
        if goes_on.is_some() {
            self.notify_asked(by.zxid, path, new.as_ref(), sink);
        }
        let position = self.position(path, new, &mut Room::of(by));
        assert!(matches!(position, QueuePosition::Held(_)), "nobody was in the way: {position:?}");
        debug_assert_eq!(steps::uncounted(|| self.holder_of(claim)), None, "who converts holds by one place");
        Ok(Response::QueuePositions(smallvec![position]))
    }
}
