//! Comparison of the oracle with a machine, command by command, and the promises about the oracle's own
//! queues.

use std::fmt::Debug;
use std::sync::Arc;

use rowlock_proto::FencingToken;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Mode, Owner};
use rowlock_state::command::{Proposal, Stamp};
use rowlock_state::outcome::Applied;
use rowlock_state::{ContenderView, LockView, Machine, Question};

use crate::queue::{Lock, Position, go_together};
use crate::{Event, Oracle};

/// Positions at the front of a queue that each command compares; [`Oracle::check_all`] compares the rest.
const COMPARED: usize = 64;

/// Promise that all comparisons are about.
const AGREES: &str = "the-oracle-agrees";

/// A difference, or a broken promise about the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Name of the promise in docs/guarantees.md.
    pub promise: &'static str,
    /// Both values, in words.
    pub what: String,
}

type Verdict = Result<(), Breach>;

/// Returns an error if the machine's value is another one than the oracle's.
fn same<T: PartialEq + Debug>(of: impl FnOnce() -> String, machine: T, oracle: T) -> Verdict {
    if machine == oracle {
        return Ok(());
    }
    let what = format!("{}: the state has {machine:?}, the oracle {oracle:?}", of());
    Err(Breach { promise: AGREES, what })
}

/// The comparable part of a position.
#[derive(Debug, PartialEq)]
struct Seen {
    path: String,
    token: FencingToken,
    mode: Mode,
    owner: Owner,
    session: rowlock_proto::SessionId,
    is_acquired: bool,
    requested_ms: i64,
    granted_ms: Option<i64>,
    revoke_at_ms: Option<i64>,
    asked: Option<Question>,
    address: String,
}

impl Oracle {
    /// Runs the proposal and compares the results with those of a machine that has applied the proposal.
    ///
    /// # Errors
    /// A difference, or a broken promise about the queues.
    pub fn check(
        &mut self,
        (stamp, proposal): (Stamp, &Proposal),
        machine: &Machine,
        (applied, events): (&Applied, &[Event]),
    ) -> Verdict {
        let expected = self.apply(stamp, proposal, &applied.result);
        let of = |part: &str| {
            let (session, zxid) = (proposal.session, applied.zxid);
            format!("{part} {:?} of session {session} at {zxid}", proposal.command)
        };
        let zxids = (machine.last_zxid(), self.zxid);
        same(|| of("zxid after"), (zxids.0, applied.zxid), (zxids.1, expected.zxid))?;
        same(|| of("attachment by"), applied.attached, expected.attached)?;
        same(|| of("answer to"), &applied.result, &expected.result)?;
        same(|| of("events of"), ordered(events), ordered(&self.events))?;
        self.check_state(machine, || of("after"))
    }

    /// Compares everything that the command may have changed.
    fn check_state(&self, machine: &Machine, of: impl Fn() -> String) -> Verdict {
        for (path, _) in &self.undo {
            self.check_znode(machine, path, &of)?;
        }
        for path in &self.touched {
            self.check_queue(machine, path, COMPARED, &of)?;
        }
        let counts = machine.counts();
        let found = (counts.znodes, counts.sessions, counts.locks);
        let own = (self.znodes.len(), self.sessions.len(), self.locks.len());
        same(
            || format!("znodes, sessions and locks {}", of()),
            found,
            (own.0 as u64, own.1 as u64, own.2 as u64),
        )?;
        same(|| format!("time {}", of()), machine.time_ms(), self.time_ms)?;
        let version = (machine.version(), machine.is_version_held(), machine.grace_ms());
        same(|| format!("version {}", of()), version, (&self.version, self.is_version_held, self.grace_ms))?;
        same(|| format!("id of the cluster {}", of()), machine.cluster().is_some(), self.is_founded)?;
        self.touched.iter().try_for_each(|path| self.check_promises(path, &of))
    }

    fn check_znode(&self, machine: &Machine, path: &str, of: &impl Fn() -> String) -> Verdict {
        let reader = [Id { scheme: "super".to_owned(), id: String::new() }];
        let found = machine.get_data(path, &reader).ok();
        same(|| format!("znode {path} {}", of()), found, self.shown(path))?;
        let own = self.znode(path).map(|znode| &*znode.acl);
        same(|| format!("ACL of {path} {}", of()), machine.acl(path), own)
    }

