//! Makes a new cluster of the old one: from a backup, or from the last node.
//!
//! The injector kills all nodes and makes each voter's folder on the voter's own host; a failed or
//! interrupted attempt is repeated. After the last folder, the injector reports the new cluster to the
//! checkers and starts its nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_backup::folder::Member;
use rowlock_env::worker;
use rowlock_proto::ClusterId;
use rowlock_world::disk::DiskCopy;
use rowlock_world::executor::Halt;
use rowlock_world::rng::Rng;
use rowlock_world::trace::What;

use super::super::membership::Part;
use super::super::node_statuses::{Process, node_id};
use super::super::operator::Job;
use super::super::rebirth::{self, BEGINNING, Made, Plan, Shelf, Source};
use super::{Birth, End, Injector};
use crate::fault::Target;

/// Interval between checks of the folders' progress.
const LOOK: Duration = Duration::from_millis(20);
/// Attempts after which a folder counts as impossible.
const ATTEMPTS_MAX: u32 = 20;
/// Delay after which a node that was thought lost comes back.
const RETURN_AFTER: Duration = Duration::from_secs(1);

type Outcome = Arc<Mutex<Option<Result<Made, String>>>>;

/// Progress of the making of a new cluster.
pub(super) struct Rebirth {
    plan: Plan,
    folders: BTreeMap<usize, Folder>,
    /// Place of a returning node of the old cluster.
    returning: Option<usize>,
}

struct Folder {
    /// Disk contents at the start of each attempt.
    begins_with: DiskCopy,
    outcome: Outcome,
    attempts: u32,
    made: Option<Made>,
}

impl Injector {
    /// Has the operator take a backup and later restore it.
    pub(super) fn begin_backup(&mut self, from: Target, after: Duration, lasts: Duration) {
        let Some(place) = self.places(from).first().copied() else { return };
        let (shelf, operator): (Shelf, _) = (Arc::default(), self.targets.operator);
        let endpoint = self.targets.membership.endpoint(place);
        let saving = rebirth::save(endpoint, after, self.targets.record.clone(), shelf.clone());
        self.sim.spawn(operator, "backup", saving);
        self.later(after, End::StopAll(shelf, lasts));
    }

    /// Replaces all nodes' data with the backup, if one was taken.
    pub(super) fn stop_all(&mut self, shelf: &Shelf, lasts: Duration) -> Result<(), Halt> {
        let Some(backup) = shelf.lock().take() else {
            self.trace("no backup was taken".to_owned());
            return Ok(());
        };
        let voters = self.voters_in_use();
        if self.is_reborn_now || voters.is_empty() {
            return Ok(());
        }
        for place in self.targets.membership.in_use() {
            self.sim.kill(self.targets.nodes[place])?;
            self.sim.disk(self.targets.nodes[place]).wipe();
        }
        self.rebuild(Source::Backup(backup), &voters, None, lasts);
        Ok(())
    }

    /// Loses all nodes but one, and makes a new cluster from the survivor.
    pub(super) fn begin_recovery(&mut self, target: Target, lasts: Duration) -> Result<(), Halt> {
        let (membership, survivor) = (self.targets.membership.clone(), self.places(target).first().copied());
        let is_whole = |place: &usize| {
            let is_spoilt = membership.is_damaged(*place) || membership.has_forgotten(*place);
            membership.part(node_id(*place)) == Part::Voter && membership.is_in_use(*place) && !is_spoilt
        };
        let Some(survivor) = survivor.filter(is_whole).filter(|_| !self.is_reborn_now) else { return Ok(()) };
        let returning = self.voters_in_use().into_iter().find(|place| *place != survivor);
        for place in membership.in_use() {
            let host = self.targets.nodes[place];
            self.sim.kill(host)?;
            if place != survivor {
                membership.lose(place);
            }
            if ![Some(survivor), returning].contains(&Some(place)) {
                self.sim.disk(host).wipe();
            }
        }
        self.rebuild(Source::Survivor, &[survivor], returning, lasts);
        Ok(())
    }

    fn voters_in_use(&self) -> Vec<usize> {
        let in_use = self.targets.membership.in_use().into_iter();
        in_use.filter(|place| self.targets.membership.part(node_id(*place)) == Part::Voter).collect()
    }

