//! Rules for a state from which another cluster goes on: a state restored from a backup, or the state of the
//! last node of a lost majority.
//!
//! Clients of the old cluster may still believe that they hold locks, and resources may have seen tokens that
//! this state has never issued. So, before the first command of the new cluster:
//! 1. The cluster has a new id: nodes refuse nodes and clients of the old cluster.
//! 2. The zxid jumps beyond all zxids that the old cluster can have issued: tokens and session ids never go
//!    back. The jump grows with the age of the backup, so a second restore from the same backup jumps beyond
//!    the first.
//! 3. Sessions end, with their ephemeral znodes, queue positions and kept outcomes.
//! 4. No session opens before the grace is over. The leader measures the grace from its own start: by its end
//!    every client of the old cluster has given up its locks.
//!
//! The fourth rule covers every recipe, since nothing can be held without a session.

use rowlock_proto::response::Response;
use rowlock_proto::{ClusterId, ErrorCode, FencingToken, Zxid};

use crate::command::{Command, Ordinal};
use crate::digest::Hasher;
use crate::machine::Machine;
use crate::outcome::SessionEnd;
use crate::version::NewCluster;

/// Bits of a zxid span. The old cluster has gone on after the backup, and may be in the next span by now. A
/// span suffices for a year of 35,000 commands per second.
const SPAN_BITS: u32 = 40;
/// Number of spans that a restored state jumps: beyond the span after its own.
const SPANS: i64 = 2;
/// Additional zxids for each millisecond between the state's last command and the restore: more commands than
/// any cluster applies in a millisecond.
const ZXIDS_PER_MS: i64 = 128;
/// Bits of a zxid that fit into a session id.
const ZXID_BITS: u32 = 56;

/// Largest token of another service that this cluster can exceed. As many tokens remain for this cluster.
pub const TOKEN_FLOOR_MAX: i64 = (1 << (ZXID_BITS - 1)) - 1;

/// A rule of a restore. Tests leave out a rule to prove that the checkers notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Zxids,
    Sessions,
}

/// Sessions and ephemeral znodes that the new cluster does not take over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftBehind {
    pub sessions: u64,
    pub ephemerals: u64,
}

/// The zxids are used up, after 16,000 restores; or the clock is off by thousands of years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("zxid {0} is too large, or the clock is wrong: there is no room for another cluster's")]
pub struct ZxidsUsedUp(pub Zxid);

impl Machine {
    /// Makes the state of a new cluster from the state of an old cluster, by the rules of this module.
    /// `at_ms` is the time of the restoring machine's clock in milliseconds since 1970, the same for all
    /// nodes. A clock behind the state's time counts as the state's time.
    ///
    ///
    /// # Errors
    /// [`ZxidsUsedUp`]; the state is unchanged.
    pub fn restore(&mut self, new: NewCluster, at_ms: i64) -> Result<LeftBehind, ZxidsUsedUp> {
        self.restore_without(new, at_ms, None)
    }

    /// Runs [`Machine::restore`] without one of the rules. Only the mutants of a restore leave out a rule.
    ///
    ///
    /// # Errors
    /// [`ZxidsUsedUp`]; the state is unchanged.
    pub fn restore_without(
        &mut self,
        new: NewCluster,
        at_ms: i64,
        left_out: Option<Rule>,
    ) -> Result<LeftBehind, ZxidsUsedUp> {
        let before = self.last_zxid;
        let age_ms = at_ms.saturating_sub(self.time_ms).max(0);
        let floor = (((before.0 >> SPAN_BITS) + SPANS) << SPAN_BITS)
            .saturating_add(age_ms.saturating_mul(ZXIDS_PER_MS));
        // The ends of sessions below take zxids of the new span. Further commands need room, too.
        if floor > TOKEN_FLOOR_MAX {
            return Err(ZxidsUsedUp(before));
        }
        let counts = self.counts();
        self.cluster = Some(new);
        if left_out != Some(Rule::Zxids) {
            self.last_zxid = Zxid(floor);
        }
        // The new cluster's terms start over.
        self.last_entry = Ordinal::default();
        if left_out == Some(Rule::Sessions) {
            return Ok(LeftBehind::default());
        }
        let sessions: Vec<_> = self.sessions().map(|(id, _)| id).collect();
        for session in sessions {
            self.end_session(session, SessionEnd::Closed, &mut ());
        }
        let delayed: Vec<String> = self.locks.iter().map(|(path, _)| path.to_owned()).collect();
        for lock in delayed {
            self.locks.delay(&lock, 0);
        }
        let left = self.counts();
        assert_eq!((left.sessions, left.ephemerals, left.locks), (0, 0, 0), "nothing is held or waited for");
        assert_eq!(left.znodes + counts.ephemerals, counts.znodes, "only ephemeral znodes go");
        assert!(left_out.is_some() || self.last_zxid > before && self.last_zxid.0 >= floor);
        Ok(LeftBehind { sessions: counts.sessions, ephemerals: counts.ephemerals })
    }

