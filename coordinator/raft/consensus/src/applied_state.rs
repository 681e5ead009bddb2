//! The applied state of this node, and what belongs to it.
//!
//! Invariant: the lock of the state is not held across an await.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rowlock_state::command::Batch;
use rowlock_state::{BatchError, ClusterVersion, Machine, upgrade};
use rowlock_types::limits::BATCHES_IN_FLIGHT_MAX;
use rowlock_types::memory::Memory;
use rowlock_types::versions::{OtherRelease, Versions};

use crate::entry_times::EntryTimes;
use crate::invitations::Invitations;
use crate::room::Room;

/// Shared by apply (the only writer) and all connections (readers).
#[derive(Default)]
pub struct AppliedState {
    pub state: RwLock<Machine>,
    pub memory: Memory,
    /// Who has room on its disk.
    pub room: Room,
    /// Whom this node may send to the leader.
    pub invitations: Invitations,
    /// Decoded batches that this node has made itself, or has read of another leader.
    pub batch_cache: BatchCache,
    /// When the entries came that are not applied yet.
    pub entry_times: Arc<EntryTimes>,
    pub versions: Versions,
    applied_index: AtomicU64,
    /// In which version the cluster writes; 0: nothing has been applied yet.
    version: AtomicU16,
    left_behind: OnceLock<OtherRelease>,
}

impl AppliedState {
    /// Before anything is applied, on a node that knows these versions.
    pub fn of(versions: Versions) -> AppliedState {
        AppliedState { versions, ..AppliedState::default() }
    }

    /// In which version this node writes what others read.
    pub fn version(&self) -> u16 {
        self.version.load(Ordering::Acquire).max(upgrade::FIRST)
    }

    /// Set by apply, which holds the write lock of `state`.
    pub fn set_version(&self, version: u16) {
        let before = self.version.swap(version, Ordering::Release);
        assert!(before <= version, "a cluster does not go back to an older version");
    }

    /// Refuses a version of the cluster's that this node does not know: it must stop, and
    /// [`left_behind`](AppliedState::left_behind) says why from then on.
    ///
    /// # Errors
    /// It does not know it.
    pub fn check_version(&self, cluster: &ClusterVersion) -> Result<(), OtherRelease> {
        self.versions.check(cluster).inspect_err(|other| drop(self.left_behind.set(other.clone())))
    }

    /// Why this node must stop, if the cluster has gone on without it.
    pub fn left_behind(&self) -> Option<&OtherRelease> {
        self.left_behind.get()
    }

    /// Log index of the last entry with commands in `state`. Belongs to it only while its lock is held.
    pub fn applied_index(&self) -> u64 {
        self.applied_index.load(Ordering::Acquire)
    }

    /// Set by apply, which holds the write lock of `state`.
    pub fn set_applied_index(&self, index: u64) {
        let before = self.applied_index.swap(index, Ordering::Release);
        debug_assert!(before <= index, "what is applied stays applied");
    }
}

/// The last batches that this node has put into log entries as the leader or read out of another leader's, so
/// that it need not decode their bytes when it applies them.
#[derive(Default)]
pub struct BatchCache(Mutex<VecDeque<(Bytes, Batch)>>);

impl BatchCache {
    /// Keeps `batch`, which was encoded to these bytes. Forgets the oldest when there are more than can be in
    /// flight.
    pub fn keep(&self, bytes: Bytes, batch: Batch) {
        let mut kept = self.0.lock();
        if kept.len() >= BATCHES_IN_FLIGHT_MAX {
            kept.pop_front();
        }
        kept.push_back((bytes, batch));
        assert!(kept.len() <= BATCHES_IN_FLIGHT_MAX, "no more batches are kept than can be in flight");
    }

    /// Reads an entry of another leader before it is stored, and keeps its batch.
    ///
    /// # Errors
    /// No node that applies the entry could read it.
    pub fn read(&self, bytes: &Bytes) -> Result<(), BatchError> {
        self.keep(bytes.clone(), Batch::decode_shared(bytes)?);
        Ok(())
    }

    /// The batch of an entry that is being applied, if it is kept. Those before it have missed their turn.
    ///
    /// Invariant: it is found by where its bytes lie in memory and not by what they are. What is kept here
    /// cannot have moved or been written over, so these are the very bytes that were encoded.
    pub fn take(&self, bytes: &Bytes) -> Option<Batch> {
        let mut kept = self.0.lock();
        let is_it = |(kept, _): &(Bytes, Batch)| kept.as_ptr() == bytes.as_ptr() && kept.len() == bytes.len();
        let at = kept.iter().position(is_it)?;
        kept.drain(..=at).next_back().map(|(_, batch)| batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(time_ms: i64) -> Batch {
        Batch { time_ms, ..Batch::default() }
    }

    #[test]
    fn a_batch_is_found_by_its_own_bytes_only() {
        let (batch_cache, bytes) = (BatchCache::default(), batch(7).encode());
        batch_cache.keep(bytes.clone(), batch(7));
        assert_eq!(batch_cache.take(&Bytes::copy_from_slice(&bytes)), None, "these came from elsewhere");
        assert_eq!(batch_cache.take(&bytes), Some(batch(7)));
        assert_eq!(batch_cache.take(&bytes), None, "it is applied once");
    }

    #[test]
    fn no_more_are_kept_than_can_be_in_flight() {
        let batch_cache = BatchCache::default();
        let all: Vec<Bytes> = (0..=BATCHES_IN_FLIGHT_MAX as i64).map(|n| batch(n).encode()).collect();
        for (n, bytes) in (0..).zip(&all) {
            batch_cache.keep(bytes.clone(), batch(n));
        }
        assert_eq!(batch_cache.take(&all[0]), None);
        assert_eq!(batch_cache.take(&all[2]), Some(batch(2)));
        assert_eq!(batch_cache.take(&all[1]), None, "a later one is applied, so this one never will be");
        assert_eq!(batch_cache.take(&all[3]), Some(batch(3)));
    }
}