    fn rebuild(&mut self, source: Source, voters: &[usize], returning: Option<usize>, lasts: Duration) {
        self.is_reborn_now = true;
        let member = |place: &usize| {
            let membership = &self.targets.membership;
            let (peer_addr, client_addr) = (membership.peer_addr(*place), membership.endpoint(*place));
            (node_id(*place), Member { peer_addr, client_addr })
        };
        self.rebirths += 1;
        let id = ClusterId(u128::from(self.sim.now().0) << 32 | u128::from(self.rebirths));
        let at_ms = self.sim.wall_ms(self.targets.operator);
        let plan = Plan { source, id, at_ms, voters: voters.iter().map(member).collect() };
        let folder = |place: &usize| {
            let begins_with = self.sim.disk(self.targets.nodes[*place]).copy();
            (*place, Folder { begins_with, outcome: Outcome::default(), attempts: 0, made: None })
        };
        let folders = voters.iter().map(folder).collect();
        self.later(lasts.max(LOOK), End::Rebuild(Rebirth { plan, folders, returning }));
    }

    pub(super) fn go_on_rebuilding(&mut self, mut rebirth: Rebirth) -> Result<(), Halt> {
        for (place, folder) in &mut rebirth.folders {
            let host = self.targets.nodes[*place];
            let outcome = folder.outcome.lock().take();
            match outcome {
                _ if folder.made.is_some() => continue,
                Some(Ok(made)) => {
                    // An operator who sees the command succeed may rely on the disk: the folder must survive
                    // a power loss.
                    match Rng::new(rebirth.plan.at_ms.unsigned_abs() ^ *place as u64).chance(50) {
                        true => self.sim.power_off(host)?,
                        false => self.sim.stop(host)?,
                    }
                    folder.made = Some(made);
                    continue;
                }
                Some(Err(why)) => self.trace(format!("the folder of node {} is not made: {why}", place + 1)),
                None if folder.attempts > 0 && self.sim.is_up(host) => continue,
                None => {}
            }
            if folder.attempts == ATTEMPTS_MAX {
                self.trace(format!("the folder of node {} cannot be made", place + 1));
                return Ok(());
            }
            self.sim.stop(host)?;
            self.sim.disk(host).restore(folder.begins_with.clone());
            self.sim.boot(host);
            folder.attempts += 1;
            folder.outcome = Outcome::default();
            let (plan, outcome, node) = (rebirth.plan.clone(), folder.outcome.clone(), node_id(*place));
            self.sim.spawn(host, "operator", async move {
                let made = worker::run_blocking("folder", move || plan.make_folder(node)).await;
                *outcome.lock() = Some(made);
            });
        }
        if rebirth.folders.values().all(|folder| folder.made.is_some()) {
            return self.start_new_cluster(rebirth);
        }
        self.later(LOOK, End::Rebuild(rebirth));
        Ok(())
    }

    /// Starts the new cluster after all folders are made.
    fn start_new_cluster(&mut self, rebirth: Rebirth) -> Result<(), Halt> {
        let (membership, record) = (self.targets.membership.clone(), self.targets.record.clone());
        let voters: Vec<usize> = rebirth.folders.keys().copied().collect();
        let mut all = rebirth.folders.into_iter().filter_map(|(place, folder)| Some((place, folder.made?)));
        let (place, first) = all.next().expect("Invariant: a cluster has a voter");
        rebirth::check_folder(&record, node_id(place), &first);
        for (place, made) in all {
            if made.after.digest() != first.after.digest() {
                let what = format!("the folder of node {} has another state than the first", place + 1);
                record.break_promise("replica-equality", what);
            }
        }
        record.begin_new_cluster(first.after, BEGINNING);
        membership.found_new_cluster(&voters);
        self.is_reborn_now = false;
        for place in membership.in_use() {
            self.later(Duration::ZERO, End::Start(Birth::Node(place)));
            if !voters.contains(&place) {
                self.targets.queue.enqueue(Job::Learner(place));
            }
        }
        if let Some(place) = rebirth.returning {
            self.later(RETURN_AFTER, End::Start(Birth::ReturnedNode(place)));
        }
        Ok(())
    }

    /// Stops returned nodes of the old cluster for good.
    pub(super) fn end_returned_nodes(&self) -> Result<(), Halt> {
        let processes = self.targets.statuses.processes();
        for (place, host) in self.targets.nodes.iter().enumerate() {
            let is_returned = self.rebirths > 0
                && processes[place] != Process::Up
                && !self.targets.membership.is_in_use(place);
            if is_returned {
                self.sim.stop(*host)?;
            }
        }
        Ok(())
    }

    pub(super) fn trace(&self, text: String) {
        let host = Some(self.targets.operator);
        self.sim.trace().record(self.sim.now(), || What::Note { host, text });
    }
}
