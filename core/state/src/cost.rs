//! Price of a command: an upper bound of the cost of applying, computed by the leader from its applied state
//! before the command enters the log.
//!
//! A [`Command::Refused`] of a few bytes replaces a command that may not enter, so that the origin node
//! answers the client in order.
//!
//! Invariant: apply computes no prices, so prices may change without a new format. Invariant: a price covers
//! the steps of apply (tests count the steps), except for changes by other entries in flight, whose own
//! prices bound the difference.

use std::collections::BTreeSet;

use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Ask, Mode};
use rowlock_proto::request::{Create, Op};
use rowlock_proto::{CreateMode, ErrorCode, SessionId, path as paths};

use crate::acl::is_proof;
use crate::command::{Command, Proposal};
use crate::locks::{ASKED_MAX, ASKERS_MAX, Asker, Contender, Lock, PLACES_MAX, SEARCH_FLOOR};
use crate::machine::Machine;
use crate::steps::{
    BYTES_PER_STEP, CHANGE, LEAVE, LEVEL, LOOK, MAKE, NUMBER_BYTES, bytes_steps, end_steps, levels,
    place_end_steps,
};
use crate::tree::split;

/// Limit of missing znodes above its locks that one acquire creates. Beyond: `BadArguments`.
pub const ANCESTORS_MAX: usize = 32;
/// Limit of ephemeral znodes per session. One command deletes all of them, within [`COMMAND_STEPS_MAX`].
/// Beyond: `QuotaExceeded`.
pub const EPHEMERALS_MAX: usize = 20_000;
/// Limit of positions in the queue of one lock. One command may grant all positions that wait together, and
/// one command ends all holds beyond their maximum. The limit is lower for locks with a path so deep that the
/// ends would take more than [`COMMAND_STEPS_MAX`]. Beyond: `QuotaExceeded` for an acquire, and for a plain
/// create of a position that is not exclusive. (Apply itself refuses beyond [`crate::locks::QUEUE_MAX`].)
pub const QUEUE_PLACES_MAX: usize = 20_000;
/// Limit of positions granted by the end of one session. Further commands grant the remaining locks. The
/// first lock always has all its grants.
pub const END_GRANTS_MAX: usize = QUEUE_PLACES_MAX;
/// Limit of bytes that `auth` adds to the different ACLs of one command. Beyond: `InvalidAcl`.
pub const EXPANSION_MAX_BYTES: u64 = 16 << 10;
/// Limit of steps per command, about 20 ns each. Beyond: `BadArguments`.
pub const COMMAND_STEPS_MAX: u64 = 3_000_000;
/// Limit of bytes that one command adds to the state, approximately. Beyond: `BadArguments`.
pub const COMMAND_BYTES_MAX: u64 = 16 << 20;
/// Limit of steps per log entry. Further proposals begin the next entry.
pub const ENTRY_STEPS_MAX: u64 = COMMAND_STEPS_MAX;

/// Bytes of a znode, without path, data and ACL.
const ZNODE_BYTES: u64 = 320;
/// Bytes of a question, without its texts.
const QUESTION_BYTES: u64 = 192 + (ASKERS_MAX * size_of::<Asker>()) as u64;
/// Bytes of a queue position, in addition to the znode.
const PLACE_BYTES: u64 = 320;
/// Bytes of an ACL entry, without its texts.
const ENTRY_BYTES: u64 = 96;
/// Comparisons of identities included in the steps of an operation.
const COMPARISONS_INCLUDED: u64 = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Steps of about 20 ns each.
    pub steps: u64,
    /// Bytes by which the state grows, approximately.
    pub bytes: u64,
}

/// Running total of a command's cost.
struct Bill<'a> {
    machine: &'a Machine,
    session: SessionId,
    who: &'a [Id],
    cost: Cost,
    ephemerals: usize,
    /// Steps that the end of the session will take for the new ephemerals.
    end_steps: u64,
    /// Lists charged so far; the state stores equal lists once.
    lists: BTreeSet<&'a [Acl]>,
    /// Bytes by which `auth` makes the lists longer.
    expansion: u64,
    /// Entries of the longest new list.
    longest: u64,
    /// Missing znodes above locks.
    ancestors: BTreeSet<&'a str>,
}

impl Machine {
    /// Returns an upper bound of the cost of a proposal's command, or the reason why the command may not
    /// enter the log.
    pub fn price(&self, proposal: &Proposal) -> Result<Cost, ErrorCode> {
        let (session, who) = (proposal.session, &*proposal.identities);
        let cost = Cost { steps: LOOK + CHANGE, bytes: 0 };
        let mut bill = Bill {
            machine: self,
            session,
            who,
            cost,
            ephemerals: 0,
            end_steps: 0,
            lists: BTreeSet::new(),
            expansion: 0,
            longest: 0,
            ancestors: BTreeSet::new(),
        };
        match &proposal.command {
            // The kept outcome answers a repeated write, at no further cost.
            Command::Tagged { id, .. } if self.knows_write(session, *id) => {}
            Command::Tagged { command, .. } => bill.command(command)?,
            command => bill.command(command)?,
        }
        Ok(bill.cost)
    }
}

