//! The bytes of a log entry: one version byte, then the batch in bincode. Version 2 has a byte of flags in between.
//!
//! Invariant: a change of [`crate::command`] that changes these bytes takes a new version and keeps reading the old
//! one; `testdata/batch.golden` shows such a change.

mod read;
mod write;

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

/// How bincode numbers those commands that are read and written here: by their order in [`Command`].
mod tag {
    pub(super) const TAGGED: u32 = 12;
    pub(super) const ACQUIRE: u32 = 13;
    pub(super) const RELEASE: u32 = 14;
    pub(super) const VERIFY: u32 = 16;
}

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
        write::batch(self, &mut bytes);
        assert!(bytes.len() <= BATCH_MAX_BYTES, "a batch of {} bytes was folded", bytes.len());
        // The room was guessed, and the log keeps entries in memory.
        bytes.shrink_to_fit();
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
        Batch::decode_shared(&Bytes::copy_from_slice(bytes))
    }

    /// The same without a copy: data in what it gives may be slices of `bytes`, and keep them.
    pub fn decode_shared(bytes: &Bytes) -> Result<Batch, BatchError> {
        if bytes.len() > BATCH_MAX_BYTES {
            return Err(BatchError::TooLarge(bytes.len()));
        }
        let (enforce_quota, body) = match &bytes[..] {
            [] | [FLAGGED] => return Err(BatchError::Empty),
            [PLAIN, body @ ..] => (false, body),
            [FLAGGED, flags, body @ ..] if flags & !(ENFORCE_QUOTA | LOCKS) == 0 => {
                (flags & ENFORCE_QUOTA != 0, body)
            }
            [FLAGGED, flags, ..] => return Err(BatchError::Flags(*flags)),
            [version, ..] => return Err(BatchError::Version(*version)),
        };
        if let Some(batch) = read::batch(body, bytes) {
            return Ok(Batch { enforce_quota, ..batch });
        }
        let (batch, read) = bincode::serde::decode_from_slice(body, BINCODE)?;
        let batch = Batch { enforce_quota, ..batch };
        if read == body.len() { Ok(batch) } else { Err(BatchError::Trailing(body.len() - read)) }
    }
}

impl Proposal {
    /// Appends a list of proposals, as bincode writes it with varints: for a message that carries one.
    pub fn encode_all(proposals: &[Proposal], out: &mut Vec<u8>) {
        write::proposals(proposals, out);
    }

