//! The bytes of a log entry: a byte for the version that the cluster writes ([`crate::upgrade`]), a byte of
//! flags, the entry's number in its term, then the proposals, each of which says what is not as in the one
//! before ([`mod@write`]).
//!
//! Invariant: a change of [`crate::command`] that changes these bytes takes a new version, and keeps reading
//! those of earlier releases; `testdata/batch.golden` shows such a change.

mod read;
mod write;

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::error::DecodeError;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::command::{Batch, Proposal};
use crate::upgrade::{FIRST, NEWEST};

/// Largest encoded batch. The proposer folds far less; one command is bounded by the client's frame.
pub const BATCH_MAX_BYTES: usize = 64 << 20;

/// The flag of [`Batch::enforce_quota`].
const ENFORCE_QUOTA: u8 = 1;
/// The flag of [`Batch::guard_locks`].
const GUARD_LOCKS: u8 = 2;
/// All flags that this release knows.
const FLAGS: u8 = ENFORCE_QUOTA | GUARD_LOCKS;

/// The byte that a client's request begins with. The numbers below [`tag::FIRST`] are bincode's, for the
/// cluster's own commands, by their order in [`crate::command::Command`].
mod tag {
    pub(super) const FIRST: u8 = 64;
    pub(super) const CREATE: u8 = 64;
    pub(super) const DELETE: u8 = 65;
    pub(super) const SET_DATA: u8 = 66;
    pub(super) const SET_ACL: u8 = 67;
    pub(super) const SYNC: u8 = 68;
    pub(super) const MULTI: u8 = 69;
    pub(super) const CREATE2: u8 = 70;
    pub(super) const CREATE_CONTAINER: u8 = 71;
    pub(super) const CREATE_TTL: u8 = 72;
    pub(super) const CLOSE_SESSION: u8 = 73;
    pub(super) const ACQUIRE: u8 = 74;
    pub(super) const RELEASE: u8 = 75;
    pub(super) const ABANDON: u8 = 76;
    pub(super) const VERIFY: u8 = 77;
    pub(super) const CONVERT: u8 = 78;
    pub(super) const FORCE_RELEASE: u8 = 79;
    pub(super) const ASK: u8 = 80;
}

/// The byte that a proposal begins with: which of these follow, in this order, because they are not as in the
/// proposal before it. Before the first one everything is zero or empty. The session always follows, as a
/// difference.
mod head {
    /// Node and incarnation of the origin.
    pub(super) const SENDER: u8 = 1;
    /// The request's number; otherwise one more.
    pub(super) const REQUEST: u8 = 2;
    pub(super) const ATTACHMENT: u8 = 4;
    pub(super) const IDENTITIES: u8 = 8;
    /// The command is tagged, with this id.
    pub(super) const TAG: u8 = 16;
    /// The acknowledged id follows; otherwise all ids before this one are acknowledged.
    pub(super) const ACKED: u8 = 32;
    pub(super) const ALL: u8 = 63;
}

/// The byte that an acquire and a create begin with: which of these follow, and what else there is.
mod bits {
    pub(super) const DATA: u8 = 1;
    /// Permissions, other than those of the next bit.
    pub(super) const ACL: u8 = 2;
    /// The permissions are `Acl::open`.
    pub(super) const OPEN: u8 = 4;

    /// The acquire waits for the lock.
    pub(super) const WAIT: u8 = 8;
    /// A byte of [`super::mode`]; otherwise exclusive.
    pub(super) const MODE: u8 = 16;
    pub(super) const LIMIT: u8 = 32;
    /// A byte of [`super::owner`]; otherwise unnamed.
    pub(super) const OWNER: u8 = 64;
    /// Longest hold, lock-delay and minimum hold; otherwise none.
    pub(super) const TIMES: u8 = 128;

    pub(super) const OF_CREATE: u8 = DATA | ACL | OPEN;
}

mod mode {
    pub(super) const SHARED: u8 = 1;
    pub(super) const PERMITS: u8 = 2;
}

mod owner {
    pub(super) const SESSION: u8 = 1;
    pub(super) const NAMED: u8 = 2;
    pub(super) const UNDER: u8 = 3;
}

/// How it is written: little-endian, variable-length integers.
pub(crate) const BINCODE: Configuration<LittleEndian, Varint> = bincode::config::standard();

