//! Rules for a cluster whose voters lost entries in a power loss (`docs/decisions/memory-locks.md`).
//!
//! A node may acknowledge an entry before the flush only if a restart removes all effects of the entry's
//! commands: a restart ends all sessions, with their ephemeral znodes and queue positions, and raises the
//! zxid. What outlasts a session (znodes, lock-delays, minimum holds, limits) is flushed first.

use std::sync::Arc;

use rowlock_proto::lock::{Acquire, Mode};
use rowlock_proto::request::Request;
use rowlock_proto::response::Response;
use rowlock_proto::{ClusterId, SessionId};

use crate::command::Command;
use crate::done::{Cause, Done};
use crate::locks::Lock;
use crate::machine::Machine;
use crate::mutant;
use crate::outcome::{EndReason, EventSink, SessionEnd};
use crate::version::NewCluster;

/// Bound on the commands that a node acknowledges before their flush, and the number of zxids that a restart
/// leaves out: a command takes one zxid at most. A restore of an older backup leaves out more for the time
/// that a node needs to start again.
pub const FORGOTTEN_MAX: u32 = 4_096;

impl Machine {
    /// Returns whether a restart removes all effects of the command, in this state. Valid if the state lacks
    /// only commands of this kind.
    pub fn is_undone_by_restart(&self, command: &Command) -> bool {
        match command.untagged() {
            Command::Client(Request::Acquire(all)) => {
                all.iter().all(|acquire| self.ends_with_session(acquire))
            }
            Command::Client(Request::Release(claims)) => {
                let lock_of = |path: &str| path.rfind('/').map(|end| path[..end].to_owned());
                let mut locks = claims.iter().map(|claim| lock_of(&claim.path));
                locks.all(|lock| lock.is_some_and(|lock| self.leaves_no_times(&lock)))
            }
            Command::Client(Request::Abandon(all)) => all.iter().all(|one| self.leaves_no_times(&one.lock)),
            _ => false,
        }
    }

    /// Returns whether nothing of the position is left after the end of its session: the lock's znode and its
    /// limit are there already.
    fn ends_with_session(&self, acquire: &Acquire) -> bool {
        let has_times = acquire.lock_delay_ms > 0 || acquire.min_hold_ms > 0;
        let writes_limit = matches!(acquire.mode, Mode::Permits(_)) && self.limit_of(&acquire.lock).is_none();
        !has_times && !writes_limit && self.tree.find(&acquire.lock).is_some()
    }

    /// Returns whether no position of the lock has a lock-delay or a minimum hold. The end of a position
    /// grants the lock to others, and begins their times.
    fn leaves_no_times(&self, lock: &str) -> bool {
        self.locks.get(lock).is_none_or(Lock::has_no_times)
    }

    /// Restarts after a loss of unflushed entries. Lock-delays and minimum holds stay.
    pub(crate) fn restart<S: EventSink + ?Sized>(
        &mut self,
        cluster: ClusterId,
        grace_ms: u32,
        sink: &mut S,
    ) -> Response {
        let longest_ms = self.sessions().map(|(_, session)| session.longest_timeout_ms()).max().unwrap_or(0);
        let known = self.cluster.get_or_insert(NewCluster { id: cluster, grace_ms: 0 });
        known.grace_ms = known.grace_ms.max(grace_ms).max(longest_ms);
        if mutant::is("restart-without-grace") {
            known.grace_ms = 1;
        }
        let before = self.last_zxid;
        if !mutant::is("restart-keeps-tokens") {
            self.last_zxid.0 += i64::from(FORGOTTEN_MAX);
        }
        if !mutant::is("restart-keeps-sessions") {
            self.end_all_sessions(sink);
            assert_eq!((self.sessions.len(), self.tree.totals().ephemerals), (0, 0), "nothing is held");
        }
        assert!(self.last_zxid >= before, "no zxid goes back");
        Response::Empty
    }

