//! Reads a batch as bincode does, for the price of the bytes and the memory alone: every follower reads every command.
//!
//! Written out for what clients of locks send all the time; any other command is read by bincode where it stands. Gives
//! up on whatever it does not understand: the caller then has bincode read the whole batch, and say what is wrong.
//! Invariant: what is given is what bincode gives.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Claim, Mode, Owner};
use rowlock_proto::{FencingToken, NodeId, SessionId};

use super::{BINCODE, tag};
use crate::command::{Attachment, Batch, Command, Origin, Proposal};

/// No proposal takes fewer bytes, no list more memory than the bytes that claim to be one.
const PROPOSAL_MIN: usize = 7;
/// The same for an entry of a list of permissions, and for an identity.
const ENTRY_MIN: usize = 2;
/// The same for an acquire and a claim.
const PLACE_MIN: usize = 2;
/// An empty list, as it is written.
const EMPTY: &[u8] = &[0];
/// [`Acl::open`], as it is written.
const OPEN: &[u8] = b"\x01\x3e\x05world\x06anyone";

/// The batch that these bytes, a part of `whole`, are; `None` if that is not seen at once.
pub(super) fn batch(bytes: &[u8], whole: &Bytes) -> Option<Batch> {
    let mut reader = Reader::new(bytes, whole);
    let time_ms = reader.i64()?;
    let proposals = reader.list(PROPOSAL_MIN, Reader::proposal)?;
    reader.rest.is_empty().then_some(Batch { time_ms, enforce_quota: false, proposals })
}

/// The list of proposals that these bytes, a part of `whole`, are; `None` if that is not seen at once.
pub(super) fn proposals(bytes: &[u8], whole: &Bytes) -> Option<Vec<Proposal>> {
    let mut reader = Reader::new(bytes, whole);
    let proposals = reader.list(PROPOSAL_MIN, Reader::proposal)?;
    reader.rest.is_empty().then_some(proposals)
}

struct Reader<'a> {
    rest: &'a [u8],
    /// What `rest` is a part of. Data are slices of it.
    whole: &'a Bytes,
    identities: Last<'a, Id>,
    acl: Last<'a, Acl>,
}

/// The list that was read last, for the next place that has the same bytes: most proposals of a batch have the same
/// identities and give the same permissions.
struct Last<'a, T> {
    bytes: &'a [u8],
    list: Arc<[T]>,
}

impl<'a> Reader<'a> {
    fn new(rest: &'a [u8], whole: &'a Bytes) -> Self {
        let identities = Last { bytes: EMPTY, list: Arc::default() };
        let acl = Last { bytes: OPEN, list: Acl::shared_open() };
        Reader { rest, whole, identities, acl }
    }

    fn proposal(&mut self) -> Option<Proposal> {
        Some(Proposal {
            origin: Origin { node: NodeId(self.u64()?), incarnation: self.u64()?, request: self.u64()? },
            session: SessionId(self.i64()?),
            attachment: Attachment(self.u64()?),
            identities: self.shared_list(|reader| &mut reader.identities, Reader::id)?,
            command: self.command()?,
        })
    }

    fn command(&mut self) -> Option<Command> {
        let begin = self.rest;
        match u32::from(self.byte()?) {
            tag::TAGGED => {
                let (id, acked) = (self.u64()?, self.u64()?);
                Some(Command::Tagged { id, acked, command: Box::new(self.plain_command()?) })
            }
            _ => {
                self.rest = begin;
                self.plain_command()
            }
        }
    }

    /// One that is not tagged, or not tagged again.
    fn plain_command(&mut self) -> Option<Command> {
        let begin = self.rest;
        match u32::from(self.byte()?) {
            tag::ACQUIRE => Some(Command::Acquire(self.list(PLACE_MIN, Reader::acquire)?)),
            tag::RELEASE => Some(Command::Release(self.list(PLACE_MIN, Reader::claim)?)),
            tag::VERIFY => Some(Command::Verify(self.list(PLACE_MIN, Reader::claim)?)),
            _ => {
                let (command, read) = bincode::serde::decode_from_slice(begin, BINCODE).ok()?;
                self.rest = begin.get(read..)?;
                Some(command)
            }
        }
    }

    fn acquire(&mut self) -> Option<Acquire> {
        Some(Acquire {
            lock: self.text()?,
            prefix: self.text()?,
            data: self.option(|reader| Some(reader.whole.slice_ref(reader.bytes()?)))?,
            acl: self.option(|reader| reader.shared_list(|reader| &mut reader.acl, Reader::acl))?,
            mode: match self.byte()? {
                0 => Mode::Exclusive,
                1 => Mode::Shared,
                2 => Mode::Permits(self.u32()?),
                _ => return None,
            },
            limit: self.u32()?,
            wait: self.bool()?,
            owner: match self.byte()? {
                0 => Owner::Unnamed,
                1 => Owner::Session,
                2 => Owner::Named(self.u64()?),
                _ => return None,
            },
            max_hold_ms: self.u32()?,
            lock_delay_ms: self.u32()?,
        })
    }

    fn claim(&mut self) -> Option<Claim> {
        Some(Claim { path: self.text()?, token: FencingToken(self.i64()?) })
    }

    fn acl(&mut self) -> Option<Acl> {
        Some(Acl { perms: self.i32()?, id: self.id()? })
    }

    fn id(&mut self) -> Option<Id> {
        Some(Id { scheme: self.text()?, id: self.text()? })
    }

    /// Items of at least `min` bytes each.
    fn list<T>(&mut self, min: usize, item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.len(min)?;
        self.items(len, item)
    }

    /// As many items as follow, of at least `min` bytes each.
    fn len(&mut self, min: usize) -> Option<usize> {
        usize::try_from(self.u64()?).ok().filter(|len| *len <= self.rest.len() / min)
    }

    fn items<T>(&mut self, len: usize, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::with_capacity(len);
        for _ in 0..len {
            items.push(item(self)?);
        }
        Some(items)
    }

    /// The same list as the last one, if it has the same bytes.
    fn shared_list<T>(
        &mut self,
        last: impl Fn(&mut Self) -> &mut Last<'a, T>,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Arc<[T]>> {
        let begin = self.rest;
        let Last { bytes, list } = last(self);
        // How long a list is follows from its bytes, so what begins like it is it.
        if let Some(rest) = begin.strip_prefix(*bytes) {
            let list = list.clone();
            self.rest = rest;
            return Some(list);
        }
        let list: Arc<[T]> = match self.len(ENTRY_MIN)? {
            0 => Arc::default(),
            // One allocation instead of two.
            1 => Arc::from([item(self)?]),
            len => self.items(len, item)?.into(),
        };
        let bytes = &begin[..begin.len() - self.rest.len()];
        *last(self) = Last { bytes, list: list.clone() };
        Some(list)
    }

    fn option<T>(&mut self, value: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.bool()? { value(self).map(Some) } else { Some(None) }
    }

    fn text(&mut self) -> Option<String> {
        Some(std::str::from_utf8(self.bytes()?).ok()?.to_owned())
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u64()?).ok()?;
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
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