    /// Raises the zxid, so that further tokens exceed `above`, a token of another service. `BadArguments`: no
    /// room for this cluster's own tokens.
    pub(crate) fn raise_tokens(&mut self, above: FencingToken) -> Result<Response, ErrorCode> {
        if above.0 > TOKEN_FLOOR_MAX {
            return Err(ErrorCode::BadArguments);
        }
        self.last_zxid = self.last_zxid.max(Zxid(above.0));
        assert!(self.last_zxid.0 >= above.0, "the next token is larger than the floor");
        Ok(Response::Empty)
    }

    /// Returns the cluster's id; `None` before the first leader has drawn an id.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster.map(|known| known.id)
    }

    /// Returns the milliseconds without new sessions after a restore, while clients of the old cluster may
    /// believe that they hold locks; 0: clients may open sessions.
    pub fn grace_ms(&self) -> u32 {
        self.cluster.map_or(0, |known| known.grace_ms)
    }

    /// Sets the cluster's id, if the cluster has none; or ends the grace.
    pub(crate) fn begin(&mut self, command: &Command) -> Response {
        match command {
            Command::Found { cluster } => {
                self.cluster.get_or_insert(NewCluster { id: *cluster, grace_ms: 0 });
            }
            Command::EndGrace => self.cluster.iter_mut().for_each(|known| known.grace_ms = 0),
            _ => unreachable!("{command:?} is none of these"),
        }
        Response::Empty
    }

    /// Returns the share of the cluster's id and grace in the digest.
    pub(crate) fn cluster_digest(&self) -> u64 {
        let Some(NewCluster { id: ClusterId(id), grace_ms }) = self.cluster else { return 0 };
        Hasher::new(10).word((id >> 64) as u64).word(id as u64).word(u64::from(grace_ms)).finish()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rowlock_proto::acl::Acl;
    use rowlock_proto::lock::Acquire;
    use rowlock_proto::request::{Create, Request};
    use rowlock_proto::{ErrorCode, NodeId, SessionId};

    use super::*;
    use crate::command::{Attachment, Origin, Proof, Proposal};
    use crate::outcome::Applied;

    const NEW: NewCluster = NewCluster { id: ClusterId(7), grace_ms: 40_000 };

    fn run(machine: &mut Machine, session: SessionId, command: Command) -> Result<Response, ErrorCode> {
        applied(machine, session, command).result
    }

    fn applied(machine: &mut Machine, session: SessionId, command: Command) -> Applied {
        let origin = Origin { node: NodeId(1), incarnation: 1, request: 1 };
        let (attachment, identities) = (Attachment(1), Default::default());
        let proposal = Proposal { origin, session, attachment, identities, command };
        let applied = machine.apply(1_000, &proposal, &mut ());
        machine.check().unwrap();
        applied
    }

    fn open() -> Command {
        Command::OpenSession { proof: Proof::of(b"p"), timeout_ms: 4_000 }
    }

    fn session(machine: &mut Machine) -> SessionId {
        applied(machine, SessionId::NONE, open()).attached.expect("a session opens").session
    }

    fn znode(path: &str, flags: i32) -> Command {
        let acl = Some(Acl::shared_open());
        let create = Create { path: path.to_owned(), data: Some(Bytes::from_static(b"x")), acl, flags };
        Command::Client(Request::Create2(create))
    }

    /// Makes a state with a delay left by a dead holder, a holder in front of a waiter, and a persistent
    /// znode.
    fn old() -> Machine {
        let mut machine = Machine::new();
        let (dead, holder, waiter) = (session(&mut machine), session(&mut machine), session(&mut machine));
        run(&mut machine, holder, znode("/kept", 0)).unwrap();
        let with_delay = Acquire { lock_delay_ms: 5_000, ..Acquire::exclusive("/locks/a", "x") };
        run(&mut machine, dead, Command::Client(Request::Acquire([with_delay].into()))).unwrap();
        for session in [holder, waiter] {
            let acquire = Acquire { wait: true, ..Acquire::exclusive("/locks/b", "x") };
            run(&mut machine, session, Command::Client(Request::Acquire([acquire].into()))).unwrap();
        }
        let end = Command::ExpireSession { session: dead, attachment: Attachment(1) };
        run(&mut machine, SessionId::NONE, end).unwrap();
        assert_eq!((machine.counts().locks, machine.counts().sessions), (2, 2));
        machine
    }

    #[test]
    fn nothing_is_held_in_a_restored_state_and_no_zxid_goes_back() {
        let mut machine = old();
        let before = machine.last_zxid();
        let ended = machine.restore(NEW, 1_000).unwrap();
        assert_eq!(ended, LeftBehind { sessions: 2, ephemerals: 2 });
        machine.check().unwrap();
        assert_eq!((machine.counts().locks, machine.cluster()), (0, Some(NEW.id)));
        assert_eq!(machine.last_zxid().0 >> SPAN_BITS, (before.0 >> SPAN_BITS) + SPANS);
        assert_eq!(machine.get_data("/kept", &[]).unwrap().0, Some(Bytes::from_static(b"x")));
        assert_eq!(machine.get_children("/locks/b", &[]).unwrap().0, Vec::<String>::new());
    }

    #[test]
    fn two_restores_of_one_backup_share_no_zxid() {
        let mut first = old();
        first.restore(NEW, 90_000).unwrap();
        run(&mut first, SessionId::NONE, Command::EndGrace).unwrap();
        let began = first.last_zxid();
        // A hundred commands in each of ten milliseconds.
        (0..1_000).for_each(|_| assert_ne!(session(&mut first), SessionId::NONE));
        assert!(first.last_zxid().0 >= began.0 + 1_000);
        let mut second = old();
        second.restore(NewCluster { id: ClusterId(8), ..NEW }, 90_010).unwrap();
        assert!(second.last_zxid() > first.last_zxid(), "{} {}", second.last_zxid(), first.last_zxid());
    }

    #[test]
    fn a_clock_that_is_wrong_lets_no_zxid_go_back() {
        for at_ms in [i64::MIN, -1, 0, 999] {
            let mut machine = old();
            let before = machine.last_zxid();
            machine.restore(NEW, at_ms).unwrap();
            assert_eq!(machine.last_zxid().0 >> SPAN_BITS, (before.0 >> SPAN_BITS) + SPANS);
        }
        let mut machine = old();
        let before = (machine.digest(), machine.last_zxid());
        assert_eq!(machine.restore(NEW, i64::MAX), Err(ZxidsUsedUp(before.1)));
        assert_eq!((machine.digest(), machine.last_zxid()), before);
    }

    #[test]
    fn no_session_is_opened_before_the_grace_is_over() {
        let mut machine = old();
        machine.restore(NEW, 1_000).unwrap();
        assert_eq!(run(&mut machine, SessionId::NONE, open()), Err(ErrorCode::ThrottledOp));
        assert_eq!(machine.counts().sessions, 0);
        run(&mut machine, SessionId::NONE, Command::EndGrace).unwrap();
        let first = session(&mut machine);
        assert!(first.0 & ((1 << ZXID_BITS) - 1) > machine.last_zxid().0 - 2, "its id has the new zxid");
    }

    #[test]
    fn a_restored_state_survives_a_snapshot_and_is_unique() {
        let restored = |new| {
            let mut machine = old();
            machine.restore(new, 1_000).unwrap();
            machine
        };
        let machine = restored(NEW);
        let mut bytes = Vec::new();
        machine.freeze().encode(&mut bytes).unwrap();
        let again = Machine::decode(&mut bytes.as_slice()).unwrap();
        assert_eq!((again.cluster(), again.grace_ms()), (Some(NEW.id), NEW.grace_ms));
        assert_eq!(again.digest(), machine.digest());
        assert_ne!(restored(NewCluster { id: ClusterId(8), ..NEW }).digest(), machine.digest());
        assert_ne!(restored(NewCluster { grace_ms: 0, ..NEW }).digest(), machine.digest());
    }

    #[test]
    fn the_first_id_of_a_cluster_counts() {
        let mut machine = Machine::new();
        for id in [3, 4] {
            run(&mut machine, SessionId::NONE, Command::Found { cluster: ClusterId(id) }).unwrap();
            assert_eq!(machine.cluster(), Some(ClusterId(3)));
        }
    }

    #[test]
    fn a_state_whose_zxids_are_used_up_is_not_restored() {
        let mut machine = Machine::new();
        let mut restores = 0;
        while machine.restore(NEW, 0).is_ok() {
            restores += 1;
        }
        assert_eq!(restores, (1 << (ZXID_BITS - 1 - SPAN_BITS)) / SPANS - 1);
        let before = machine.digest();
        assert_eq!(machine.restore(NEW, 0), Err(ZxidsUsedUp(machine.last_zxid())));
        assert_eq!(machine.digest(), before);
    }
}
