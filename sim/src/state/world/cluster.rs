//! The cluster's work: commands enter the log, replicas apply it, each at its own pace.

use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Owner, PlaceState};
use rowlock_proto::request::Create;
use rowlock_proto::{CreateMode, ErrorCode, SessionId};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Batch, Command, Origin, Proposal};
use rowlock_state::outcome::{Applied, Outcome, Why};

use crate::fact_recorder::{Recorded, Recorder, is_stale, written};
use crate::history::{self, ConnectionId, Fact, Index, Lock};
use crate::state::client::{LOCKS, lock_path, plain_path};
use crate::state::mutant::Mutant;
use crate::state::spoil;

use super::connection::Connection;
use super::{Step, World};

/// Commands folded into one entry at most.
const BATCH_MAX: usize = 6;
/// Entries between two checks of the reference machine's structure, which cost time in proportion to its
/// size.
const CHECK_EVERY: u64 = 64;
/// A node that often does not get to applying: its clients see old states, and their pings are confirmed all
/// the same.
const SLOW: usize = 0;
/// How often it does not.
const SLOW_PERCENT: usize = 80;
/// What leaders' clocks show when the simulation begins.
const EPOCH_MS: i64 = 1_000_000;
/// How far a follower's clock may be ahead.
const AHEAD_MS: i64 = 2_000;

/// The leader's wish to end a session.
pub(super) fn expire(session: SessionId, attachment: Attachment) -> Proposal {
    by_cluster(Command::ExpireSession { session, attachment })
}

/// The cluster's own proposal: no client waits for its answer.
fn by_cluster(command: Command) -> Proposal {
    let (session, attachment) = (SessionId::NONE, Attachment::default());
    Proposal { origin: Origin::default(), session, attachment, identities: Default::default(), command }
}

impl World {
    /// The znodes of the workload.
    pub(super) fn prepare(&mut self) {
        let opening = by_cluster(Command::OpenSession { proof: Proof::of(&[0; 16]), timeout_ms: 1_000 });
        let batch = Batch { time_ms: self.wall_ms(), proposals: vec![opening], ..Batch::default() };
        let mut recorder = Recorder::default();
        let applied = self.reference.apply(batch.time_ms, &batch.proposals[0], &mut recorder);
        let Ok(Outcome::Session { session, attachment, .. }) = applied.result else {
            unreachable!("a session can always be opened");
        };
        self.log.append(batch);
        let parents = ["/locks".to_owned(), "/data".to_owned()];
        let paths = parents.into_iter().chain((0..LOCKS).map(|lock| lock_path(Lock(lock))));
        let flags = CreateMode::Persistent.flags();
        let create = |path| Create { path, data: None, acl: Some(Acl::shared_open()), flags };
        let mut commands: Vec<_> =
            paths.map(|path| Command::Create { create: create(path), ttl_ms: None }).collect();
        commands.push(Command::CloseSession);
        let own = |command| Proposal { session, attachment, ..by_cluster(command) };
        let proposals = commands.into_iter().map(own).collect();
        let batch = Batch { time_ms: self.wall_ms(), proposals, ..Batch::default() };
        for proposal in &batch.proposals {
            let applied = self.reference.apply(batch.time_ms, proposal, &mut recorder);
            assert!(applied.result.is_ok(), "the workload's znodes can be made: {applied:?}");
        }
        self.log.append(batch);
    }

    /// The leader folds some of the commands that have reached it into an entry.
    pub(super) fn append(&mut self) -> Step {
        let mut proposals = Vec::new();
        for _ in 0..1 + self.rng.below(BATCH_MAX) {
            proposals.extend(self.next_proposal());
        }
        if proposals.is_empty() {
            return Ok(());
        }
        let wrong_clock = self.mutant == Some(Mutant::FollowerClock)
            && proposals.iter().any(|proposal| matches!(proposal.command, Command::LockDue { .. }));
        let time_ms = self.wall_ms() + if wrong_clock { AHEAD_MS } else { 0 };
        self.append_batch(Batch { time_ms, proposals, ..Batch::default() })
    }

    /// The clock of the leader.
    pub(super) fn wall_ms(&self) -> i64 {
        EPOCH_MS + self.now.0 + self.leader_offset_ms
    }