impl<'a> Bill<'a> {
    fn command(&mut self, command: &'a Command) -> Result<(), ErrorCode> {
        match command {
            Command::Client(request) => return self.request(request),
            Command::Fenced { claim, change } => {
                self.touch(&claim.path);
                self.op(change)?;
            }
            Command::Reap { path } => self.change(path),
            // Nothing can refuse the end of a session, of a hold beyond its maximum, or of a position.
            Command::LockDue { lock } => {
                self.due(lock);
                return Ok(());
            }
            Command::ExpireSession { session, .. } => {
                self.end(*session);
                return Ok(());
            }
            Command::Configure { config } => self.steps(config.len() as u64 / BYTES_PER_STEP),
            Command::OpenSession { .. } => self.cost.bytes += ZNODE_BYTES,
            Command::Tagged { .. }
            | Command::Refused(_)
            | Command::Noop
            | Command::Reattach { .. }
            | Command::CompareDigests
            | Command::Found { .. }
            | Command::EndGrace
            | Command::RaiseVersion { .. }
            | Command::HoldVersion { .. }
            | Command::RaiseTokens { .. }
            | Command::Restart { .. }
            | Command::DigestAt { .. } => {}
        }
        self.is_within()
    }

    fn request(&mut self, request: &'a Request) -> Result<(), ErrorCode> {
        match request {
            Request::Create(create)
            | Request::Create2(create)
            | Request::CreateContainer(create)
            | Request::CreateTtl(create, _) => self.create(create)?,
            Request::Multi(ops) => {
                ops.iter().try_for_each(|op| self.op(op).and_then(|()| self.is_within()))?
            }
            Request::SetData(set) => self.data(&set.path, set.data.as_ref().map_or(0, |data| data.len())),
            Request::SetAcl(set) => {
                self.change(&set.path);
                self.list(set.acl.as_deref())?;
            }
            Request::Ask(ask) => self.ask(ask),
            Request::Acquire(all) if all.len() > PLACES_MAX => return Err(ErrorCode::BadArguments),
            Request::Acquire(all) => {
                self.steps(SEARCH_FLOOR as u64);
                for acquire in all {
                    self.acquire(acquire)?;
                    self.is_within()?;
                }
            }
            Request::Release(claims) => {
                claims.iter().for_each(|claim| self.leave(&claim.path));
                // The leader never refuses a release of one lock.
                return if claims.len() > 1 { self.is_within() } else { Ok(()) };
            }
            Request::Verify(claims) => claims.iter().for_each(|claim| self.touch(&claim.path)),
            Request::Abandon(all) => {
                for attempt in all {
                    self.change(&attempt.lock);
                    self.grants(&attempt.lock);
                }
                return if all.len() > 1 { self.is_within() } else { Ok(()) };
            }
            Request::Convert { claim, prefix, .. } => self.convert(&claim.path, prefix)?,
            Request::Sync(path) => self.steps(bytes_steps(path.len())),
            // Nothing can refuse the end of a session or of a position.
            Request::Delete { path, .. } => self.leave(path),
            Request::ForceRelease(claim) => self.leave(&claim.path),
            Request::CloseSession => self.end(self.session),
            // The log contains no other request.
            _ => {}
        }
        match request {
            Request::Delete { .. } | Request::ForceRelease(_) | Request::CloseSession => Ok(()),
            _ => self.is_within(),
        }
    }

    fn convert(&mut self, path: &'a str, prefix: &str) -> Result<(), ErrorCode> {
        let lock = path.rsplit_once('/').map_or("", |(lock, _)| lock);
        check_path([lock, "/", prefix], NUMBER_BYTES)?;
        self.leave(path);
        self.made(path.len() + prefix.len(), 0, true);
        // The new position takes over the data.
        let data = self.machine.tree.get(path).map_or(0, |znode| znode.data_len());
        self.steps(data as u64 / BYTES_PER_STEP);
        Ok(())
    }

    fn op(&mut self, op: &'a Op) -> Result<(), ErrorCode> {
        match op {
            Op::Create(create)
            | Op::Create2(create)
            | Op::CreateContainer(create)
            | Op::CreateTtl(create, _) => {
                return self.create(create);
            }
            Op::SetData(set) => self.data(&set.path, set.data.as_ref().map_or(0, |data| data.len())),
            Op::Delete { path, .. } => self.leave(path),
            Op::Check { path, .. } => self.touch(path),
        }
        Ok(())
    }

