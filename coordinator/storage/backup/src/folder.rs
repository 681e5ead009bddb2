//! Data folders of a new cluster, made from a backup.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rowlock_env::mutant::{self, Mutant};
use rowlock_proto::{ClusterId, NodeId};
pub use rowlock_state::{LeftBehind, NewCluster, ZxidsUsedUp};
use rowlock_state::{Machine, Rule};
pub use rowlock_wal::entry::Member;
pub use rowlock_wal::{Begun, Identity};
use rowlock_wal::{Membership, StorageError, begin_all, begin_with_state};

#[derive(Debug)]
pub struct Restored {
    machine: Machine,
    cluster: ClusterId,
    ended: LeftBehind,
}

impl Restored {
    /// Applies the rules of a restore to the state of a backup. `at_ms` is the creation time of the new
    /// cluster, in milliseconds since 1970 ([`Machine::restore`]), and must be equal for all voters.
    ///
    /// # Errors
    /// [`ZxidsUsedUp`].
    pub fn new(mut machine: Machine, mut new: NewCluster, at_ms: i64) -> Result<Restored, ZxidsUsedUp> {
        if mutant::is(Mutant::RestoreKeepsId) {
            new.id = machine.cluster().unwrap_or(new.id);
        }
        if mutant::is(Mutant::RestoreWithoutGrace) {
            new.grace_ms = 0;
        }
        let left_out =
            [(Mutant::RestoreKeepsZxid, Rule::Zxids), (Mutant::RestoreKeepsSessions, Rule::Sessions)];
        let left_out = left_out.into_iter().find(|(mutant, _)| mutant::is(*mutant)).map(|(_, rule)| rule);
        let ended = machine.restore_without(new, at_ms, left_out)?;
        Ok(Restored { machine, cluster: new.id, ended })
    }

    /// Returns the numbers of ended sessions and removed ephemeral znodes.
    pub fn ended(&self) -> LeftBehind {
        self.ended
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Makes the data folder of the voter `identity`. Every voter needs a folder, made from the same backup
    /// with the same cluster id, time, grace and voters. Blocks on the disk.
    ///
    /// # Errors
    /// [`StorageError`]; a folder with content stays unchanged.
    pub fn make_folder(
        &self,
        path: &Path,
        identity: &Identity,
        voters: &BTreeMap<NodeId, Member>,
    ) -> Result<(), StorageError> {
        let ids: BTreeSet<u64> = voters.keys().map(|id| id.0).collect();
        let nodes = voters.iter().map(|(id, member)| (id.0, member.clone())).collect();
        let membership = Membership { configs: vec![ids], nodes };
        let frozen = self.machine.freeze();
        begin_with_state(path, identity, self.cluster, membership, |out| frozen.encode(&mut &mut *out))
    }
}

/// Makes the data folders of several voters on this machine, see [`rowlock_wal::begin_all`]. Blocks on the
/// disk.
///
/// # Errors
/// The same errors as [`Restored::make_folder`].
pub fn make_folders(
    restored: &Restored,
    folders: &[(&Path, Identity)],
    voters: &BTreeMap<NodeId, Member>,
) -> Result<Begun, StorageError> {
    let paths: Vec<&Path> = folders.iter().map(|(path, _)| *path).collect();
    let fill = |number: usize| {
        let (path, identity) = &folders[number];
        restored.make_folder(path, identity, voters)
    };
    begin_all(&paths, fill)
}

/// Returns the path for building the replacement of `folder`.
pub fn beside(folder: &Path) -> PathBuf {
    with_suffix(folder, "recovered")
}

/// Returns the path for keeping the old content of `folder`.
pub fn before(folder: &Path) -> PathBuf {
    with_suffix(folder, "before")
}

fn with_suffix(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

/// Renames `folder` to [`before`] and the folder [`beside`] to `folder`. Blocks on the disk. A crash between
/// the renames may leave `folder` without content; both other folders are then complete.
///
/// # Errors
/// The disk fails, or the path has no folder name.
pub fn exchange(folder: &Path) -> io::Result<()> {
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let names = name(folder).zip(name(&beside(folder))).zip(name(&before(folder)));
    let Some(((own, beside), before)) = names else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no name of a folder"));
    };
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = Dir::open(above)?;
    dir.rename(&own, &before)?;
    dir.rename(&beside, &own)?;
    dir.sync()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rowlock_world::executor::Simulation;

    use super::*;

    #[test]
    fn exchanged_folders_stay_exchanged_after_a_power_loss() {
        let path = Path::new("/node");
        for seed in 0..20 {
            let sim = Simulation::new(seed, false);
            let host = sim.add_host("node1", "node", Ipv4Addr::new(10, 0, 0, 1));
            sim.boot(host);
            sim.on(host, || {
                for (place, content) in [(path.to_owned(), b"old"), (beside(path), b"new")] {
                    Dir::create(&place).and_then(|dir| dir.write_atomic("f", content)).expect("writes");
                }
                exchange(path).expect("exchanges");
            });
            sim.power_off(host).expect("no destructor panics");
            sim.boot(host);
            let content = |place: &Path| Dir::open(place).and_then(|dir| dir.read("f"));
            let (own, former) = sim.on(host, || (content(path), content(&before(path))));
            assert_eq!(own.expect("is there"), b"new", "seed {seed}");
            assert_eq!(former.expect("is there"), b"old", "seed {seed}");
        }
    }
}
