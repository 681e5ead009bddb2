//! acquire: enters the queues of several locks in one command, all or none. convert: changes the mode of a
//! hold.

use std::collections::BTreeSet;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, perms};
use rowlock_proto::lock::{Acquire, Claim, Mode, QueuePosition, limit_data};
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, Right, SessionId, Version, path as paths};
use smallvec::{SmallVec, smallvec};

use super::contender::{
    Contender, Key, KeyRef, OwnerKey, PLACES_MAX, QUEUE_MAX, address_in, owner_of, queue_path,
};
use super::deadlock::{Newcomer, Search};
use super::lock::{Lock, is_reserved, limit_in};
use super::party::Room;
use super::publish::place;
use crate::arena::Number;
use crate::command::Author;
use crate::done::{Cause, Done};
use crate::guard::decides;
use crate::machine::Machine;
use crate::ops::{New, permit};
use crate::outcome::{EndReason, EventSink};
use crate::sessions::Near;
use crate::shared_map::Slot;
use crate::tree::{first_slash, split};
use crate::znode::{Kind, Znode};
use crate::{sequence, steps};

/// Limit of ephemerals examined for a repeated attempt. The names of a careful client's attempts begin
/// differently; a client that gives a thousand ephemerals the same beginning may get a second position.
const ALIKE_MAX: usize = 1_000;

/// The changes of one acquire: in most cases one, kept without an allocation.
type AllDone = SmallVec<[Done; 1]>;

/// Result for one requested position, before the publication of events.
enum Placed {
    /// Position of an earlier attempt.
    Found(Key),
    /// Index of the change that created its znode.
    New(usize),
    /// Busy, or refused without a wait.
    Refused(QueuePosition),
}

