//! Since when the world owes something: the later of the debt's own beginning and of the last change of the
//! ground that concerns the debt, plus the documented timers of what must happen first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::NodeId;
use rowlock_world::time::Nanos;

use crate::history::Connected;
use crate::history::client::ClientId;

/// Time after a change of the ground: TCP repeats lost segments within two seconds, a started node reads its
/// log, and a node without contact to a quorum closes its clients after the longest election timeout.
const SETTLES: Duration = Duration::from_secs(3);
/// Time from a silent leader's loss to its followers' election: the longest election timeout, and the votes.
const SILENT: Duration = Duration::from_secs(3);
/// The same if the leader's process ends, and all its connections with the process.
const DEAD: Duration = Duration::from_millis(500);
/// Time after healing in which an operator may still change the members: afterwards any ground owes service.
const HEALED: Duration = Duration::from_secs(15);
/// Longest pause of a client before an attempt to connect, after attempts that failed.
const PAUSE: Duration = Duration::from_secs(2);
/// Usual time of a flush.
const FLUSH: Duration = Duration::from_micros(300);

/// Leader of the highest term.
#[derive(Clone, Copy)]
pub(super) struct Leader {
    pub(super) node: NodeId,
    pub(super) term: u64,
    pub(super) since: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// Our client, with a connection since this time, or without one since this time.
    Own(Result<Nanos, Nanos>),
    /// A client of the simulator with ZooKeeper's requests only, which chooses its times itself; or a session
    /// that its client is closing.
    Plain,
    /// HTTP: each request goes to any member.
    Lease,
}

pub(super) struct Session {
    pub(super) client: ClientId,
    pub(super) timeout: Duration,
    pub(super) door: Door,
}

#[derive(Default)]
pub(super) struct Owed {
    pub(super) now: Nanos,
    /// Connected quorum, also while a change of members is pending.
    pub(super) core: Option<Arc<Connected>>,
    /// Clients that each member has served without a break, former ones included, and the time since when.
    open: BTreeMap<ClientId, Nanos>,
    pub(super) leader: Option<Leader>,
    /// Time of the last leader's end, and whether its connections to all the others ended with it.
    pub(super) lost: Option<(Nanos, bool)>,
    pub(super) healed: Option<Nanos>,
    pub(super) is_settled: bool,
}

impl Owed {
    /// Records a change of the ground.
    pub(super) fn change(&mut self, core: &Option<Arc<Connected>>) {
        let served = core.iter().flat_map(|core| &core.served).filter(|(_, served)| served.by_former);
        let since = |client: &ClientId| (*client, *self.open.get(client).unwrap_or(&self.now));
        self.open = served.map(|(client, _)| since(client)).collect();
        self.core.clone_from(core);
    }

    /// Returns the service that is owed now.
    pub(super) fn connected(&self) -> Option<&Connected> {
        self.core.as_deref().filter(|core| core.is_settled && !self.is_settled)
    }

    /// Returns the leader if the ground lets it lead.
    fn sound_leader(&self) -> Option<Leader> {
        let connected = self.connected()?;
        self.leader.filter(|leader| connected.may_lead.contains(&leader.node))
    }

    /// Returns since when a debt to the client of this session that began at `begun` counts; `None`: the
    /// world owes nothing. `reconnects`: the debt is a connection.
    pub(super) fn since(&self, session: Option<&Session>, begun: Nanos, reconnects: bool) -> Option<Nanos> {
        if session.is_some_and(|session| session.door == Door::Plain) {
            return None;
        }
        let served = session.and_then(|session| self.served_since(session, begun, reconnects));
        served.or_else(|| Some(begun.max(self.healed?) + HEALED))
    }