    /// The leader looks at the locks, and proposes something for those that are due.
    pub(super) fn sweep_locks(&mut self) {
        let wrong_clock = self.mutant == Some(Mutant::FollowerClock);
        let now_ms = self.wall_ms() + if wrong_clock { AHEAD_MS } else { 0 };
        let due: Vec<String> = self.reference.locks_due(now_ms).map(str::to_owned).collect();
        for lock in due {
            let proposal = by_cluster(Command::LockDue { lock });
            if !self.late.contains(&proposal) {
                self.stats.sweeps += 1;
                self.late.push(proposal);
            }
        }
    }

    /// Agrees on an entry and tells what it does.
    pub(super) fn append_batch(&mut self, batch: Batch) -> Step {
        self.stats.entries += 1;
        for proposal in &batch.proposals {
            self.stats.commands += 1;
            let mut recorder = Recorder::default();
            let before = self.reference.last_zxid();
            let applied =
                spoil::apply(&mut self.reference, self.mutant, batch.time_ms, proposal, &mut recorder);
            let changed = applied.zxid != before || !recorder.0.is_empty();
            self.tell_applied(proposal, &applied, changed)?;
            for recorded in recorder.0 {
                self.tell_recorded(recorded)?;
            }
            self.tell(Fact::Committed { zxid: applied.zxid })?;
        }
        let index = self.log.append(batch);
        let (node, digest) = (rowlock_proto::NodeId(0), self.reference.digest());
        self.tell(Fact::Replica { node, index, digest, origin: history::Origin::Apply })?;
        if index.0.is_multiple_of(CHECK_EVERY) { self.check_reference() } else { Ok(()) }
    }

    /// The structure of the reference machine.
    pub(super) fn check_reference(&mut self) -> Step {
        self.reference.check().map_err(|what| super::violation("state-structure", what))
    }

    /// A command that has reached the leader: the next of some connection, a late one, or one of its own.
    fn next_proposal(&mut self) -> Option<Proposal> {
        if !self.late.is_empty() && self.rng.chance(20) {
            return Some(self.late.swap_remove(self.rng.below(self.late.len())));
        }
        if !self.duplicates.is_empty() && self.rng.chance(4) {
            return Some(self.duplicates.swap_remove(self.rng.below(self.duplicates.len())));
        }
        if !self.settling && self.rng.chance(3) {
            let path = if self.rng.chance(50) { plain_path(&mut self.rng) } else { lock_path(Lock(LOCKS)) };
            return Some(by_cluster(if self.rng.chance(50) {
                Command::Reap { path }
            } else {
                Command::Noop
            }));
        }
        let ready = |(id, c): (&ConnectionId, &Connection)| {
            (!c.forward.is_empty() && !self.nodes[c.node].isolated).then_some(*id)
        };
        let ready: Vec<ConnectionId> = self.connections.iter().filter_map(ready).collect();
        if ready.is_empty() {
            return None;
        }
        let id = self.rng.pick(&ready);
        let connection = self.connections.get_mut(&id).expect("just found");
        let proposal = connection.forward.pop_front().expect("it is not empty");
        let percent = if matches!(proposal.command, Command::Release(_)) { 40 } else { 4 };
        if !self.settling && may_repeat(&proposal.command) && self.rng.chance(percent) {
            self.stats.duplicates += 1;
            self.duplicates.push(proposal.clone());
        }
        Some(proposal)
    }