    /// The list that these bytes are, all of them, as bincode reads it. `None` if that is not seen at once: bincode then
    /// says what they are, or what is wrong with them. Data in what it gives may be slices of `bytes`, and keep them.
    pub fn decode_all(bytes: &Bytes) -> Option<Vec<Proposal>> {
        if bytes.len() > BATCH_MAX_BYTES { None } else { read::proposals(bytes, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rowlock_proto::acl::{Acl, Id};
    use rowlock_proto::lock::{Acquire, Attempt, Claim, Mode, Owner};
    use rowlock_proto::request::SetData;
    use rowlock_proto::{FencingToken, NodeId, SessionId, Version};

    use super::*;
    use crate::command::{Attachment, Origin};

    fn by_bincode(batch: &Batch) -> Vec<u8> {
        bincode::serde::encode_to_vec(batch, BINCODE).unwrap()
    }

    /// Of every length that a number may have.
    fn number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
    }

    fn int() -> impl Strategy<Value = i64> {
        (number(), any::<bool>()).prop_map(|(n, negative)| if negative { !(n as i64) } else { n as i64 })
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z/é]{0,12}", "[a-z]{240,270}"]
    }

    fn data() -> impl Strategy<Value = Option<Bytes>> {
        prop::option::of(prop::collection::vec(any::<u8>(), 0..5).prop_map(Bytes::from))
    }

    fn id() -> impl Strategy<Value = Id> {
        (text(), text()).prop_map(|(scheme, id)| Id { scheme, id })
    }

    fn claims() -> impl Strategy<Value = Vec<Claim>> {
        let claim = (text(), int()).prop_map(|(path, token)| Claim { path, token: FencingToken(token) });
        prop::collection::vec(claim, 0..3)
    }

    fn acquire() -> impl Strategy<Value = Acquire> {
        let u32s = || number().prop_map(|number| number as u32);
        let acl = (int(), id()).prop_map(|(perms, id)| Acl { perms: perms as i32, id });
        let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), u32s().prop_map(Mode::Permits)];
        let owner = prop_oneof![Just(Owner::Unnamed), Just(Owner::Session), number().prop_map(Owner::Named)];
        let acls =
            prop_oneof![prop::collection::vec(acl, 0..3).prop_map(Arc::from), Just(Acl::shared_open()),];
        let acl = prop::option::of(acls);
        (text(), text(), data(), acl, mode, owner, any::<bool>(), [u32s(), u32s(), u32s()]).prop_map(
            |(lock, prefix, data, acl, mode, owner, wait, [limit, max_hold_ms, lock_delay_ms])| Acquire {
                lock,
                prefix,
                data,
                acl,
                mode,
                limit,
                wait,
                owner,
                max_hold_ms,
                lock_delay_ms,
            },
        )
    }

    fn command() -> impl Strategy<Value = Command> {
        let other = prop_oneof![
            Just(Command::Noop),
            Just(Command::CloseSession),
            claims().prop_map(Command::Verify),
            (text(), data())
                .prop_map(|(path, data)| { Command::SetData(SetData { path, data, version: Version::ANY }) }),
            (text(), text()).prop_map(|(lock, prefix)| Command::Abandon(vec![Attempt { lock, prefix }])),
            text().prop_map(|lock| Command::LockDue { lock }),
        ];
        let plain = prop_oneof![
            prop::collection::vec(acquire(), 0..3).prop_map(Command::Acquire),
            claims().prop_map(Command::Release),
            other,
        ];
        plain.prop_recursive(2, 2, 1, |inner| {
            (number(), number(), inner).prop_map(|(id, acked, command)| Command::Tagged {
                id,
                acked,
                command: Box::new(command),
            })
        })
    }

    fn batch() -> impl Strategy<Value = Batch> {
        let proposal =
            ([number(), number(), number(), number()], int(), prop::collection::vec(id(), 0..3), command())
                .prop_map(|([node, incarnation, request, attachment], session, identities, command)| {
                    Proposal {
                        origin: Origin { node: NodeId(node), incarnation, request },
                        session: SessionId(session),
                        attachment: Attachment(attachment),
                        identities: identities.into(),
                        command,
                    }
                });
        (int(), prop::collection::vec(proposal, 0..4)).prop_map(|(time_ms, proposals)| Batch {
            time_ms,
            enforce_quota: false,
            proposals,
        })
    }

    proptest! {
        #[test]
        fn a_batch_is_written_and_read_as_bincode_does(batch in batch()) {
            let bytes = by_bincode(&batch);
            let mut written = Vec::new();
            write::batch(&batch, &mut written);
            prop_assert_eq!(&written, &bytes);
            let twice = |command: &Command| {
                matches!(command, Command::Tagged { command, .. } if matches!(**command, Command::Tagged { .. }))
            };
            let bytes = Bytes::from(bytes);
            let read = read::batch(&bytes, &bytes);
            prop_assert!(read.is_some() || batch.proposals.iter().any(|proposal| twice(&proposal.command)));
            prop_assert_eq!(read.as_ref().unwrap_or(&batch), &batch);
            let alone = bincode::serde::encode_to_vec(&batch.proposals, BINCODE).unwrap();
            written.clear();
            Proposal::encode_all(&batch.proposals, &mut written);
            prop_assert_eq!(&written, &alone);
            prop_assert_eq!(Proposal::decode_all(&alone.into()), read.map(|batch| batch.proposals));
        }

        #[test]
        fn what_is_made_of_damaged_bytes_is_what_bincode_makes_of_them(
            batch in batch(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = by_bincode(&batch);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                let read = bincode::serde::decode_from_slice::<Batch, _>(bytes, BINCODE);
                let known = read.ok().filter(|(_, read)| *read == bytes.len()).map(|(batch, _)| batch);
                // It may give up where bincode does not, as on tags in tags.
                let bytes = Bytes::copy_from_slice(bytes);
                if let Some(batch) = read::batch(&bytes, &bytes) {
                    prop_assert_eq!(Some(batch), known);
                }
            }
        }
    }
}
