//! State of each znode below `/data` at each time of the log, shared by the checkers of reads and watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::{ErrorCode, Stat, Zxid};

use crate::history::Fact;
use crate::history::client::{Answer, Failure, ReadKind, Znode, ZnodeChange, name_hash};

/// State of a znode from one change to the next.
pub(super) struct Stretch {
    pub(super) from: Zxid,
    znode: Arc<Znode>,
    /// XOR of the hashes of the children's names.
    children: u64,
    is_created: bool,
    is_deleted: bool,
    has_new_data: bool,
    has_new_children: bool,
}

/// Znodes at all times.
#[derive(Default)]
pub(super) struct Znodes {
    stretches: BTreeMap<String, Vec<Stretch>>,
}

impl Znodes {
    pub(super) fn observe(&mut self, fact: &Fact) {
        let Fact::Znode(znode) = fact else { return };
        if !self.stretches.contains_key(&znode.path) {
            self.stretches.insert(znode.path.clone(), Vec::new());
        }
        let Some(stretches) = self.stretches.get_mut(&znode.path) else { return };
        let children = match (stretches.last(), znode.change) {
            (Some(last), ZnodeChange::Child { name_hash }) => last.children ^ name_hash,
            (Some(last), ZnodeChange::Data) => last.children,
            (None, ZnodeChange::Child { name_hash }) => name_hash,
            (_, ZnodeChange::Created | ZnodeChange::Deleted) | (None, ZnodeChange::Data) => 0,
        };
        // Several changes by one command count as one.
        if stretches.last().is_none_or(|last| last.from != znode.zxid) {
            stretches.push(Stretch {
                from: znode.zxid,
                znode: znode.clone(),
                children,
                is_created: false,
                is_deleted: false,
                has_new_data: false,
                has_new_children: false,
            });
        }
        let Some(stretch) = stretches.last_mut() else { return };
        (stretch.znode, stretch.children) = (znode.clone(), children);
        match znode.change {
            ZnodeChange::Created => stretch.is_created = true,
            ZnodeChange::Deleted => stretch.is_deleted = true,
            ZnodeChange::Data => stretch.has_new_data = true,
            ZnodeChange::Child { .. } => stretch.has_new_children = true,
        }
    }

    fn of(&self, path: &str) -> &[Stretch] {
        self.stretches.get(path).map_or(&[], Vec::as_slice)
    }

    /// Returns the earliest zxid since when the znode's state matches `read`, for a reader that had already
    /// seen `floor`.
    ///
    /// # Errors
    /// The znode was never in this state at or after `floor`.
    pub(super) fn read_at(&self, path: &str, read: &Read, floor: Zxid) -> Result<Zxid, String> {
        let stretches = self.of(path);
        // Last stretch that begins at or before the floor, and all later ones.
        let first = stretches.partition_point(|stretch| stretch.from <= floor);
        let begins_absent = first == 0 && read.is_of(None, 0);
        if begins_absent {
            return Ok(Zxid(0));
        }
        let fits = |stretch: &&Stretch| read.is_of(stretch.znode.now.as_ref(), stretch.children);
        // A stat names the change that created the state.
        if let Some(Ok(at)) = read.since().map(|since| stretches.binary_search_by_key(&since, |one| one.from))
            && at + 1 >= first
            && fits(&&stretches[at])
        {
            return Ok(stretches[at].from);
        }
        if let Some(stretch) = stretches[first.saturating_sub(1)..].iter().find(fits) {
            return Ok(stretch.from);
        }
        match stretches.iter().rev().find(fits) {
            Some(old) => {
                let next = stretches.iter().find(|stretch| stretch.from > old.from);
                let until = next.map(|next| next.from);
                Err(format!("{path} was {read:?} from {} until {until:?}, before {floor}", old.from))
            }
            None if read.is_of(None, 0) => {
                Err(format!("{path} was {read:?} before {:?}, before {floor}", stretches[0].from))
            }
            None => Err(format!("{path} was never {read:?}")),
        }
    }

    /// Returns the first change after `after` that fires a watch of this kind.
    pub(super) fn fires(&self, path: &str, kind: ReadKind, after: Zxid) -> Option<Zxid> {
        let stretches = self.of(path);
        let behind = &stretches[stretches.partition_point(|stretch| stretch.from <= after)..];
        let fires = |stretch: &&Stretch| match kind {
            ReadKind::Children => stretch.has_new_children || stretch.is_deleted,
            ReadKind::Data | ReadKind::Exists => {
                stretch.is_created || stretch.is_deleted || stretch.has_new_data
            }
        };
        behind.iter().find(fires).map(|stretch| stretch.from)
    }