    fn tell_applied(&mut self, proposal: &Proposal, applied: &Applied, changed: bool) -> Step {
        let is_stale = is_stale(applied);
        self.stats.stale_refused += u64::from(is_stale);
        if applied.result == Err(ErrorCode::ThrottledOp) {
            // It was not run, and nothing remembers it: a late copy would run. Only its client sends it
            // again.
            let is_it =
                |late: &Proposal| (late.session, &late.command) == (proposal.session, &proposal.command);
            self.duplicates.retain(|late| !is_it(late));
        }
        let is_attach = matches!(proposal.command, Command::Reattach { .. });
        if proposal.session != SessionId::NONE && !is_attach {
            let (once, command) = written(&proposal.command);
            self.stats.repeats += u64::from(once.is_some() && !is_stale && !changed);
            // A repeated answer was counted the first time.
            if let (true, Command::Acquire(all), Ok(Outcome::PlaceStates(place_states))) =
                (changed, command, &applied.result)
            {
                let is_nested = all.iter().any(|acquire| matches!(acquire.owner, Owner::Under(_)));
                self.stats.nested += u64::from(is_nested);
                place_states.iter().for_each(|place_state| self.count_place_state(place_state));
            }
            if let (true, Command::Convert { .. }, Ok(Outcome::PlaceStates(place_states))) =
                (changed, command, &applied.result)
            {
                self.stats.upgrades += u64::from(matches!(place_states[..], [PlaceState::Held(_)]));
            }
        }
        for fact in self.fact_recorder.answered(proposal, applied, changed) {
            self.tell(fact)?;
        }
        Ok(())
    }

    fn count_place_state(&mut self, place_state: &PlaceState) {
        match place_state {
            PlaceState::Busy { .. } => self.stats.busy += 1,
            PlaceState::LimitIs(_) => self.stats.limits += 1,
            PlaceState::Deadlock(_) => self.stats.deadlocks += 1,
            PlaceState::Held(_) | PlaceState::Waiting { .. } | PlaceState::Absent => {}
        }
    }

    fn tell_recorded(&mut self, recorded: Recorded) -> Step {
        match &recorded {
            Recorded::Opened(session, attachment, timeout_ms) => {
                self.stats.sessions += 1;
                self.leader.track(*session, *attachment, *timeout_ms, self.now);
            }
            Recorded::Attached(session, attachment, timeout_ms) => {
                self.stats.attaches += 1;
                self.leader.track(*session, *attachment, *timeout_ms, self.now);
            }
            Recorded::Ended(session, end) => {
                match end {
                    rowlock_state::outcome::SessionEnd::Closed => self.stats.closes += 1,
                    rowlock_state::outcome::SessionEnd::Expired
                    | rowlock_state::outcome::SessionEnd::Ended => self.stats.expiries += 1,
                }
                self.leader.forget(*session);
            }
            Recorded::Gone { why: Why::Revoked, .. } => self.stats.revocations += 1,
            Recorded::Changed { .. }
            | Recorded::Granted { .. }
            | Recorded::Converted { .. }
            | Recorded::Gone { .. } => {}
        }
        for fact in self.fact_recorder.facts(recorded, &self.reference, self.now) {
            self.tell(fact)?;
        }
        Ok(())
    }

    /// Some replica applies some entries.
    pub(super) fn apply(&mut self) -> Step {
        let node = self.rng.below(self.nodes.len());
        if node == SLOW && !self.settling && self.rng.chance(SLOW_PERCENT) {
            return Ok(());
        }
        for _ in 0..1 + self.rng.below(3) {
            if !self.nodes[node].up || self.nodes[node].isolated || !self.apply_next(node)? {
                break;
            }
        }
        Ok(())
    }

    /// A replica applies its next entry; false if there is none (or if it is purged: then it needs a
    /// snapshot).
    pub(super) fn apply_next(&mut self, node: usize) -> Result<bool, super::Violation> {
        let target = &mut self.nodes[node];
        let Some(batch) = self.log.get(Index(target.applied.0 + 1)) else { return Ok(false) };
        let pushes = target.apply(batch);
        let (node, index, digest) = (target.id, target.applied, target.machine.digest());
        self.push(pushes)?;
        self.tell(Fact::Replica { node, index, digest, origin: history::Origin::Apply })?;
        Ok(true)
    }
}

/// Commands that may come to the log twice without being meant twice: they are conditional on what they
/// change. An ephemeral sequential create is not among them, and nothing in Rowlock repeats one.
fn may_repeat(command: &Command) -> bool {
    match command {
        Command::Reattach { .. } | Command::CloseSession | Command::Delete { .. } => true,
        Command::Tagged { .. } | Command::Release(_) | Command::Verify(_) => true,
        Command::Create { create, .. } => {
            CreateMode::from_flags(create.flags).is_some_and(|mode| !mode.is_sequential())
        }
        _ => false,
    }
}
