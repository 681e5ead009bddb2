//! Comparison of the oracle with a machine, command by command.

use std::fmt::Debug;
use std::sync::Arc;

use rowlock_proto::FencingToken;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Mode, Owner};
use rowlock_state::command::{Proposal, Stamp};
use rowlock_state::outcome::Applied;
use rowlock_state::{ContenderView, Lifetime, LockView, Machine, Question};

use crate::book::{Lock, Oracle, Position, Znode};
use crate::events::Event;
use crate::promises::PREDICATES;

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

/// A difference in words.
type Verdict = Result<(), String>;

/// Returns an error if the machine's value differs from the oracle's.
fn same<T: PartialEq + Debug>(of: impl FnOnce() -> String, machine: T, oracle: T) -> Verdict {
    if machine == oracle {
        return Ok(());
    }
    Err(format!("{}: the state has {machine:?}, the oracle {oracle:?}", of()))
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
    /// Maximum and minimum hold, lock-delay, and whether the minimum lapses.
    wish: (u32, u32, u32, bool),
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
    ) -> Result<(), Breach> {
        let expected = self.apply(stamp, proposal, &applied.result);
        let of = |part: &str| {
            let (session, zxid) = (proposal.session, applied.zxid);
            format!("{part} {:?} of session {session} at {zxid}", proposal.command)
        };
        let compared = self.compare(machine, (applied, &expected), events, of);
        let promise = self.news.about.unwrap_or(AGREES);
        compared.map_err(|what| Breach { promise, what })?;
        PREDICATES.iter().try_for_each(|(promise, broken)| match broken(self) {
            Some(what) => Err(Breach { promise, what: format!("{what} {}", of("after")) }),
            None => Ok(()),
        })
    }

    fn compare(
        &self,
        machine: &Machine,
        (found, own): (&Applied, &Applied),
        events: &[Event],
        of: impl Fn(&str) -> String,
    ) -> Verdict {
        same(|| of("zxid after"), (machine.last_zxid(), found.zxid), (self.zxid, own.zxid))?;
        same(|| of("attachment by"), found.attached, own.attached)?;
        same(|| of("answer to"), &found.result, &own.result)?;
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
        same(|| format!("id of the cluster {}", of()), machine.cluster().is_some(), self.is_founded)
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
            wish: (
                position.max_hold_ms,
                position.min_hold_ms,
                position.lock_delay_ms,
                position.min_hold_lapses,
            ),
        }
    }

    /// Compares the whole states.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_all(&self, machine: &Machine) -> Result<(), Breach> {
        self.compare_all(machine).map_err(|what| Breach { promise: AGREES, what })
    }

    /// Checks that no TTL znode without children is there later than `within_ms` after its time, by the log's
    /// clock.
    ///
    /// # Errors
    /// Such a znode.
    pub fn check_swept(&self, within_ms: i64) -> Result<(), Breach> {
        let is_left = |znode: &Znode| {
            matches!(znode.lifetime, Lifetime::Ttl(_))
                && znode.stat.num_children == 0
                && znode.is_due(self.time_ms.saturating_sub(within_ms))
        };
        match self.znodes.iter().find(|(_, znode)| is_left(znode)) {
            Some((path, _)) => {
                let what = format!("{path} is there at {}, {within_ms} ms after its time", self.time_ms);
                Err(Breach { promise: "ephemeral-lifetime", what })
            }
            None => Ok(()),
        }
    }

    fn compare_all(&self, machine: &Machine) -> Verdict {
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
    let wish = view.wish;
    Seen {
        wish: (wish.max_hold_ms, wish.min_hold_ms, wish.lock_delay_ms, wish.min_hold_lapses),
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

#[cfg(test)]
mod tests {
    use rowlock_proto::request::Create;
    use rowlock_proto::response::Response;
    use rowlock_proto::{CreateMode, ErrorCode, Request, SessionId};
    use rowlock_state::Proof;
    use rowlock_state::command::{Attachment, Command};

    use super::*;
    use crate::Heard;

    /// Runs commands of a session, and replaces the machine's last answer. Returns the broken promise.
    fn broken(commands: &[(u64, Command)], answer: Result<Response, ErrorCode>) -> Option<&'static str> {
        let (mut machine, mut oracle, mut session) = (Machine::new(), Oracle::default(), SessionId::NONE);
        let opening = (0, Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: 1_000 });
        for (number, (attachment, command)) in [opening].iter().chain(commands).enumerate() {
            let (command, identities) = (command.clone(), Default::default());
            let (origin, attachment) = (Default::default(), Attachment(*attachment));
            let proposal = Proposal { origin, session, attachment, identities, command };
            let mut heard = Heard::default();
            let mut applied = machine.apply_stamped(Stamp::default(), &proposal, &mut heard);
            let is_last = number == commands.len();
            if is_last {
                applied.result = answer.clone();
            }
            let checked = oracle.check((Stamp::default(), &proposal), &machine, (&applied, &heard.0));
            if is_last {
                return checked.err().map(|breach| breach.promise);
            }
            assert_eq!(checked, Ok(()));
            session = applied.attached.map_or(session, |attached| attached.session);
        }
        None
    }

    fn create(id: u64, acked: u64) -> (u64, Command) {
        let acl = Some(rowlock_proto::acl::Acl::shared_open());
        let flags = CreateMode::Persistent.flags();
        let create = Create { path: format!("/{id}"), data: None, acl, flags };
        (1, Command::Tagged { id, acked, command: Command::Client(Request::Create(create)).into() })
    }

    #[test]
    fn a_difference_breaks_the_promise_that_the_answer_is_about() {
        let path = |path: &str| Ok(Response::Path(path.to_owned()));
        let again = [create(1, 0), create(1, 0)];
        assert_eq!(broken(&again, path("/1")), None);
        assert_eq!(broken(&again, path("/2")), Some("exactly-once"));
        assert_eq!(broken(&again, Err(ErrorCode::BadArguments)), Some("exactly-once"), "forgotten");
        assert_eq!(broken(&[create(1, 0), create(1, 1)], path("/1")), Some("exactly-once"), "acknowledged");
        assert_eq!(broken(&[create(1, 0)], path("/2")), Some("the-oracle-agrees"));
        assert_eq!(broken(&[create(1, 0)], Err(ErrorCode::ThrottledOp)), Some("bounded"));
        let stale = [(0, create(1, 0).1)];
        assert_eq!(broken(&stale, Err(ErrorCode::SessionMoved)), None);
        assert_eq!(broken(&stale, path("/1")), Some("session-order"));
    }
}