    fn served_since(&self, session: &Session, begun: Nanos, reconnects: bool) -> Option<Nanos> {
        let (connected, leader) = (self.connected()?, self.sound_leader()?);
        let served = connected.served.get(&session.client)?;
        let since = begun.max(leader.since).max(served.changed + SETTLES);
        match session.door {
            // After a connection that all members could have served no attempt has failed yet.
            Door::Own(Err(cut)) if self.open.get(&session.client).is_some_and(|at| cut >= *at + SETTLES) => {
                reconnects.then_some(begun.max(leader.since))
            }
            // A server that accepts and is silent costs an attempt a third of the timeout.
            Door::Own(Err(_)) => reconnects.then_some(since + PAUSE + session.timeout / 3),
            // The client may be at a node with a slow link to the leader, and stays there.
            Door::Own(Ok(linked)) if !served.by_former => Some(since.max(linked) + session.timeout),
            // A client notices a silent server after two thirds of its timeout.
            Door::Own(Ok(linked)) if linked <= served.disturbed => {
                Some(since.max(served.disturbed + session.timeout * 2 / 3 + SETTLES))
            }
            Door::Own(Ok(linked)) => Some(since.max(linked)),
            // A client gives a node half a second to accept.
            Door::Lease => served.by_all.then_some(since + Duration::from_millis(500)),
            Door::Plain => None,
        }
    }

    /// Returns since when a leader is due; `None`: there is one, or the world owes none.
    pub(super) fn leader_since(&self) -> Option<Nanos> {
        let connected = self.connected()?;
        match (self.sound_leader(), self.lost) {
            (Some(_), _) => None,
            (None, Some((lost, true))) if lost >= connected.changed => Some(lost + DEAD),
            (None, lost) => Some(connected.changed.max(lost.unwrap_or_default().0) + SILENT),
        }
    }

    /// Returns the nodes that have reached all possible leaders for this time.
    pub(super) fn answering(&self, lasts: Duration) -> BTreeSet<NodeId> {
        let is_quick = |it: &&Arc<Connected>| it.slowdown == 1 && it.disk_pace == 1;
        let core = self.core.as_ref().filter(is_quick).filter(|it| it.changed + lasts <= self.now);
        core.map_or_else(BTreeSet::new, |it| it.serving.clone())
    }

    /// Returns since when a change of members by the leader itself is due.
    pub(super) fn autopilot_since(&self) -> Option<Nanos> {
        let after = self.connected()?.changes_after?;
        Some(self.sound_leader()?.since.max(self.connected()?.changed) + SETTLES + after)
    }

    /// Returns since when a leader knows that all members run the new release.
    pub(super) fn upgraded_since(&self) -> Option<Nanos> {
        let connected = self.connected().filter(|it| it.is_upgraded)?;
        Some(self.sound_leader()?.since.max(connected.changed + SETTLES))
    }

    /// Returns whether a leader that stops now on request finds a successor.
    pub(super) fn owes_hand_over(&self) -> bool {
        let is_quick = |it: &Connected| it.disk_pace == 1 && it.slowdown == 1;
        let has_led = self.leader.is_some_and(|leader| self.now > leader.since + SETTLES);
        has_led && self.has_rested() && self.connected().is_some_and(is_quick)
    }

    /// Returns whether the ground is as it was a while ago: all nodes have connections to each other.
    pub(super) fn has_rested(&self) -> bool {
        self.core.as_ref().is_some_and(|core| self.now > core.changed + SETTLES)
    }

    /// Returns since when a node that serves now owes a fresh client its answers.
    pub(super) fn serves_since(&self, node: NodeId, begun: Nanos) -> Option<Nanos> {
        let connected = self.connected().filter(|it| it.serving.contains(&node))?;
        Some(begun.max(self.sound_leader()?.since).max(connected.changed + SETTLES))
    }

    /// Returns the lateness at usual speeds of a debt that may wait for this number of flushes:
    /// slow disks and processors have their part.
    pub(super) fn late(&self, since: Nanos, flushes: u32) -> Duration {
        let (pace, slowdown) = self.core.as_ref().map_or((1, 1), |it| (it.disk_pace, it.slowdown));
        (self.now - since).saturating_sub(FLUSH * flushes * (pace - 1)) / slowdown
    }
}