    /// Ends all sessions under one zxid, so that no position is granted in between.
    fn end_all_sessions<S: EventSink + ?Sized>(&mut self, sink: &mut S) {
        let zxid = self.next_zxid();
        let sessions: Vec<SessionId> = self.sessions().map(|(id, _)| id).collect();
        let open = sessions.iter().filter_map(|session| self.sessions.get(*session));
        let mut paths: Vec<Arc<str>> =
            open.flat_map(|session| session.shared_ephemerals().map(|(path, _)| path.clone())).collect();
        paths.sort_unstable();
        let mut gone: Vec<Done> = paths.into_iter().map(|path| self.remove(zxid, &path)).collect();
        sessions.iter().for_each(|session| self.sessions.close(*session));
        let cause = Cause { why: Some(EndReason::SessionExpired), ..Cause::of_the_cluster(zxid) };
        self.publish(cause, &mut gone, sink);
        sessions.into_iter().for_each(|session| sink.session_ended(session, SessionEnd::Expired));
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::acl::Acl;
    use rowlock_proto::lock::{Attempt, Claim, QueuePosition};
    use rowlock_proto::request::Create;
    use rowlock_proto::{CreateMode, ErrorCode, FencingToken, NodeId};

    use super::*;
    use crate::command::{Attachment, Origin, Proof, Proposal};
    use crate::outcome::Applied;

    const LOCK: &str = "/locks/a";

    fn apply(machine: &mut Machine, session: SessionId, command: Command) -> Applied {
        let origin = Origin { node: NodeId(1), incarnation: 1, request: 1 };
        let (attachment, identities) = (Attachment(1), Default::default());
        let proposal = Proposal { origin, session, attachment, identities, command };
        let applied = machine.apply(1_000, &proposal, &mut ());
        machine.check().expect("the state is sound");
        applied
    }

    fn open(machine: &mut Machine) -> SessionId {
        let opening = Command::OpenSession { proof: Proof::of(b"p"), timeout_ms: 4_000 };
        apply(machine, SessionId::NONE, opening).attached.expect("a session opens").session
    }

    fn acquire(change: impl Fn(&mut Acquire)) -> Command {
        let mut acquire = Acquire::exclusive(LOCK, "x");
        change(&mut acquire);
        Command::Client(Request::Acquire([acquire].into()))
    }

    fn held(applied: &Applied) -> Claim {
        match &applied.result {
            Ok(Response::QueuePositions(places)) => match &places[0] {
                QueuePosition::Held(claim) => claim.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_restart_ends_all_sessions_and_keeps_znodes_delays_and_larger_tokens() {
        let mut machine = Machine::new();
        let (holder, waiter) = (open(&mut machine), open(&mut machine));
        let create = Create {
            path: "/kept".to_owned(),
            data: None,
            acl: Some(Acl::shared_open()),
            flags: CreateMode::Persistent.flags(),
        };
        apply(&mut machine, holder, Command::Client(Request::Create2(create))).result.expect("is created");
        let claim = held(&apply(&mut machine, holder, acquire(|it| it.lock_delay_ms = 5_000)));
        apply(&mut machine, waiter, acquire(|_| ())).result.expect("it waits");
        let before = machine.last_zxid();
        let restart = || Command::Restart { cluster: ClusterId(7), grace_ms: 2_000 };
        apply(&mut machine, SessionId::NONE, restart()).result.expect("it restarts");
        assert_eq!((machine.counts().sessions, machine.counts().ephemerals), (0, 0));
        assert!(machine.get_data("/kept", &[]).is_ok() && machine.get_data(LOCK, &[]).is_ok());
        assert_eq!(
            (machine.cluster(), machine.grace_ms()),
            (Some(ClusterId(7)), 4_000),
            "the longest timeout"
        );
        assert!(machine.last_zxid().0 >= before.0 + i64::from(FORGOTTEN_MAX));
        let opening = Command::OpenSession { proof: Proof::of(b"p"), timeout_ms: 4_000 };
        let refused = apply(&mut machine, SessionId::NONE, opening).result;
        assert_eq!(refused, Err(ErrorCode::ThrottledOp));
        apply(&mut machine, SessionId::NONE, restart()).result.expect("again, during the grace");
        assert_eq!(machine.grace_ms(), 4_000, "it gets no shorter");
        apply(&mut machine, SessionId::NONE, Command::EndGrace).result.expect("it ends");
        let next = open(&mut machine);
        apply(&mut machine, next, acquire(|it| it.wait = false)).result.expect("is answered");
        assert!(machine.holder_of(&claim).is_none());
        let delay = machine.next_lock_due().expect("the delay of the expired holder lasts");
        assert_eq!(delay, 6_000);
    }

    #[test]
    fn only_what_ends_with_its_session_is_undone() {
        let mut machine = Machine::new();
        let session = open(&mut machine);
        let permits = |it: &mut Acquire| (it.mode, it.limit) = (Mode::Permits(1), 2);
        assert!(!machine.is_undone_by_restart(&acquire(|_| ())), "the lock's znode is new");
        let claim = held(&apply(&mut machine, session, acquire(|_| ())));
        let release = |claim: &Claim| Command::Client(Request::Release([claim.clone()].into()));
        let abandon = || {
            let attempt = Attempt { lock: LOCK.to_owned(), prefix: "x".to_owned() };
            Command::Client(Request::Abandon(vec![attempt]))
        };
        assert!(machine.is_undone_by_restart(&acquire(|_| ())));
        assert!(machine.is_undone_by_restart(&acquire(|_| ()).tagged(2, 1)));
        assert!(machine.is_undone_by_restart(&release(&claim)) && machine.is_undone_by_restart(&abandon()));
        assert!(machine.is_undone_by_restart(&acquire(|it| it.max_hold_ms = 9)), "ends with the hold");
        for outlasts in [
            acquire(|it| it.lock_delay_ms = 1),
            acquire(|it| it.min_hold_ms = 1),
            acquire(permits),
            Command::Noop,
            Command::EndGrace,
            Command::LockDue { lock: LOCK.to_owned() },
            Command::Client(Request::ForceRelease(claim.clone())),
            Command::OpenSession { proof: Proof::of(b"p"), timeout_ms: 4_000 },
            Command::Client(Request::CloseSession),
        ] {
            assert!(!machine.is_undone_by_restart(&outlasts), "{outlasts:?}");
        }
        let other = open(&mut machine);
        apply(&mut machine, other, acquire(|it| it.min_hold_ms = 1)).result.expect("it waits");
        assert!(!machine.is_undone_by_restart(&release(&claim)), "it grants a minimum hold");
        assert!(!machine.is_undone_by_restart(&abandon()));
        let unknown = Claim { path: "/none/x".into(), token: FencingToken(1) };
        assert!(machine.is_undone_by_restart(&release(&unknown)), "nothing happens");
    }
}
