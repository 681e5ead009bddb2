//! Decodes the output of `write.rs`, with no more work than the bytes and the memory cost: every follower
//! decodes every command.

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Claim, Few, Mode, Owner};
use rowlock_proto::request::{Create, Request};
use rowlock_proto::{FencingToken, NodeId, SessionId, Version};

use super::{BatchError, bits, from_bincode, head, mode, owner, tag};
use crate::command::{Attachment, Batch, Command, Ordinal, Origin, Proposal};

/// Least size of a list's item (proposal, claim, ACL entry), in bytes; a longer list is damage.
const ITEM_MIN: usize = 2;
/// Largest allocation in front of the items of a list, in items.
const ROOM: usize = 1024;
/// Encoded form of an empty list.
const EMPTY: &[u8] = &[0];

/// Decodes a batch from `bytes`, the end of `whole`.
pub(super) fn batch(bytes: &[u8], whole: &Bytes) -> Result<Batch, BatchError> {
    ProposalReader::new(bytes, whole).all(|reader| {
        let ordinal = Ordinal { term: reader.u64()?, number: reader.u64()? };
        let (time_ms, proposals) = (reader.i64()?, reader.proposals()?);
        Some(Batch { time_ms, ordinal, proposals, ..Batch::default() })
    })
}

/// Decodes a list of proposals.
pub(super) fn proposals(whole: &Bytes) -> Result<Vec<Proposal>, BatchError> {
    ProposalReader::new(whole, whole).all(ProposalReader::proposals)
}

struct ProposalReader<'a> {
    rest: &'a [u8],
    /// The whole input; `rest` is its end. Data and texts are slices of the whole input.
    whole: &'a Bytes,
    acl: Last<'a>,
}

/// The ACL decoded last. The next position with the same bytes shares the list.
struct Last<'a> {
    bytes: &'a [u8],
    list: Arc<[Acl]>,
}

/// Fields of the previous proposal, which the next proposal may repeat.
struct PreviousProposal {
    origin: Origin,
    session: i64,
    attachment: Attachment,
    identities: Arc<[Id]>,
}

impl<'a> ProposalReader<'a> {
    fn new(rest: &'a [u8], whole: &'a Bytes) -> Self {
        ProposalReader { rest, whole, acl: Last { bytes: EMPTY, list: Arc::default() } }
    }

    /// Decodes a value that must take up all bytes.
    fn all<T>(mut self, what: impl FnOnce(&mut Self) -> Option<T>) -> Result<T, BatchError> {
        match what(&mut self) {
            Some(value) if self.rest.is_empty() => Ok(value),
            Some(_) => Err(BatchError::Trailing(self.rest.len())),
            None => Err(BatchError::Damaged(self.whole.len() - self.rest.len())),
        }
    }

    fn proposals(&mut self) -> Option<Vec<Proposal>> {
        let (origin, attachment) = (Origin::default(), Attachment::default());
        let mut before = PreviousProposal { origin, session: 0, attachment, identities: Arc::default() };
        self.list(|reader| reader.proposal(&mut before))
    }

    fn proposal(&mut self, before: &mut PreviousProposal) -> Option<Proposal> {
        let is_new = self.byte()?;
        if is_new & !head::ALL != 0 || is_new & (head::TAG | head::ACKED) == head::ACKED {
            return None;
        }
        let origin = &mut before.origin;
        if is_new & head::SENDER != 0 {
            (origin.node, origin.incarnation) = (NodeId(self.u64()?), self.u64()?);
        }
        origin.request =
            if is_new & head::REQUEST != 0 { self.u64()? } else { origin.request.wrapping_add(1) };
        before.session = before.session.wrapping_add(self.i64()?);
        if is_new & head::ATTACHMENT != 0 {
            before.attachment = Attachment(self.u64()?);
        }
        if is_new & head::IDENTITIES != 0 {
            before.identities = self.shared(ProposalReader::id)?;
        }
        let tag = if is_new & head::TAG != 0 {
            let id = self.u64()?;
            Some((id, if is_new & head::ACKED != 0 { self.u64()? } else { id.wrapping_sub(1) }))
        } else {
            None
        };
        let command = match tag {
            Some((id, acked)) => Command::Tagged { id, acked, command: self.boxed()? },
            None => self.command()?,
        };
        Some(Proposal {
            origin: before.origin,
            session: SessionId(before.session),
            attachment: before.attachment,
            identities: before.identities.clone(),
            command,
        })
    }