    fn create(&mut self, create: &'a Create) -> Result<(), ErrorCode> {
        let mode = CreateMode::from_flags(create.flags).unwrap_or(CreateMode::Persistent);
        check_path([&create.path, "", ""], if mode.is_sequential() { NUMBER_BYTES } else { 0 })?;
        if mode.is_ephemeral() {
            self.ephemeral([&create.path, ""])?;
        }
        if let Some((lock, name)) = create.path.rsplit_once('/')
            && mode == CreateMode::EphemeralSequential
            && Contender::plain_mode(name) != Mode::Exclusive
        {
            self.enters(lock, name)?;
        }
        self.touch(&create.path);
        self.list(create.acl.as_deref())?;
        let data = create.data.as_ref().map_or(0, |data| data.len());
        self.made(create.path.len(), data, mode.is_ephemeral());
        Ok(())
    }

    fn acquire(&mut self, acquire: &'a Acquire) -> Result<(), ErrorCode> {
        let path = &*acquire.lock;
        check_path([path, "/", &acquire.prefix], NUMBER_BYTES)?;
        if let Err(code) =
            self.ephemeral([path, &acquire.prefix]).and_then(|()| self.enters(path, &acquire.prefix))
            && !self.machine.has_attempt(self.session, acquire)
        {
            return Err(code);
        }
        self.touch(path);
        self.list(acquire.acl.as_deref())?;
        let data = acquire.data.as_ref().map_or(0, |data| data.len());
        self.made(path.len() + acquire.prefix.len(), data, true);
        // A lock in the index has a znode and needs no walk from the root.
        if self.machine.locks.get(path).and_then(Lock::znode).is_none() {
            let (_, there) = self.machine.tree.find_deepest(path);
            if there < path.len() {
                self.makes(path, there);
            }
        }
        if self.ancestors.len() > ANCESTORS_MAX { Err(ErrorCode::BadArguments) } else { Ok(()) }
    }

    /// Charges for the missing znodes of a lock's path. The first `there` bytes of the path exist.
    fn makes(&mut self, path: &'a str, there: usize) {
        self.touch(path);
        self.made(path.len(), 0, false);
        for (end, _) in path.match_indices('/').filter(|(at, _)| *at > there) {
            if self.ancestors.len() > ANCESTORS_MAX {
                return;
            }
            let ancestor = &path[..end];
            if self.ancestors.insert(ancestor) {
                self.touch(ancestor);
                self.made(ancestor.len(), 0, false);
            }
        }
    }

    /// Counts one more ephemeral znode of the session with a path of these parts.
    fn ephemeral(&mut self, path: [&str; 2]) -> Result<(), ErrorCode> {
        let [above, name] = path;
        self.ephemerals += 1;
        self.end_steps += place_end_steps(above, name.len()) + LEVEL * levels(name);
        let open = self.machine.sessions.get(self.session);
        let known = open.map_or(0, |open| open.ephemeral_count());
        let steps = self.end_steps + open.map_or(0, |open| open.end_steps());
        let fits = known + self.ephemerals <= EPHEMERALS_MAX && steps <= COMMAND_STEPS_MAX;
        if fits { Ok(()) } else { Err(ErrorCode::QuotaExceeded) }
    }

    /// Checks the queue's limit for one more position, as if all names were equally long.
    fn enters(&self, lock: &str, name: &str) -> Result<(), ErrorCode> {
        let places = self.machine.locks.get(lock).map_or(0, Lock::len) + self.ephemerals;
        let steps = places as u64 * place_end_steps(lock, name.len());
        let fits = places <= QUEUE_PLACES_MAX && steps <= COMMAND_STEPS_MAX;
        if fits { Ok(()) } else { Err(ErrorCode::QuotaExceeded) }
    }

    /// Charges for the end of a position and for the grants that may follow.
    fn leave(&mut self, path: &str) {
        self.change(path);
        if let Some((lock, _)) = path.rsplit_once('/') {
            self.grants(lock);
        }
    }

    fn grants(&mut self, lock: &str) {
        let grants = self.machine.locks.get(lock).map_or(0, Lock::may_grant);
        self.steps(grants as u64 * LEAVE);
    }

    /// Each holder leaves the index and enters again with its question.
    fn ask(&mut self, ask: &'a Ask) {
        self.touch(&ask.lock);
        let holders = self.machine.lock_queue(&ask.lock).map_or(0, |lock| lock.holder_count());
        let (holders, texts) = (holders.min(ASKED_MAX) as u64, (ask.reason.len() + ask.by.len()) as u64);
        self.steps(holders * (2 * LEAVE + LEVEL * levels(&ask.lock) + bytes_steps(ask.lock.len()) + texts));
        self.cost.bytes += holders * (QUESTION_BYTES + texts);
    }

