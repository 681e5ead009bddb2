//! forgotten-locks: a restart removes all effects of the commands that a node may forget. Two clusters, one
//! with these commands and one without, are the same after a restart, but for counts of children.

use std::collections::BTreeMap;

use rowlock_proto::{ClusterId, SessionId};
use rowlock_state::command::{Attachment, Command, Proposal, Stamp};
use rowlock_state::{FORGOTTEN_MAX, Machine};

use crate::histories::chance::Chance;
use crate::histories::steps::proposal;

/// State of a cluster that loses power: what its disks have, and what they may lack.
pub struct PowerLoss {
    chance: Chance,
    flushed: Machine,
    /// Commands behind the flushed state.
    unflushed: Vec<(Stamp, Proposal)>,
}

impl PowerLoss {
    pub fn new(seed: u64) -> Self {
        PowerLoss { chance: Chance::new(!seed), flushed: Machine::new(), unflushed: Vec::new() }
    }

    /// Follows a command, whose effects are in `state`. Cuts the power now and then.
    pub fn follow(&mut self, (stamp, proposal): (Stamp, &Proposal), state: &Machine) -> Result<(), String> {
        // The state of the deciding node may be that of any moment since the last flush.
        let mut behind = self.flushed.clone();
        for (stamp, proposal) in &self.unflushed[..self.chance.below(self.unflushed.len() + 1)] {
            behind.apply_stamped(*stamp, proposal, &mut ());
        }
        if !behind.is_undone_by_restart(&proposal.command) {
            self.flushed = state.clone();
            self.unflushed.clear();
            return Ok(());
        }
        self.unflushed.push((stamp, proposal.clone()));
        if !self.chance.one_in(3) {
            return Ok(());
        }
        // The restart comes later than all commands, also after a clock that was set back.
        let stamp = Stamp { time_ms: state.time_ms().max(stamp.time_ms), ..stamp };
        let (without, with) = (restarted(&self.flushed, stamp), restarted(state, stamp));
        if lasting(&without) != lasting(&with) {
            let (without, with) = (lasting(&without), lasting(&with));
            return Err(format!("a restart keeps effects of unflushed commands:\n{without:?}\n{with:?}"));
        }
        match without.last_zxid() > state.last_zxid() {
            true => Ok(()),
            false => Err("a token of the time before the restart comes again".to_owned()),
        }
    }
}

fn restarted(state: &Machine, stamp: Stamp) -> Machine {
    let mut machine = state.clone();
    let restart = Command::Restart { cluster: ClusterId(1), grace_ms: 9_000 };
    let applied = machine.apply_stamped(stamp, &proposal(SessionId::NONE, Attachment(0), restart), &mut ());
    assert!(applied.result.is_ok() && machine.sessions().next().is_none(), "it restarts");
    assert!(machine.last_zxid().0 > state.last_zxid().0 + i64::from(FORGOTTEN_MAX), "tokens go on higher");
    machine.check().expect("the state is sound");
    machine
}

/// What outlasts sessions, by path.
fn lasting(machine: &Machine) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    machine.each_znode(|path, znode| {
        let stat = &znode.stat;
        let times = (stat.czxid, stat.mzxid, stat.ctime_ms, stat.mtime_ms);
        let rest = (stat.version, stat.aversion, stat.num_children, znode.lifetime);
        found.insert(path.to_owned(), format!("{:?} {:?} {times:?} {rest:?}", znode.data, znode.acl));
    });
    for lock in machine.locks() {
        let people = (lock.holder_count(), lock.waiter_count());
        let times = (lock.limit(), lock.delayed_until_ms());
        found.insert(format!("{} as a lock", lock.path()), format!("{people:?} {times:?}"));
    }
    found
}
