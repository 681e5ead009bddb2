//! The applied state of this node, with its caches and versions.
//!
//! Invariant: no await holds the lock of the state.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rowlock_metrics::memory::Memory;
use rowlock_state::command::Batch;
use rowlock_state::version::{OtherRelease, Versions};
use rowlock_state::{BatchError, ClusterVersion, Machine, version};

use crate::entry_times::EntryTimes;
use crate::invitations::Invitations;
use crate::limits::BATCHES_IN_FLIGHT_MAX;
use crate::room::Room;

/// Applied state, shared by apply (the only writer) and all connections (readers).
#[derive(Default)]
pub struct AppliedState {
    pub state: RwLock<Machine>,
    pub memory: Memory,
    /// Disk room of the members.
    pub room: Room,
    /// Invitations of sessions to the leader.
    pub invitations: Invitations,
    /// Decoded batches that this node created, or decoded from another leader.
    pub batch_cache: BatchCache,
    /// Arrival times of entries that are not applied yet.
    pub entry_times: Arc<EntryTimes>,
    pub versions: Versions,
    applied_index: AtomicU64,
    /// Version in which the cluster writes; 0 before the first apply.
    version: AtomicU16,
    left_behind: OnceLock<OtherRelease>,
}

impl AppliedState {
    /// Creates the state of a node that supports `versions`, before the first apply.
    pub fn of(versions: Versions) -> AppliedState {
        AppliedState { versions, ..AppliedState::default() }
    }

    /// Returns the version in which this node encodes data for other nodes.
    pub fn version(&self) -> u16 {
        self.version.load(Ordering::Acquire).max(version::FIRST)
    }

    /// Sets the version. The caller is apply, which holds the write lock of `state`.
    pub fn set_version(&self, version: u16) {
        let before = self.version.swap(version, Ordering::Release);
        assert!(before <= version, "a cluster does not go back to an older version");
    }

    /// Rejects a cluster version that this node does not support: the node must stop, and
    /// [`left_behind`](AppliedState::left_behind) returns the reason from then on.
    ///
    /// # Errors
    /// The version is not supported.
    pub fn check_version(&self, cluster: &ClusterVersion) -> Result<(), OtherRelease> {
        self.versions.check(cluster).inspect_err(|other| drop(self.left_behind.set(other.clone())))
    }

    /// Returns why this node must stop, if the cluster was upgraded beyond this node's versions.
    pub fn left_behind(&self) -> Option<&OtherRelease> {
        self.left_behind.get()
    }

    /// Returns the log index of the last entry with commands in `state`. Consistent with the state only under
    /// its lock.
    pub fn applied_index(&self) -> u64 {
        self.applied_index.load(Ordering::Acquire)
    }

    /// Sets the index. The caller is apply, which holds the write lock of `state`.
    pub fn set_applied_index(&self, index: u64) {
        let before = self.applied_index.swap(index, Ordering::Release);
        debug_assert!(before <= index, "what is applied stays applied");
    }
}

/// The latest batches that this node encoded as leader or decoded from another leader's entries, so that
/// apply need not decode them again.
#[derive(Default)]
pub struct BatchCache(Mutex<VecDeque<(Bytes, Batch)>>);

impl BatchCache {
    /// Caches `batch` with its encoded bytes. Drops the oldest batch when the cache holds as many as can be
    /// in flight.
    pub fn keep(&self, bytes: Bytes, batch: Batch) {
        let mut kept = self.0.lock();
        if kept.len() >= BATCHES_IN_FLIGHT_MAX {
            kept.pop_front();
        }
        kept.push_back((bytes, batch));
        assert!(kept.len() <= BATCHES_IN_FLIGHT_MAX, "no more batches are kept than can be in flight");
    }

    /// Decodes an entry of another leader before the log stores the entry, and caches the batch.
    ///
    /// # Errors
    /// The entry cannot be decoded by any node.
    pub fn read(&self, bytes: &Bytes) -> Result<(), BatchError> {
        self.keep(bytes.clone(), Batch::decode_shared(bytes)?);
        Ok(())
    }

    /// Passes the batch of an entry to `read`, decoded again unless cached. `None` for an undecodable batch.
    pub fn peek<T>(&self, bytes: &Bytes, read: impl FnOnce(&Batch) -> Option<T>) -> Option<T> {
        let kept = self.0.lock();
        let is_it =
            |(kept, _): &&(Bytes, Batch)| kept.as_ptr() == bytes.as_ptr() && kept.len() == bytes.len();
        match kept.iter().find(is_it) {
            Some((_, batch)) => read(batch),
            None => read(&Batch::decode_shared(bytes).ok()?),
        }
    }

    /// Removes and returns the batch of an entry that is being applied, if cached. Drops all earlier batches.
    ///
    /// Invariant: the lookup compares the address and length of the bytes, not their content. A cached buffer
    /// cannot move or change, so equal addresses mean the very bytes that were encoded.
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
    fn the_cache_is_bounded_by_the_batches_in_flight() {
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