/// Reads a value off the front of `bytes`, and says how many of them it is.
///
/// bincode believes lengths up to its limit, which is a constant and counts integers at full width (one byte
/// as eight, or sixteen). So the limit is a step above the input: a forged length gets no memory beyond that.
pub(crate) fn from_bincode<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), DecodeError> {
    match bytes.len() {
        0..=0x1000 => within::<T, 0x1_0000>(bytes),
        0x1001..=0x1_0000 => within::<T, 0x10_0000>(bytes),
        0x1_0001..=0x10_0000 => within::<T, 0x100_0000>(bytes),
        0x10_0001..=0x100_0000 => within::<T, 0x1000_0000>(bytes),
        _ => within::<T, 0x4000_0000>(bytes),
    }
}

fn within<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<(T, usize), DecodeError> {
    let config: Configuration<LittleEndian, Varint, Limit<LIMIT>> =
        bincode::config::standard().with_limit::<LIMIT>();
    bincode::serde::decode_from_slice(bytes, config)
}

/// Why bytes are not a batch. In the log of this node that means damage or a newer version: the node must
/// stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The input has no bytes.
    #[error("the batch is empty")]
    Empty,
    /// Written by another version.
    #[error("the batch has version {0}, this release knows none beyond {NEWEST}")]
    Version(u8),
    /// Written by another version, which knows more flags.
    #[error("the batch has flags {0:#04x}, this node knows {known:#04x}", known = FLAGS)]
    Flags(u8),
    #[error("the batch has {0} bytes, more than {BATCH_MAX_BYTES}")]
    TooLarge(usize),
    /// Does not decode from this byte on, or from shortly before it.
    #[error("the batch is damaged at byte {0}")]
    Damaged(usize),
    /// Something follows the batch.
    #[error("{0} bytes follow the batch")]
    Trailing(usize),
}

impl Batch {
    /// The payload of a log entry, in the version of the first release. The proposer bounds what it folds: a
    /// batch that no node could read must not get into the log.
    pub fn encode(&self) -> Bytes {
        self.encode_as(FIRST)
    }

    /// The same in a version of the cluster's. All that there are so far differ in their first byte only.
    pub fn encode_as(&self, version: u16) -> Bytes {
        let first = u8::try_from(version).ok().filter(|_| (FIRST..=NEWEST).contains(&version));
        let first = first.expect("Invariant: a cluster writes in a version that its nodes know");
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.enforce_quota, ENFORCE_QUOTA) | flag(self.guard_locks, GUARD_LOCKS);
        let mut bytes = vec![first, flags];
        write::batch(self, &mut bytes);
        assert!(bytes.len() <= BATCH_MAX_BYTES, "a batch of {} bytes was folded", bytes.len());
        // The room was guessed, and the log keeps entries in memory.
        bytes.shrink_to_fit();
        bytes.into()
    }

    /// Reads what [`Batch::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Batch, BatchError> {
        Batch::decode_shared(&Bytes::copy_from_slice(bytes))
    }

    /// The same without a copy: data in what it gives may be slices of `bytes`, and keep them.
    pub fn decode_shared(bytes: &Bytes) -> Result<Batch, BatchError> {
        if bytes.len() > BATCH_MAX_BYTES {
            return Err(BatchError::TooLarge(bytes.len()));
        }
        let (flags, body) = match &bytes[..] {
            [] => return Err(BatchError::Empty),
            [version, ..] if !(FIRST..=NEWEST).contains(&u16::from(*version)) => {
                return Err(BatchError::Version(*version));
            }
            [_] => return Err(BatchError::Empty),
            [_, flags, body @ ..] => (*flags, body),
        };
        if flags & !FLAGS != 0 {
            return Err(BatchError::Flags(flags));
        }
        let batch = read::batch(body, bytes)?;
        let (enforce_quota, guard_locks) = (flags & ENFORCE_QUOTA != 0, flags & GUARD_LOCKS != 0);
        Ok(Batch { enforce_quota, guard_locks, ..batch })
    }
}

impl Proposal {
    /// Appends a list of proposals, as a batch has them: for a message that carries one.
    pub fn encode_all(proposals: &[Proposal], out: &mut Vec<u8>) {
        write::proposals(proposals, out);
    }

    /// The list that these bytes are, all of them. Data in what it gives may be slices of `bytes`, and keep
    /// them.
    pub fn decode_all(bytes: &Bytes) -> Result<Vec<Proposal>, BatchError> {
        if bytes.len() > BATCH_MAX_BYTES {
            return Err(BatchError::TooLarge(bytes.len()));
        }
        read::proposals(bytes)
    }
}

#[cfg(test)]
mod tests;
