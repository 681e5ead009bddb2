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

/// How bincode numbers those commands that are read and written by hand: by their order in
/// [`crate::command::Command`].
mod tag {
    pub(super) const CREATE: u8 = 5;
    pub(super) const DELETE: u8 = 6;
    pub(super) const ACQUIRE: u8 = 13;
    pub(super) const RELEASE: u8 = 14;
    pub(super) const VERIFY: u8 = 16;
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

    /// The time to live of a create follows.
    pub(super) const TTL: u8 = 8;
    pub(super) const OF_CREATE: u8 = DATA | ACL | OPEN | TTL;
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
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rowlock_proto::acl::{Acl, Id};
    use rowlock_proto::lock::{Acquire, Attempt, Claim, Mode, Owner};
    use rowlock_proto::request::SetData;
    use rowlock_proto::{FencingToken, NodeId, SessionId, Version};

    use super::*;
    use crate::command::{Attachment, Command, Ordinal, Origin};
    use crate::proof::Proof;
    use crate::upgrade::ClusterVersion;

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
        let claim =
            (text(), int()).prop_map(|(path, token)| Claim { path: path.into(), token: FencingToken(token) });
        prop::collection::vec(claim, 0..3)
    }

    fn acquire() -> impl Strategy<Value = Acquire> {
        let u32s = || number().prop_map(|number| number as u32);
        let acl = (int(), id()).prop_map(|(perms, id)| Acl { perms: perms as i32, id });
        let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), u32s().prop_map(Mode::Permits)];
        let owner = prop_oneof![
            Just(Owner::Unnamed),
            Just(Owner::Session),
            number().prop_map(Owner::Named),
            number().prop_map(Owner::Under)
        ];
        let acls =
            prop_oneof![prop::collection::vec(acl, 0..3).prop_map(Arc::from), Just(Acl::shared_open()),];
        let acl = prop::option::of(acls);
        (text(), text(), data(), acl, mode, owner, any::<[bool; 2]>(), [u32s(), u32s(), u32s(), u32s()])
            .prop_map(
                |(
                    lock,
                    prefix,
                    data,
                    acl,
                    mode,
                    owner,
                    [wait, min_hold_lapses],
                    [limit, max_hold_ms, lock_delay_ms, min_hold_ms],
                )| Acquire {
                    lock: lock.into(),
                    prefix: prefix.into(),
                    data,
                    acl,
                    mode,
                    limit,
                    wait,
                    owner,
                    max_hold_ms,
                    lock_delay_ms,
                    min_hold_ms,
                    min_hold_lapses,
                },
            )
    }

    fn command() -> impl Strategy<Value = Command> {
        let other = prop_oneof![
            Just(Command::Noop),
            Just(Command::CloseSession),
            claims().prop_map(|claims| Command::Verify(claims.into())),
            (text(), data())
                .prop_map(|(path, data)| { Command::SetData(SetData { path, data, version: Version::ANY }) }),
            (text(), text()).prop_map(|(lock, prefix)| Command::Abandon(vec![Attempt { lock, prefix }])),
            text().prop_map(|lock| Command::LockDue { lock }),
            (number(), any::<[u8; 4]>()).prop_map(|(timeout, password)| Command::OpenSession {
                proof: Proof::of(&password),
                timeout_ms: timeout as u32,
            }),
            (prop::option::of(number()), int(), number()).prop_map(|(from, session, timeout)| {
                let (from, session) = (from.map(Attachment), SessionId(session));
                Command::Reattach { from, session, proof: Proof::of(b"p"), timeout_ms: timeout as u32 }
            }),
            Just(Command::CompareDigests),
            (number(), text()).prop_map(|(number, release)| Command::RaiseVersion {
                to: ClusterVersion { number: number as u16, release },
            }),
            any::<bool>().prop_map(|hold| Command::HoldVersion { hold }),
            int().prop_map(|above| Command::RaiseTokens { above: rowlock_proto::FencingToken(above) }),
            (number(), number()).prop_map(|(index, digest)| Command::DigestAt { index, digest }),
            Just(Command::Refused(rowlock_proto::ErrorCode::BadArguments)),
        ];
        let plain = prop_oneof![
            prop::collection::vec(acquire(), 0..3).prop_map(|all| Command::Acquire(all.into())),
            claims().prop_map(|claims| Command::Release(claims.into())),
            other,
        ];
        plain.prop_recursive(2, 2, 1, |inner| {
            (number(), number(), inner).prop_map(|(id, acked, command)| match command {
                write if write.is_write() => Command::Tagged { id, acked, command: Box::new(write) },
                other => other,
            })
        })
    }

    /// Whose parts are often those of the one before.
    fn proposals() -> impl Strategy<Value = Vec<Proposal>> {
        let few = |of: u64| prop_oneof![4 => (0..2u64).prop_map(move |n| n * of), 1 => number()];
        let identities = prop::collection::vec(id(), 0..3);
        let identities = prop_oneof![2 => Just(vec![]), 2 => Just(vec![Id::anyone()]), 1 => identities];
        let proposal = ([few(1), few(u64::MAX), few(2), few(1)], int(), identities, command());
        prop::collection::vec(proposal, 0..6).prop_map(|all| {
            let numbered = all.into_iter().enumerate();
            let made =
                numbered.map(|(at, ([node, incarnation, request, attachment], session, ids, command))| {
                    let request = request.wrapping_add(at as u64);
                    Proposal {
                        origin: Origin { node: NodeId(node), incarnation, request },
                        session: SessionId(session),
                        attachment: Attachment(attachment),
                        identities: ids.into(),
                        command,
                    }
                });
            made.collect()
        })
    }

    fn batch() -> impl Strategy<Value = Batch> {
        let ordinal = (number(), number()).prop_map(|(term, number)| Ordinal { term, number });
        (int(), any::<bool>(), ordinal, proposals()).prop_map(
            |(time_ms, enforce_quota, ordinal, proposals)| Batch {
                time_ms,
                enforce_quota,
                guard_locks: !enforce_quota,
                ordinal,
                proposals,
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(batch in batch()) {
            let bytes = batch.encode();
            prop_assert_eq!(Batch::decode(&bytes).unwrap(), batch.clone());
            let mut alone = Vec::new();
            Proposal::encode_all(&batch.proposals, &mut alone);
            prop_assert_eq!(Proposal::decode_all(&alone.into()).unwrap(), batch.proposals);
        }

        #[test]
        fn no_cut_of_a_batch_is_a_batch(batch in batch(), cut in any::<prop::sample::Index>()) {
            let bytes = batch.encode();
            prop_assert!(Batch::decode(&bytes[..cut.index(bytes.len())]).is_err());
        }

        /// Whatever damage makes of it is a batch like any other.
        #[test]
        fn what_is_made_of_damaged_bytes_can_be_written(
            batch in batch(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = batch.encode().to_vec();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(read) = Batch::decode(&bytes) {
                prop_assert_eq!(Batch::decode(&read.encode()).unwrap(), read);
            }
        }
    }

    #[test]
    fn what_repeats_is_left_out() {
        let acquire = Acquire::exclusive("/locks/orders", "_c_0b6cfd19-3e5f-4c81-9c4e-5f0d3b6cfd19-lock-");
        let text = acquire.lock.len() + acquire.prefix.len();
        let proposal = |n: u64| Proposal {
            origin: Origin { node: NodeId(1), incarnation: u64::MAX, request: 1_000_000 + n },
            session: SessionId(1 << 56 | n as i64),
            attachment: Attachment(1),
            identities: [Id { scheme: "ip".to_owned(), id: "192.168.100.200".to_owned() }].into(),
            command: Command::Tagged {
                id: 70_000 + n,
                acked: 69_999 + n,
                command: Box::new(Command::Acquire([acquire.clone()].into())),
            },
        };
        let length = |count| {
            let mut bytes = Vec::new();
            Proposal::encode_all(&(0..count).map(proposal).collect::<Vec<_>>(), &mut bytes);
            bytes.len()
        };
        // What is new, session, id, kind, how many, what else, and the lengths of two texts.
        assert_eq!(length(3) - length(2), text + 1 + 1 + 5 + 1 + 1 + 1 + 2);
    }

    #[test]
    fn lists_that_claim_more_than_there_is_are_damage() {
        let bytes = [&[1, 0, 0, 0, 0, 253][..], &u64::MAX.to_le_bytes()].concat();
        assert!(matches!(Batch::decode(&bytes), Err(BatchError::Damaged(_))));
        let bytes = [&[1, 0, 0, 0, 0, 252][..], &1_000_000u32.to_le_bytes(), &[0; 2_000_000]].concat();
        assert!(matches!(Batch::decode(&bytes), Err(BatchError::Damaged(_))), "two thirds of them are there");
    }
    #[test]
    fn a_tag_is_on_a_write_and_never_on_another_tag_however_long_the_chain() {
        let (tagged, noop, abandon) = ([12, 1, 0], 0, [15, 0]);
        // Before the command: the entry's number, and what repeats.
        let head = [1, 0, 0, 0, 0, 1, 0, 0];
        let read = |command: &[u8]| Batch::decode(&[&head[..], command].concat());
        assert!(read(&[&tagged[..], &abandon].concat()).is_ok(), "one tag on a write");
        assert!(read(&[noop]).is_ok());
        assert!(read(&[&tagged[..], &[noop]].concat()).is_err(), "that changes nothing");
        for count in [2, 1_000_000] {
            assert!(read(&[&tagged.repeat(count)[..], &abandon].concat()).is_err(), "{count} tags");
            assert!(read(&[&tagged[..], &abandon].concat()).is_ok(), "and the next one is read again");
        }
        let tag_before = |command: &[u8]| {
            Batch::decode(&[&[1, 0, 0, 0, 0, 1, head::TAG | head::ACKED, 0, 1, 0][..], command].concat())
        };
        assert!(tag_before(&abandon).is_ok());
        assert!(tag_before(&[noop]).is_err() && tag_before(&[&tagged[..], &abandon].concat()).is_err());
    }
    #[test]
    fn a_forged_length_gets_no_memory() {
        let claims = [&[7, 2, b'/', b'a', 1, 252][..], &(BATCH_MAX_BYTES as u32 / 2).to_le_bytes()].concat();
        assert!(matches!(from_bincode::<Command>(&claims), Err(DecodeError::LimitExceeded)));
    }
}
