//! Readers of a record: the identities with READ on the queue position at the time of the event. The readers
//! stay fixed after the lock is gone or has other permissions.

use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_state::acl;
use rowlock_state::outcome::EventContext;

use serde::{Deserialize, Serialize};

/// Bound of the names' total bytes. Longer lists leave the record to superusers.
const MAX_BYTES: usize = 1 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readers {
    Anyone,
    /// Identities in both lists: of the lock, and of the queue position.
    These(Vec<Id>, Vec<Id>),
    /// Unknown readers: superusers only.
    #[default]
    Unknown,
}

impl Readers {
    /// Returns true if the readers include an identity in `who`.
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

    pub fn of(context: &EventContext<'_>) -> Readers {
        if is_open(context.lock_acl) && is_open(context.acl) {
            return Readers::Anyone;
        }
        let lists = [context.lock_acl, context.acl]
            .map(|list| list.iter().filter(|entry| entry.perms & perms::READ != 0).map(|entry| &entry.id));
        let bytes: usize = lists.iter().cloned().flatten().map(|id| id.scheme.len() + id.id.len()).sum();
        if bytes > MAX_BYTES {
            return Readers::Unknown;
        }
        let [lock, place] = lists.map(|list| list.cloned().collect());
        Readers::These(lock, place)
    }
}

fn is_open(list: &[Acl]) -> bool {
    list.iter()
        .any(|entry| entry.perms & perms::READ != 0 && entry.id.scheme == "world" && entry.id.id == "anyone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_needs_read_on_both_the_lock_and_the_position() {
        let id = |name: &str| Id { scheme: "digest".to_owned(), id: name.to_owned() };
        let readers = Readers::These(vec![id("lock"), id("both")], vec![id("place"), id("both")]);
        let may_read = |name: &str| readers.include(&[id(name)]);
        assert_eq!(["lock", "place", "both"].map(may_read), [false, false, true]);
        assert!(!Readers::Unknown.include(&[id("both")]));
    }
}
