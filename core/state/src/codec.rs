//! Encoding of log entries: a byte for the version that the cluster writes (`upgrade`), a byte of
//! flags, the entry's number in its term, and the proposals. Each proposal contains only its differences from
//! the previous one (`write`).
//!
//! Invariant: a change of [`crate::command`] that changes these bytes takes a new version, and reads the
//! bytes of earlier releases; `testdata/batch.golden` shows every change.

mod read;
mod value;
mod write;

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::error::DecodeError;
use bytes::Bytes;
use serde::de::DeserializeOwned;

pub use value::{CodecError, borrow_front, decode, decode_front, encode, encode_into};

use crate::command::{Batch, Proposal};
use crate::version::{FIRST, NEWEST};

/// Largest encoded batch. The proposer folds far less; the client's frame bounds one command.
pub const BATCH_MAX_BYTES: usize = 64 << 20;

/// The flag of [`Batch::enforce_quota`].
const ENFORCE_QUOTA: u8 = 1;
/// The flag of [`Batch::guard_locks`].
const GUARD_LOCKS: u8 = 2;
/// Flags known to this release.
const FLAGS: u8 = ENFORCE_QUOTA | GUARD_LOCKS;

/// First byte of an encoded client request. Numbers below [`tag::FIRST`] are bincode's variant numbers of the
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

/// First byte of a proposal: the set of fields that follow, in this order. Fields that follow differ from the
/// previous proposal. Initial values are zero or empty. The session always follows, as a difference.
mod head {
    /// Node and incarnation of the origin.
    pub(super) const SENDER: u8 = 1;
    /// The request's number; without this bit, the previous number plus 1.
    pub(super) const REQUEST: u8 = 2;
    pub(super) const ATTACHMENT: u8 = 4;
    pub(super) const IDENTITIES: u8 = 8;
    /// The command's tag with this id.
    pub(super) const TAG: u8 = 16;
    /// The acknowledged id; without this bit, the tag's id minus 1.
    pub(super) const ACKED: u8 = 32;
    pub(super) const ALL: u8 = 63;
}

/// First byte of an acquire or create: the set of fields that follow, and flags.
mod bits {
    pub(super) const DATA: u8 = 1;
    /// An ACL other than `Acl::open`.
    pub(super) const ACL: u8 = 2;
    /// The ACL is `Acl::open`.
    pub(super) const OPEN: u8 = 4;

    /// The acquire waits for the lock.
    pub(super) const WAIT: u8 = 8;
    /// A byte of [`super::mode`] follows; without this bit, exclusive.
    pub(super) const MODE: u8 = 16;
    pub(super) const LIMIT: u8 = 32;
    /// A byte of [`super::owner`] follows; without this bit, unnamed.
    pub(super) const OWNER: u8 = 64;
    /// Longest hold, lock-delay and minimum hold follow; without this bit, none of the three.
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

/// Bincode's configuration: little-endian, variable-length integers.
pub(crate) const BINCODE: Configuration<LittleEndian, Varint> = bincode::config::standard();

/// Reads a value off the front of `bytes`. Returns the value and the number of bytes read.
///
/// bincode trusts lengths up to its limit. The limit is a constant and counts integers at full width (one
/// byte as eight, or sixteen). So the limit here is a step above the input: a forged length allocates no
/// memory beyond the limit.
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

/// Reason why bytes are not a batch. In the node's own log the reason is damage or a newer version: the node
/// must stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The input has no bytes.
    #[error("the batch is empty")]
    Empty,
    /// The batch has the version of another release.
    #[error("the batch has version {0}, this release knows none beyond {NEWEST}")]
    Version(u8),
    /// The batch has flags of a newer release.
    #[error("the batch has flags {0:#04x}, this node knows {known:#04x}", known = FLAGS)]
    Flags(u8),
    #[error("the batch has {0} bytes, more than {BATCH_MAX_BYTES}")]
    TooLarge(usize),
    /// Decoding failed at this byte, or shortly before.
    #[error("the batch is damaged at byte {0}")]
    Damaged(usize),
    /// Bytes follow the batch.
    #[error("{0} bytes follow the batch")]
    Trailing(usize),
}

impl Batch {
    /// Encodes the batch in the version of the first release. The proposer bounds batches: no batch that
    /// nodes cannot read may enter the log.
    pub fn encode(&self) -> Bytes {
        self.encode_as(FIRST)
    }

    /// Encodes the batch in a version of the cluster. The known versions differ in the first byte only.
    pub fn encode_as(&self, version: u16) -> Bytes {
        let first = u8::try_from(version).ok().filter(|_| (FIRST..=NEWEST).contains(&version));
        let first = first.expect("Invariant: a cluster writes in a version that its nodes know");
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.enforce_quota, ENFORCE_QUOTA) | flag(self.guard_locks, GUARD_LOCKS);
        let mut bytes = Vec::with_capacity((1 + self.proposals.len()) * write::PROPOSAL_BYTES);
        bytes.extend([first, flags]);
        write::batch(self, &mut bytes);
        assert!(bytes.len() <= BATCH_MAX_BYTES, "a batch of {} bytes was folded", bytes.len());
        // Releases unused capacity: the log keeps entries in memory.
        bytes.shrink_to_fit();
        bytes.into()
    }

    /// Decodes the output of [`Batch::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Batch, BatchError> {
        Batch::decode_shared(&Bytes::copy_from_slice(bytes))
    }

    /// Decodes without a copy: data in the batch may be slices of `bytes`, and keep `bytes` alive.
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
    /// Appends proposals, encoded as in a batch, to a message that contains proposals only.
    pub fn encode_all(proposals: &[Proposal], out: &mut Vec<u8>) {
        write::proposals(proposals, out);
    }

    /// Decodes a list of proposals from all of `bytes`. Data in the proposals may be slices of `bytes`, and
    /// keep `bytes` alive.
    pub fn decode_all(bytes: &Bytes) -> Result<Vec<Proposal>, BatchError> {
        if bytes.len() > BATCH_MAX_BYTES {
            return Err(BatchError::TooLarge(bytes.len()));
        }
        read::proposals(bytes)
    }
}

#[cfg(test)]
mod tests;
