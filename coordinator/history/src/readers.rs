//! Who could READ a place in a queue when something happened to it: a record is for those, also when the lock
//! is gone or has other permissions by now.

use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_state::acl;
use rowlock_state::outcome::LockEvent;

use super::varint::{Numbers, Reader};

/// Longest list that is kept. A longer one leaves the record to superusers.
const MAX_BYTES: usize = 1 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Readers {
    Anyone,
    /// Those who are in both lists: of the lock, and of the place.
    These(Vec<Id>, Vec<Id>),
    /// The readers are unknown, so only superusers.
    #[default]
    Unknown,
}

impl Readers {
    /// Whether one of `who` is among them.
    pub fn include(&self, who: &[Id]) -> bool {
        let is_among = |readers: &[Id]| {
            let list: Vec<Acl> =
                readers.iter().map(|id| Acl { perms: perms::READ, id: id.clone() }).collect();
            acl::may(&list, perms::READ, who)
        };
        match self {
            Readers::Anyone => true,
            Readers::These(lock, place) => is_among(lock) && is_among(place),
            Readers::Unknown => is_among(&[]),
        }
    }

    /// Those who may read what happens now.
    pub fn of(event: &LockEvent<'_>) -> Readers {
        if is_public(event) {
            return Readers::Anyone;
        }
        let readers = |list: &[Acl]| {
            let may_read = list.iter().filter(|entry| entry.perms & perms::READ != 0);
            may_read.map(|entry| entry.id.clone()).collect()
        };
        Readers::These(readers(event.lock_acl), readers(event.acl))
    }

    /// Those whom these bytes of [`write()`] name.
    pub(super) fn read(bytes: &[u8]) -> Option<Readers> {
        let mut reader = Reader(bytes);
        let mut list = || {
            let count = reader.length()?;
            let mut ids = Vec::new();
            for _ in 0..count {
                let mut text = || {
                    let len = reader.length()?;
                    Some(std::str::from_utf8(reader.bytes(len)?).ok()?.to_owned())
                };
                ids.push(Id { scheme: text()?, id: text()? });
            }
            Some(ids)
        };
        let (lock, place) = (list()?, list()?);
        reader.0.is_empty().then_some(Readers::These(lock, place))
    }
}

/// Whether everybody may read what happened.
pub(super) fn is_public(event: &LockEvent<'_>) -> bool {
    let is_open = |list: &[Acl]| {
        list.iter().any(|entry| {
            entry.perms & perms::READ != 0 && entry.id.scheme == "world" && entry.id.id == "anyone"
        })
    };
    is_open(event.lock_acl) && is_open(event.acl)
}

/// Writes who may read it to `out`, in the form of chunks. Nothing, if that is too long.
pub(super) fn write(event: &LockEvent<'_>, out: &mut Vec<u8>) {
    out.clear();
    for list in [event.lock_acl, event.acl] {
        let readers = || list.iter().filter(|entry| entry.perms & perms::READ != 0).map(|entry| &entry.id);
        length(readers().count(), out);
        for text in readers().flat_map(|id| [&id.scheme, &id.id]) {
            if out.len() + text.len() > MAX_BYTES {
                out.clear();
                return;
            }
            length(text.len(), out);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

fn length(number: usize, out: &mut Vec<u8>) {
    let mut numbers = Numbers::new();
    numbers.length(number);
    numbers.append_to(out);
}
