//! The bytes of a log entry: one version byte, then the batch in bincode. Version 2 has a byte of flags in between.
//!
//! Invariant: a change of [`crate::command`] that changes these bytes takes a new version and keeps reading the old
//! one; `testdata/batch.golden` shows such a change.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bytes::Bytes;

use crate::command::{Batch, Command, Proposal};

/// Largest encoded batch. The proposer folds far less; one command is bounded by the client's frame.
pub const BATCH_MAX_BYTES: usize = 64 << 20;

/// The first byte, where no flag is set: what every node can read.
const PLAIN: u8 = 1;
/// The first byte, where a byte of flags follows.
const FLAGGED: u8 = 2;
/// The flag of [`Batch::enforce_quota`].
const ENFORCE_QUOTA: u8 = 1;
/// There are commands that nodes without lock queues do not know.
const LOCKS: u8 = 2;

/// Little-endian, variable-length integers, and no allocation beyond the limit.
pub(crate) const BINCODE: Configuration<LittleEndian, Varint, Limit<BATCH_MAX_BYTES>> =
    bincode::config::standard().with_limit::<BATCH_MAX_BYTES>();

/// Why bytes are not a batch. In the log of this node that means damage or a newer version: the node must stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Not one byte.
    #[error("the batch is empty")]
    Empty,
    /// Written by another version.
    #[error("the batch has format version {0}, this node knows {PLAIN} and {FLAGGED}")]
    Version(u8),
    /// Written by another version, which knows more flags.
    #[error("the batch has flags {0:#04x}, this node knows {known:#04x}", known = ENFORCE_QUOTA | LOCKS)]
    Flags(u8),
    /// More than [`BATCH_MAX_BYTES`].
    #[error("the batch has {0} bytes, more than {BATCH_MAX_BYTES}")]
    TooLarge(usize),
    /// Does not decode.
    #[error("the batch is damaged: {0}")]
    Damaged(#[from] bincode::error::DecodeError),
    /// Something follows the batch.
    #[error("{0} bytes follow the batch")]
    Trailing(usize),
}

impl Batch {
    /// The payload of a log entry. The proposer bounds what it folds: a batch that no node could read must not get
    /// into the log.
    pub fn encode(&self) -> Bytes {
        let mut bytes = match self.flags() {
            0 => vec![PLAIN],
            flags => vec![FLAGGED, flags],
        };
        bincode::serde::encode_into_std_write(self, &mut bytes, BINCODE)
            .expect("a batch encodes into memory");
        assert!(bytes.len() <= BATCH_MAX_BYTES, "a batch of {} bytes was folded", bytes.len());
        bytes.into()
    }

    /// Invariant: a batch of commands of the first version has no flag but its quota's, so that older nodes read it.
    fn flags(&self) -> u8 {
        let is_newer = |proposal: &Proposal| {
            matches!(
                proposal.command,
                Command::Tagged { .. }
                    | Command::Acquire(_)
                    | Command::Release(_)
                    | Command::Abandon(_)
                    | Command::Verify(_)
                    | Command::Convert { .. }
                    | Command::ForceRelease(_)
                    | Command::LockDue { .. }
            )
        };
        let locks = if self.proposals.iter().any(is_newer) { LOCKS } else { 0 };
        locks | if self.enforce_quota { ENFORCE_QUOTA } else { 0 }
    }

    /// Reads what [`Batch::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Batch, BatchError> {
        if bytes.len() > BATCH_MAX_BYTES {
            return Err(BatchError::TooLarge(bytes.len()));
        }
        let (enforce_quota, body) = match bytes {
            [] | [FLAGGED] => return Err(BatchError::Empty),
            [PLAIN, body @ ..] => (false, body),
            [FLAGGED, flags, body @ ..] if flags & !(ENFORCE_QUOTA | LOCKS) == 0 => {
                (flags & ENFORCE_QUOTA != 0, body)
            }
            [FLAGGED, flags, ..] => return Err(BatchError::Flags(*flags)),
            [version, ..] => return Err(BatchError::Version(*version)),
        };
        let (batch, read) = bincode::serde::decode_from_slice(body, BINCODE)?;
        let batch = Batch { enforce_quota, ..batch };
        if read == body.len() { Ok(batch) } else { Err(BatchError::Trailing(body.len() - read)) }
    }
}