    /// Reports whether the znode was deleted at or after `from`.
    pub(super) fn is_deleted_since(&self, path: &str, from: Zxid) -> bool {
        let stretches = self.of(path);
        stretches[stretches.partition_point(|stretch| stretch.from < from)..]
            .iter()
            .any(|stretch| stretch.is_deleted)
    }
}

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    Absent,
    There(Stat),
    Data(Option<Bytes>, Stat),
    Children { count: usize, names: u64, stat: Stat },
}

impl Read {
    /// Returns the state in an answer, `None` for an answer without state.
    pub(super) fn of(result: &Result<Answer, Failure>) -> Option<Read> {
        match result {
            Ok(Answer::Exists(None)) | Err(Failure::Refused(ErrorCode::NoNode)) => Some(Read::Absent),
            Ok(Answer::Exists(Some(stat))) => Some(Read::There(*stat)),
            Ok(Answer::Data(data, stat)) => Some(Read::Data(data.clone(), *stat)),
            Ok(Answer::Children(names, stat)) => {
                let hash = names.iter().fold(0, |hash, name| hash ^ name_hash(name));
                Some(Read::Children { count: names.len(), names: hash, stat: *stat })
            }
            _ => None,
        }
    }

    /// Returns the last change that the read shows.
    pub(super) fn since(&self) -> Option<Zxid> {
        match self {
            Read::Absent => None,
            Read::There(stat) | Read::Data(_, stat) | Read::Children { stat, .. } => {
                Some(stat.czxid.max(stat.mzxid).max(stat.pzxid))
            }
        }
    }

    /// Reports whether a read of a znode in this state would have this result.
    fn is_of(&self, now: Option<&(Option<Bytes>, Stat)>, children: u64) -> bool {
        match (self, now) {
            (Read::Absent, None) => true,
            (Read::There(stat), Some((_, now))) => stat == now,
            (Read::Data(data, stat), Some((now_data, now))) => data == now_data && stat == now,
            (Read::Children { count, names, stat }, Some((_, now))) => {
                stat == now && i64::from(now.num_children) == *count as i64 && *names == children
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::text;
    use rowlock_proto::Version;

    fn history() -> Znodes {
        let mut znodes = Znodes::default();
        let changes =
            "znode 2 /data/a created x 2/2/0; znode 4 /data/a data y 2/4/1; znode 6 /data/a deleted";
        text::history(changes).iter().for_each(|fact| znodes.observe(fact));
        znodes
    }

    fn stat(czxid: i64, mzxid: i64, version: i32) -> Stat {
        Stat { czxid: Zxid(czxid), mzxid: Zxid(mzxid), version: Version(version), ..Stat::default() }
    }

    #[test]
    fn a_read_is_found_where_it_fits_and_not_before_the_floor() {
        let znodes = history();
        let x = Read::There(stat(2, 2, 0));
        assert_eq!(znodes.read_at("/data/a", &x, Zxid(0)), Ok(Zxid(2)));
        assert_eq!(znodes.read_at("/data/a", &x, Zxid(3)), Ok(Zxid(2)), "it lasts until 4");
        assert!(znodes.read_at("/data/a", &x, Zxid(4)).is_err());
        assert!(znodes.read_at("/data/a", &Read::There(stat(2, 4, 2)), Zxid(0)).is_err(), "it never was");
        assert_eq!(znodes.read_at("/data/a", &Read::Absent, Zxid(1)), Ok(Zxid(0)));
        assert_eq!(znodes.read_at("/data/a", &Read::Absent, Zxid(2)), Ok(Zxid(6)));
        assert_eq!(znodes.read_at("/data/b", &Read::Absent, Zxid(9)), Ok(Zxid(0)));
        assert!(znodes.read_at("/data/b", &x, Zxid(9)).is_err());
    }

    #[test]
    fn watches_of_each_kind_have_their_changes() {
        let mut znodes = history();
        assert_eq!(znodes.fires("/data/a", ReadKind::Data, Zxid(2)), Some(Zxid(4)));
        assert_eq!(znodes.fires("/data/a", ReadKind::Children, Zxid(2)), Some(Zxid(6)));
        assert_eq!(znodes.fires("/data/a", ReadKind::Exists, Zxid(6)), None);
        assert!(znodes.is_deleted_since("/data/a", Zxid(6)) && !znodes.is_deleted_since("/data/a", Zxid(7)));
        text::history("znode 2 /data child x 1/1/0").iter().for_each(|fact| znodes.observe(fact));
        assert_eq!(znodes.fires("/data", ReadKind::Children, Zxid(1)), Some(Zxid(2)));
        assert_eq!(znodes.fires("/data", ReadKind::Data, Zxid(1)), None);
    }
}