impl Machine {
    pub(crate) fn acquire<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        all: &[Acquire],
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        if let [only] = all
            && let Some(result) = self.acquire_alone(by, only, sink)
        {
            return result;
        }
        check_request(all)?;
        let steps_max = self.search_steps_max();
        let mut search = Search { steps: 0, steps_max, room: Room::of(by) };
        let result = self.place_all(by, all, &mut search, sink);
        // For each position the search may exceed the limit by the last steps.
        assert!(search.steps <= search.steps_max + 4 * all.len(), "a search took {} steps", search.steps);
        self.searched += search.steps;
        result
    }

    fn place_all<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        all: &[Acquire],
        search: &mut Search<'_>,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        let before = *self.tree.totals();
        let mut done = AllDone::new();
        let mut places: SmallVec<[Placed; 1]> = SmallVec::with_capacity(all.len());
        for (index, acquire) in all.iter().enumerate() {
            match self.place(by, acquire, search, &mut done) {
                Ok(Placed::Refused(position)) => {
                    self.take_all_back(done);
                    assert_eq!(*self.tree.totals(), before, "an acquire that is refused changes nothing");
                    // Positions of an earlier attempt remain: unreported, the client would never leave the
                    // queues.
                    let mut positions = self.positions_in((by.session, by.place), all, &mut search.room);
                    positions[index] = position;
                    return Ok(Response::QueuePositions(positions.into()));
                }
                Err(code) => {
                    self.take_all_back(done);
                    assert_eq!(*self.tree.totals(), before, "an acquire that fails changes nothing");
                    return Err(code);
                }
                Ok(placed) => places.push(placed),
            }
        }
        self.publish(Cause::new(by, None), &mut done, sink);
        let mut positions = Vec::with_capacity(all.len());
        for (acquire, placed) in all.iter().zip(places) {
            let position = match placed {
                Placed::Found(key) => self.position(&acquire.lock, key, &mut search.room),
                Placed::New(at) => {
                    let key = done[at].key().expect("a place in a queue is an ephemeral znode");
                    self.position(&acquire.lock, key, &mut search.room)
                }
                Placed::Refused(_) => unreachable!("then nothing is done"),
            };
            assert!(
                matches!(position, QueuePosition::Held(_) | QueuePosition::Waiting { .. }),
                "a place in {} was given and is nowhere",
                acquire.lock
            );
            positions.push(position);
        }
        assert!(positions.len() == all.len(), "as many places as were asked for");
        Ok(Response::QueuePositions(positions.into()))
    }

    /// Returns the present state of the session's earlier attempts.
    pub(crate) fn positions_again(
        &self,
        session: Near,
        all: &[Acquire],
        mut room: Room<'_>,
    ) -> Vec<QueuePosition> {
        self.positions_in(session, all, &mut room)
    }

    fn positions_in(&self, session: Near, all: &[Acquire], room: &mut Room<'_>) -> Vec<QueuePosition> {
        let again = |acquire: &Acquire| match self.find_attempt(session, &acquire.lock, &acquire.prefix) {
            Some(key) => self.position(&acquire.lock, key, room),
            None => QueuePosition::Absent,
        };
        all.iter().map(again).collect()
    }

    /// Returns whether the session has the requested position already.
    pub(crate) fn has_attempt(&self, session: SessionId, acquire: &Acquire) -> bool {
        self.find_attempt((session, Slot::default()), &acquire.lock, &acquire.prefix).is_some()
    }

    /// Returns the session's position in the lock's queue with the name `prefix` and a number.
    pub(super) fn find_attempt(&self, session: Near, lock: &str, prefix: &str) -> Option<Key> {
        let session = self.sessions.get_near(session)?;
        if decides!("session-has-no-positions", session.ephemeral_count() == 0) {
            return None;
        }
        let (queue, start) = (self.locks.get(lock)?, queue_path(lock, prefix));
        let mut alike = session.ephemerals_below((queue.znode()?, &start)).map_while(|(path, id)| {
            let number = path.strip_prefix(&start)?;
            Some((path, id, number))
        });
        let (path, id, _) =
            alike.by_ref().take(ALIKE_MAX).find(|(_, _, number)| sequence::is_number(number))?;
        let (of, _) = split(path)?;
        let czxid = self.tree.node(id).meta.czxid;
        let is_there = of == lock && queue.contender(KeyRef { czxid, path }).is_some();
        is_there.then(|| Key { czxid, path: path.clone() })
    }

    fn place(
        &mut self,
        by: &Author,
        acquire: &Acquire,
        search: &mut Search<'_>,
        done: &mut AllDone,
    ) -> Result<Placed, ErrorCode> {
        let path = &*acquire.lock;
        let near = (by.session, by.place);
        let session = self.sessions.get_near(near).expect("the session has been admitted");
        if decides!("session-may-repeat-attempt", session.ephemeral_count() != 0)
            && let Some(key) = self.find_attempt(near, path, &acquire.prefix)
        {
            return Ok(Placed::Found(key));
        }
        let found = self.locks.find(path);
        let known = found.and_then(|lock| self.locks.at(lock).znode()).or_else(|| self.tree.find(path));
        debug_assert_eq!(known, steps::uncounted(|| self.tree.find(path)), "{path} is another znode");
        // Permissions come first, before any information about the queue.
        let znode = known.map_or_else(|| self.tree.nearest(path), |known| self.tree.node(known));
        permit(&znode.acl, perms::CREATE, by.who)?;
        self.require(path, Right::Take, (by.who, by.stamp))?;
        if let Some(lock) = self.locks.busy(found) {
            if let Some(refusal) = self.refusal(by, acquire, lock, search) {
                return Ok(Placed::Refused(refusal));
            }
            if decides!("queue-is-full", lock.len() >= QUEUE_MAX) {
                return Err(ErrorCode::QuotaExceeded);
            }
        }
        let node = match known {
            Some(node) => node,
            None => self.make_lock(by, path, done)?,
        };
        if let Some(refusal) = self.agree_on_limit(by, acquire, node, done)? {
            return Ok(Placed::Refused(refusal));
        }
        let new = New {
            path: [path, "/", &acquire.prefix],
            name_at: path.len() + 1,
            // Copied: the data may be a slice of a whole log entry or of a client's input buffer.
            data: acquire.data.as_deref().map(Bytes::copy_from_slice),
            acl: acquire.acl.as_deref(),
            mode: CreateMode::EphemeralSequential,
            kind: Kind::Ephemeral(by.session),
        };
        done.push(self.create_below(by, Some(node), new)?);
        let at = done.len() - 1;
        let address = self.sessions.shared_address(near, by.who);
        done[at].contender = Some(Contender::acquired(acquire, by, address, self.time_ms));
        Ok(Placed::New(at))
    }

    /// Returns why the queue refuses the position, if so.
    fn refusal(
        &self,
        by: &Author,
        acquire: &Acquire,
        lock: &Lock,
        search: &mut Search<'_>,
    ) -> Option<QueuePosition> {
        if decides!("lock-is-free-for-acquire", lock.is_free_for(acquire.mode)) {
            return None;
        }
        if decides!("acquire-does-not-wait", !acquire.wait) {
            let ahead = self.ahead_shown(lock, lock.len(), &search.room);
            let holder = self.holder(lock, &mut search.room);
            return Some(QueuePosition::Busy { ahead, holder });
        }
        let owner = OwnerKey::new(owner_of(acquire.owner, by), by.session)?;
        let under = OwnerKey::works_under(acquire.owner, address_in(by.who));
        let newcomer = Newcomer { owner, under, mode: acquire.mode };
        self.circle(newcomer, &acquire.lock, search).map(QueuePosition::Deadlock)
    }

    /// Creates the lock's missing znode (a container), and missing znodes above (persistent) in one walk
    /// down.
    fn make_lock(&mut self, by: &Author, path: &str, done: &mut AllDone) -> Result<Number, ErrorCode> {
        let (mut node, there) = self.tree.find_deepest(path);
        assert!(there < path.len(), "{path} is there already");
        let mut name_at = there + 1;
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends.filter(|end| *end > there) {
            let is_lock = end == path.len();
            let new = New {
                path: [&path[..end], "", ""],
                name_at,
                data: Some(Bytes::new()),
                acl: Some(&Acl::shared_open()),
                mode: if is_lock { CreateMode::Container } else { CreateMode::Persistent },
                kind: if is_lock { Kind::Container } else { Kind::Persistent },
            };
            done.push(self.create_below(by, Some(node), new)?);
            node = done.last().and_then(Done::id).expect("it was created");
            name_at = end + 1;
        }
        debug_assert_eq!(
            steps::uncounted(|| self.tree.node(node).meta.kind),
            Kind::Container,
            "the way to {path} ends at the znode that was made there"
        );
        Ok(node)
    }

    /// Compares the client's limit with the lock's limit, and writes the limit if the lock has none.
    fn agree_on_limit(
        &mut self,
        by: &Author,
        acquire: &Acquire,
        node: Number,
        done: &mut AllDone,
    ) -> Result<Option<QueuePosition>, ErrorCode> {
        let Mode::Permits(permits) = acquire.mode else { return Ok(None) };
        let znode = self.tree.node(node);
        let data = znode.data();
        let limit = match limit_in(data) {
            Some(limit) if acquire.limit == 0 || acquire.limit == limit => limit,
            // The znode's data contains the limit.
            Some(_) if decides!("limit-is-hidden", !self.may_learn_limit(by, (&acquire.lock, znode))) => {
                return Err(ErrorCode::NoAuth);
            }
            Some(limit) => return Ok(Some(QueuePosition::LimitIs(limit))),
            None if acquire.limit == 0 => return Ok(Some(QueuePosition::LimitIs(0))),
            None if data.is_none_or(Bytes::is_empty) => {
                let data = Some(limit_data(acquire.limit));
                let set = SetData { path: acquire.lock.to_string(), data, version: Version::ANY };
                done.push(self.set_data(by, &set)?);
                debug_assert_eq!(
                    limit_in(steps::uncounted(|| self.tree.node(node)).data()),
                    Some(acquire.limit),
                    "a limit is read as it was written"
                );
                acquire.limit
            }
            // The znode serves another purpose.
            None => return Err(ErrorCode::BadArguments),
        };
        match permits > limit {
            true if !self.may_learn_limit(by, (&acquire.lock, self.tree.node(node))) => {
                Err(ErrorCode::NoAuth)
            }
            true => Ok(Some(QueuePosition::LimitIs(limit))),
            false => Ok(None),
        }
    }

    /// Returns whether the client may learn a limit that the client has not sent.
    fn may_learn_limit(&self, by: &Author, (path, lock): (&str, &Znode)) -> bool {
        lock.acl.allows(perms::READ, by.who) && self.rules.allow(path, Right::See, by.who)
    }

    pub(crate) fn take_all_back(
        &mut self,
        done: impl IntoIterator<IntoIter: DoubleEndedIterator<Item = Done>>,
    ) {
        for done in done.into_iter().rev() {
            self.revert(done);
        }
    }
}

fn check_request(all: &[Acquire]) -> Result<(), ErrorCode> {
    let mut locks = BTreeSet::new();
    let is_good = |acquire: &Acquire| {
        acquire.lock != "/"
            && !is_reserved(&acquire.lock)
            && paths::validate(&acquire.lock).is_ok()
            && !acquire.prefix.is_empty()
            && first_slash(&acquire.prefix).is_none()
            && !matches!(acquire.mode, Mode::Permits(0))
            && acquire.has_good_times()
    };
    // A single lock cannot occur twice.
    let is_good = match all {
        [only] => is_good(only),
        _ => {
            !all.is_empty()
                && all.len() <= PLACES_MAX
                && all.iter().all(|acquire| is_good(acquire) && locks.insert(&*acquire.lock))
                // The search for a circle does not know the waits of other owners in this request.
                && all.iter().all(|acquire| acquire.owner == all[0].owner)
        }
    };
    if is_good { Ok(()) } else { Err(ErrorCode::BadArguments) }
}

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