    /// Charges for the ends of all holds of the lock, and for the grants that follow.
    fn due(&mut self, lock: &str) {
        self.change(lock);
        if let Some(queue) = self.machine.locks.get(lock) {
            self.steps(queue.contenders().map(|(key, _)| end_steps(&key.path)).sum());
        }
    }

    fn end(&mut self, session: SessionId) {
        let Some(open) = self.machine.session(session) else { return };
        self.steps(open.end_steps());
        let locks: BTreeSet<&str> =
            open.ephemerals().filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
        let queues = locks.into_iter().filter_map(|lock| self.machine.locks.get(lock));
        let grants: usize = queues.map(|lock| lock.may_grant_without(session)).sum();
        self.steps(grants.min(END_GRANTS_MAX) as u64 * LEAVE);
    }

    fn data(&mut self, path: &str, data: usize) {
        self.change(path);
        self.steps(data as u64 / BYTES_PER_STEP);
        self.cost.bytes += data as u64;
    }

    fn change(&mut self, path: &str) {
        self.touch(path);
        self.steps(CHANGE);
    }

    /// Charges for a znode's lookup with a check of permissions.
    fn touch(&mut self, path: &str) {
        let levels = paths::levels(path) as u64;
        self.steps(LOOK + LEVEL * levels + path.len() as u64 / BYTES_PER_STEP);
        let who = self.who.len() as u64;
        // Once for taking, once for seeing.
        self.steps(2 * self.machine.rules.steps(levels, who));
        let longest = (self.machine.tree.acls().longest() as u64).max(self.longest);
        if who * longest > COMPARISONS_INCLUDED {
            // Permissions of the znode or its parent; or of the deepest existing znode above.
            let tree = &self.machine.tree;
            let parent = split(path).and_then(|(parent, _)| tree.get(parent));
            let deepest = tree.nearest(path);
            let longest = parent.into_iter().chain([deepest]).map(|znode| znode.acl.entries().len()).max();
            self.steps(who * self.longest.max(longest.unwrap_or(0) as u64));
        }
    }

    /// Charges for a given ACL. An entry `auth` stands for all identities that the author has proven.
    fn list(&mut self, acl: Option<&'a [Acl]>) -> Result<(), ErrorCode> {
        let Some(list) = acl.filter(|list| !Acl::is_open(list)) else { return Ok(()) };
        let size = |id: &Id| (id.scheme.len() + id.id.len()) as u64 + ENTRY_BYTES;
        let (mut entries, mut bytes, mut expansion) = (0, 0, 0);
        let proven = || self.who.iter().filter(|id| is_proof(&id.scheme));
        for entry in list {
            if entry.id.scheme == "auth" {
                entries += proven().count() as u64;
                expansion += proven().map(size).sum::<u64>();
            } else {
                entries += 1;
                bytes += size(&entry.id);
            }
        }
        self.longest = self.longest.max(entries);
        self.steps(2 * entries + (bytes + expansion) / BYTES_PER_STEP);
        if self.lists.insert(list) {
            self.cost.bytes += bytes + expansion;
            self.expansion += expansion;
        }
        if self.expansion <= EXPANSION_MAX_BYTES { Ok(()) } else { Err(ErrorCode::InvalidAcl) }
    }

    fn made(&mut self, path: usize, data: usize, is_place: bool) {
        let (path, data) = (path as u64, data as u64);
        self.steps(MAKE + (path + data) / BYTES_PER_STEP);
        self.cost.bytes += ZNODE_BYTES + path + data + if is_place { PLACE_BYTES + 2 * path } else { 0 };
    }

    fn steps(&mut self, steps: u64) {
        self.cost.steps += steps;
    }

    fn is_within(&self) -> Result<(), ErrorCode> {
        let Cost { steps, bytes } = self.cost;
        let fits = steps <= COMMAND_STEPS_MAX && bytes <= COMMAND_BYTES_MAX;
        if fits { Ok(()) } else { Err(ErrorCode::BadArguments) }
    }
}

/// Checks whether a new znode may have a path of these pieces and a number of this length.
fn check_path(pieces: [&str; 3], number: usize) -> Result<(), ErrorCode> {
    let bytes = pieces.iter().map(|piece| piece.len()).sum::<usize>() + number;
    let levels: usize = pieces.iter().map(|piece| paths::levels(piece)).sum();
    if bytes <= paths::MAX_BYTES && levels <= paths::MAX_LEVELS {
        Ok(())
    } else {
        Err(ErrorCode::BadArguments)
    }
}

#[cfg(test)]
mod ends_tests;
#[cfg(test)]
mod tests;
