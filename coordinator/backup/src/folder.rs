//! Data folders of a new cluster that begins with a backup.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rowlock_proto::{ClusterId, NodeId};
use rowlock_state::Machine;
pub use rowlock_state::{Ended, NewCluster, ZxidsUsedUp};
pub use rowlock_types::member::Member;
use rowlock_wal::{Identity, Membership, StorageError, begin_with_state};

/// A state that a new cluster begins with.
#[derive(Debug)]
pub struct Restored {
    machine: Machine,
    cluster: ClusterId,
    ended: Ended,
}

impl Restored {
    /// Applies the rules of a restore to the state of a backup.
    ///
    /// # Errors
    /// [`ZxidsUsedUp`].
    pub fn new(mut machine: Machine, new: NewCluster) -> Result<Restored, ZxidsUsedUp> {
        let ended = machine.restore(new)?;
        Ok(Restored { machine, cluster: new.id, ended })
    }

    /// What the old cluster had, and the new one has not.
    pub fn ended(&self) -> Ended {
        self.ended
    }

    /// The state.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Makes the data folder of the voter `identity`. All voters need one, each with the same backup, the
    /// same id of the cluster, the same grace and the same voters. Blocks on the disk.
    ///
    /// # Errors
    /// [`StorageError`]; a folder with content is not touched.
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