    fn check_queue(&self, machine: &Machine, path: &str, most: usize, of: &impl Fn() -> String) -> Verdict {
        let (view, own) = (machine.lock_queue(path), self.locks.get(path));
        let sizes = |view: &LockView<'_>| {
            (view.holder_count(), view.waiter_count(), view.delayed_until_ms().unwrap_or(0), view.limit())
        };
        let own_sizes = |lock: &Lock| {
            let holders = lock.positions.iter().filter(|position| position.granted_ms.is_some()).count();
            let waiters = lock.positions.len() - holders;
            (holders, waiters, lock.delayed_until_ms, self.limit(path))
        };
        let name = || format!("holders, waiters, delay and limit of {path} {}", of());
        same(name, view.as_ref().map(sizes), own.map(own_sizes))?;
        let views = view.iter().flat_map(|view| view.holders().chain(view.waiters())).take(most);
        let own = own.iter().flat_map(|lock| &lock.positions).take(most);
        for (view, position) in views.zip(own) {
            same(|| format!("position in {path} {}", of()), seen(view), self.seen(position))?;
        }
        Ok(())
    }

    fn seen(&self, position: &Position) -> Seen {
        Seen {
            path: position.path.to_string(),
            token: position.token,
            mode: position.mode,
            owner: position.owner,
            session: position.session,
            is_acquired: position.is_acquired,
            requested_ms: position.requested_ms,
            granted_ms: position.granted_ms,
            revoke_at_ms: self.revoke_at_ms(position),
            asked: position.asked.clone(),
            address: position.address.clone(),
        }
    }

    /// Checks what a lock's queue promises, whatever led to the queue.
    fn check_promises(&self, path: &str, of: &impl Fn() -> String) -> Verdict {
        let Some(lock) = self.locks.get(path) else { return Ok(()) };
        let broken = |promise, what: String| Err(Breach { promise, what: format!("{path} {what} {}", of()) });
        let is_held = |position: &&Position| position.granted_ms.is_some();
        let holders: Vec<&Position> = lock.positions.iter().filter(is_held).collect();
        let first = holders.len();
        if let Some(other) = lock.positions[first..].iter().find(is_held) {
            return broken("fifo", format!("is held by {} behind a waiter", other.token));
        }
        if !lock.positions.is_sorted_by_key(|position| position.token) {
            return broken("fencing-monotonic", "has tokens that do not grow in its queue".to_owned());
        }
        if let Some(two) = holders.windows(2).find(|two| !go_together(two[0].mode, two[1].mode)) {
            return broken("mutual-exclusion", format!("is held by {} and {}", two[0].token, two[1].token));
        }
        match lock.positions.get(first) {
            Some(next) if lock.delayed_until_ms == 0 && (holders.is_empty()) => {
                broken("no-lost-wakeup", format!("is free for {}, which waits for it", next.token))
            }
            _ => Ok(()),
        }
    }

    /// Compares the whole states.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_all(&self, machine: &Machine) -> Verdict {
        let of = || format!("at {}", self.zxid);
        let mut paths: Vec<Arc<str>> = Vec::new();
        machine.each_znode(|path, _| paths.push(path.into()));
        for path in paths.iter().chain(self.znodes.keys()) {
            self.check_znode(machine, path, &of)?;
        }
        for path in self.locks.keys() {
            self.check_queue(machine, path, usize::MAX, &of)?;
        }
        let found: Vec<_> = machine.locks().map(|lock| lock.path().to_owned()).collect();
        let own: Vec<_> = self.locks.keys().map(|path| path.to_string()).collect();
        same(|| format!("locks {}", of()), found, own)?;
        for (id, session) in machine.sessions() {
            let found = (session.timeout_ms, session.longest_timeout_ms(), session.attachment);
            let own = self.sessions.get(&id);
            let own = own.map(|open| (open.timeout_ms, open.longest_timeout_ms, open.attachment));
            same(|| format!("session {id} {}", of()), Some(found), own)?;
            let own =
                self.sessions.get(&id).map(|open| (open.acked, open.outcomes.keys().copied().collect()));
            let kept: Vec<u64> = machine.kept_writes(id).collect();
            same(|| format!("outcomes of {id} {}", of()), Some((machine.acked_writes(id), kept)), own)?;
            let owned: Vec<String> = self.owned(id).map(|path| path.to_string()).collect();
            same(|| format!("ephemeral znodes of {id} {}", of()), machine.ephemerals(id, "/"), owned)?;
        }
        Ok(())
    }
}

fn seen(view: ContenderView) -> Seen {
    Seen {
        path: view.path,
        token: view.token,
        mode: view.mode,
        owner: view.owner,
        session: view.session,
        is_acquired: view.is_acquired,
        requested_ms: view.requested_ms,
        granted_ms: view.granted_ms,
        revoke_at_ms: view.revoke_at_ms,
        asked: view.asked.map(|question| (*question).clone()),
        address: view.address,
    }
}

/// Returns events in an order that leaves open which lock comes first.
fn ordered(events: &[Event]) -> Vec<&Event> {
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by(|one, other| one.order().cmp(&other.order()));
    events
}