    /// Decodes a write into a box. An acquire, the longest command, is built inside the box instead of moved.
    fn boxed(&mut self) -> Option<Box<Command>> {
        if let Some(rest) = self.rest.strip_prefix(&[tag::ACQUIRE]) {
            self.rest = rest;
            let mut command = Box::new(Command::Client(Request::Acquire(Few::new())));
            if let Command::Client(Request::Acquire(few)) = &mut *command {
                self.few_into(few, ProposalReader::acquire)?;
            }
            return Some(command);
        }
        self.command().filter(Command::is_write).map(Box::new)
    }

    fn command(&mut self) -> Option<Command> {
        let kind = *self.rest.first()?;
        if kind >= tag::FIRST {
            self.byte()?;
            self.request(kind).map(Command::Client)
        } else {
            self.serde()
        }
    }

    /// Decodes the fields of a client's request of this kind.
    fn request(&mut self, kind: u8) -> Option<Request> {
        Some(match kind {
            tag::ACQUIRE => Request::Acquire(self.few(ProposalReader::acquire)?),
            tag::RELEASE => Request::Release(self.few(ProposalReader::claim)?),
            tag::VERIFY => Request::Verify(self.few(ProposalReader::claim)?),
            tag::CREATE => Request::Create(self.create()?),
            tag::CREATE2 => Request::Create2(self.create()?),
            tag::CREATE_CONTAINER => Request::CreateContainer(self.create()?),
            tag::CREATE_TTL => Request::CreateTtl(self.create()?, self.i64()?),
            tag::DELETE => Request::Delete { path: self.text()?, version: Version(self.i32()?) },
            tag::SET_DATA => Request::SetData(self.serde()?),
            tag::SET_ACL => Request::SetAcl(self.serde()?),
            tag::MULTI => Request::Multi(self.serde()?),
            tag::ABANDON => Request::Abandon(self.serde()?),
            tag::CONVERT => {
                let (claim, mode, prefix) = self.serde()?;
                Request::Convert { claim, mode, prefix }
            }
            tag::FORCE_RELEASE => Request::ForceRelease(self.serde()?),
            tag::ASK => Request::Ask(self.serde()?),
            tag::SYNC => Request::Sync(self.serde()?),
            tag::CLOSE_SESSION => Request::CloseSession,
            _ => return None,
        })
    }

    fn serde<T: serde::de::DeserializeOwned>(&mut self) -> Option<T> {
        let (value, read) = from_bincode(self.rest).ok()?;
        self.rest = self.rest.get(read..)?;
        Some(value)
    }

    #[inline(always)]
    fn acquire(&mut self) -> Option<Acquire> {
        let there = self.byte()?;
        let has = |bit| there & bit != 0;
        Some(Acquire {
            lock: self.shared_text()?,
            prefix: self.shared_text()?,
            data: if has(bits::DATA) { Some(self.slice()?) } else { None },
            acl: self.permissions(there)?,
            mode: match has(bits::MODE).then(|| self.byte()) {
                None => Mode::Exclusive,
                Some(kind) => match kind? {
                    mode::SHARED => Mode::Shared,
                    mode::PERMITS => Mode::Permits(self.u32()?),
                    _ => return None,
                },
            },
            limit: if has(bits::LIMIT) { self.u32()? } else { 0 },
            wait: has(bits::WAIT),
            owner: match has(bits::OWNER).then(|| self.byte()) {
                None => Owner::Unnamed,
                Some(kind) => match kind? {
                    owner::SESSION => Owner::Session,
                    owner::NAMED => Owner::Named(self.u64()?),
                    owner::UNDER => Owner::Under(self.u64()?),
                    _ => return None,
                },
            },
            max_hold_ms: if has(bits::TIMES) { self.u32()? } else { 0 },
            lock_delay_ms: if has(bits::TIMES) { self.u32()? } else { 0 },
            min_hold_ms: if has(bits::TIMES) { self.u32()? } else { 0 },
            min_hold_lapses: if has(bits::TIMES) { self.flag()? } else { false },
        })
    }

    /// Decodes a create. The data is a copy: a znode keeps its data and must not keep an entry alive.
    fn create(&mut self) -> Option<Create> {
        let there = self.byte()?;
        if there & !bits::OF_CREATE != 0 {
            return None;
        }
        Some(Create {
            path: self.text()?,
            data: if there & bits::DATA != 0 { Some(Bytes::copy_from_slice(self.bytes()?)) } else { None },
            acl: self.permissions(there)?,
            flags: self.i32()?,
        })
    }

