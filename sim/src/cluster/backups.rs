//! Audit of the scheduled backups: each file on a node's disk holds a state that the log has led to, and the
//! schedule is kept.

use std::path::{Path, PathBuf};

use rowlock_backup::file;
use rowlock_proto::Zxid;

use super::node::{BACKUPS_KEPT, DATA_DIR};
use super::node_statuses::node_id;
use super::run::Run;
use crate::fault::Kind;

impl Run {
    /// Checks the backups on all disks that have lost nothing.
    pub(super) fn audit_backups(&self) {
        let Some(every_ms) = self.shape.backup_every_ms.filter(|_| !self.script.is_reborn()) else { return };
        let has = |kinds: &[Kind]| self.script.steps().iter().any(|step| kinds.contains(&step.fault.kind()));
        let is_timed = !has(&[Kind::ClockJump, Kind::ClockRate]);
        let mut made = 0;
        for place in self.membership.in_use() {
            if self.membership.is_damaged(place) || self.membership.has_forgotten(place) {
                continue;
            }
            let checked = self.check_series(place).and_then(|times| {
                made += times.len();
                let early =
                    |two: &&[i64]| two[1] - two[0] < i64::try_from(every_ms / 1_000).unwrap_or(i64::MAX);
                match times.windows(2).find(early).filter(|_| is_timed) {
                    Some(two) => {
                        Err(format!("two backups are made at {two:?} s, and one in {every_ms} ms is due"))
                    }
                    None => Ok(()),
                }
            });
            if let Err(what) = checked {
                let what = format!("on node {}, {what}", node_id(place));
                self.record.break_promise("restored-cluster", what);
            }
        }
        // A failed backup is tried again after a minute.
        let may_fail = has(&[Kind::DiskFull, Kind::SyncFailure, Kind::LoseDisk, Kind::Wipe, Kind::BitRot]);
        if made == 0 && !may_fail && !self.script.is_over_budget() {
            let what = format!("no node has a backup, and one in {every_ms} ms is due");
            self.record.break_promise("restored-cluster", what);
        }
    }

    /// Checks the backups of one node. Returns their times in seconds, in order.
    fn check_series(&self, place: usize) -> Result<Vec<i64>, String> {
        let disk = self.sim.disk(self.nodes[place]);
        let folder = Path::new(DATA_DIR).join("backups");
        let paths = disk.files().into_iter().map(|(path, _)| path);
        let names: Vec<PathBuf> = paths
            .filter(|path| {
                path.parent() == Some(&folder) && path.extension().is_some_and(|it| it == "backup")
            })
            .collect();
        // During the removal of the oldest one there is one more.
        if names.len() > BACKUPS_KEPT as usize + 1 {
            return Err(format!("there are {names:?}, and {BACKUPS_KEPT} are kept"));
        }
        for path in &names {
            let bytes = disk.read(path).ok_or_else(|| format!("{} is gone", path.display()))?;
            let (header, machine) =
                file::read(&bytes[..]).map_err(|error| format!("{}: {error}", path.display()))?;
            if !self.record.has_been(Zxid(header.zxid), machine.digest()) {
                return Err(format!("{} has a state that the log has not led to", path.display()));
            }
        }
        Ok(names.iter().map(|path| seconds(path)).collect())
    }
}

/// Returns the time in the name of a backup, in seconds since midnight.
fn seconds(path: &Path) -> i64 {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let clock = name.rsplit_once('T').and_then(|(_, clock)| clock.strip_suffix('Z'));
    let parts = clock.expect("a backup is named after its time").split('.');
    parts.fold(0, |sum, part| 60 * sum + part.parse::<i64>().expect("a time has digits"))
}