    /// Decodes the ACL that the bits `there` announce.
    fn permissions(&mut self, there: u8) -> Option<Option<Arc<[Acl]>>> {
        match there & (bits::ACL | bits::OPEN) {
            0 => Some(None),
            bits::OPEN => Some(Some(Acl::shared_open())),
            bits::ACL => self.last_or_new().map(Some),
            _ => None,
        }
    }

    fn claim(&mut self) -> Option<Claim> {
        Some(Claim { path: self.str()?.into(), token: FencingToken(self.i64()?) })
    }

    fn acl(&mut self) -> Option<Acl> {
        Some(Acl { perms: self.i32()?, id: self.id()? })
    }

    fn id(&mut self) -> Option<Id> {
        Some(Id { scheme: self.text()?, id: self.text()? })
    }

    fn list<T>(&mut self, item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.len()?;
        self.items(len, item)
    }

    /// Decodes a list that has one item in most cases.
    fn few<T>(&mut self, item: impl FnMut(&mut Self) -> Option<T>) -> Option<Few<T>> {
        let mut few = Few::new();
        self.few_into(&mut few, item)?;
        Some(few)
    }

    #[inline]
    fn few_into<T>(&mut self, few: &mut Few<T>, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<()> {
        let len = self.len()?;
        if len > 1 {
            few.reserve_exact(len.min(ROOM));
        }
        for _ in 0..len {
            few.push(item(self)?);
        }
        Some(())
    }

    /// Decodes the number of items that follow.
    fn len(&mut self) -> Option<usize> {
        usize::try_from(self.u64()?).ok().filter(|len| *len <= self.rest.len() / ITEM_MIN)
    }

    fn items<T>(&mut self, len: usize, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::with_capacity(len.min(ROOM));
        for _ in 0..len {
            items.push(item(self)?);
        }
        Some(items)
    }

    fn shared<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Arc<[T]>> {
        Some(match self.len()? {
            0 => Arc::default(),
            // One allocation instead of two.
            1 => Arc::from([item(self)?]),
            len => self.items(len, item)?.into(),
        })
    }

    /// Returns the ACL decoded last if the bytes are the same; otherwise decodes a new list.
    fn last_or_new(&mut self) -> Option<Arc<[Acl]>> {
        let begin = self.rest;
        // The length of a list follows from its bytes: equal first bytes mean an equal list.
        if let Some(rest) = begin.strip_prefix(self.acl.bytes) {
            self.rest = rest;
            return Some(self.acl.list.clone());
        }
        let list = self.shared(ProposalReader::acl)?;
        let bytes = &begin[..begin.len() - self.rest.len()];
        self.acl = Last { bytes, list: list.clone() };
        Some(list)
    }

    fn text(&mut self) -> Option<String> {
        self.str().map(str::to_owned)
    }

    fn str(&mut self) -> Option<&str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// Decodes a text as a slice of the whole input.
    #[inline(always)]
    fn shared_text(&mut self) -> Option<ByteString> {
        ByteString::try_from(self.slice()?).ok()
    }

    /// Decodes bytes as a slice of the whole input.
    #[inline(always)]
    fn slice(&mut self) -> Option<Bytes> {
        let bytes = self.bytes()?;
        let end = self.whole.len() - self.rest.len();
        let slice = self.whole.slice(end - bytes.len()..end);
        debug_assert_eq!(slice, bytes, "what is left to read is the end of the whole");
        Some(slice)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u64()?).ok()?;
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        let zigzag = self.u32()?;
        Some((zigzag >> 1) as i32 ^ -((zigzag & 1) as i32))
    }

    fn i64(&mut self) -> Option<i64> {
        let zigzag = self.u64()?;
        Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    fn u32(&mut self) -> Option<u32> {
        match self.byte()? {
            byte @ 0..=250 => Some(u32::from(byte)),
            251 => Some(u32::from(u16::from_le_bytes(self.array()?))),
            252 => Some(u32::from_le_bytes(self.array()?)),
            _ => None,
        }
    }

    fn u64(&mut self) -> Option<u64> {
        match self.byte()? {
            byte @ 0..=250 => Some(u64::from(byte)),
            251 => Some(u64::from(u16::from_le_bytes(self.array()?))),
            252 => Some(u64::from(u32::from_le_bytes(self.array()?))),
            253 => Some(u64::from_le_bytes(self.array()?)),
            _ => None,
        }
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }
}
