//! The operations on single znodes, with ZooKeeper's checks in ZooKeeper's order (`PrepRequestProcessor`).
//!
//! Each either changes nothing and gives an error, or is carried out and gives a [`Done`], which can fire its event
//! and be taken back. Operations do not know whether they run alone or in a multi.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_proto::request::{Create, SetAcl, SetData};
use rowlock_proto::{CreateMode, ErrorCode, SessionId, Stat, Version, Zxid, path as paths};

use crate::acl::{self, SharedAcl};
use crate::locks::{Contender, limit_in};
use crate::machine::{CONFIG_PATH, Machine, RESERVED};
use crate::outcome::{Change, ChangeKind, EventSink};
use crate::sequence;
use crate::tree::{Unlinked, split};
use crate::znode::{Kind, Meta, Znode};

/// Longest time to live that ZooKeeper can store (`EphemeralType.TTL`).
const TTL_MAX_MS: i64 = 0xff_ffff_ffff;

/// On whose behalf, and as which change.
pub(crate) struct Author<'a> {
    pub zxid: Zxid,
    pub session: SessionId,
    /// Identities, without `world:anyone`.
    pub who: &'a [Id],
    /// Whether hard quotas refuse what goes beyond them.
    pub enforce_quota: bool,
}

/// An operation that has been carried out.
pub(crate) struct Done {
    /// Full path of the znode.
    pub path: String,
    /// The znode's Stat after it (the last one, if deleted).
    pub stat: Stat,
    /// The place in its parent's queue that a created znode is.
    pub contender: Option<Contender>,
    /// The limit of permits that its parent's data name, where there is a contender.
    pub limit: Option<u32>,
    event: Option<Event>,
    undo: Undo,
}

struct Event {
    kind: ChangeKind,
    acl: SharedAcl,
    parent_acl: SharedAcl,
}

/// What it takes to have the state of before.
enum Undo {
    Nothing,
    Create { parent: Meta, data: Option<Bytes> },
    Delete { znode: Arc<Znode>, parent: Meta },
    SetData { data: Option<Bytes>, meta: Meta, bytes_diff: i64 },
}

impl Done {
    /// What happened to the znode, if anything that others see.
    pub(crate) fn kind(&self) -> Option<ChangeKind> {
        self.event.as_ref().map(|event| event.kind)
    }

    /// The data that a new znode has, or a deleted one had.
    pub(crate) fn data(&self) -> Option<&[u8]> {
        let data = match &self.undo {
            Undo::Create { data, .. } => data.as_ref(),
            Undo::Delete { znode, .. } => znode.data(),
            Undo::Nothing | Undo::SetData { .. } => None,
        };
        data.map(|data| &data[..])
    }

    /// Tells the sink, if there is something to tell.
    pub(crate) fn fire<S: EventSink + ?Sized>(&self, zxid: Zxid, sink: &mut S) {
        if let Some(Event { kind, acl, parent_acl }) = &self.event {
            let (acl, parent_acl) = (acl.entries(), parent_acl.entries());
            sink.changed(&Change { zxid, path: &self.path, kind: *kind, acl, parent_acl });
        }
    }
}

impl Machine {
    /// create, create2, createContainer, createTTL.
    pub(crate) fn create(
        &mut self,
        by: &Author,
        create: &Create,
        ttl_ms: Option<i64>,
    ) -> Result<Done, ErrorCode> {
        let mode = CreateMode::from_flags(create.flags).ok_or(ErrorCode::BadArguments)?;
        let kind = kind(mode, ttl_ms, by.session)?;
        let (parent_path, _) = split_checked(&create.path)?;
        let parent = self.tree.get(parent_path);
        let acl = resolved(create, parent, by.who)?;
        let parent = parent.ok_or(ErrorCode::NoNode)?;
        permit(&parent.acl, perms::CREATE, by.who)?;
        let path = if mode.is_sequential() {
            sequence::numbered(&create.path, parent.meta.creates)
        } else {
            create.path.clone()
        };
        check_path(&path)?;
        let name = paths::name(&path);
        // Of the paths that are well formed, only the root's has no name. The announcement is there for every reader,
        // though in no tree.
        if name.is_empty() || path == ANNOUNCEMENT || parent.children.get(name).is_some() {
            return Err(ErrorCode::NodeExists);
        }
        if matches!(parent.meta.kind, Kind::Ephemeral(_)) {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        let data_len = create.data.as_ref().map_or(0, Bytes::len);
        if by.enforce_quota {
            self.check_quota(&path, 1, data_len as i64)?;
        }
        let parent_acl = parent.acl.clone();
        let limit = limit_in(parent.data()).filter(|_| mode == CreateMode::EphemeralSequential);
        let parent = parent.meta;
        let znode = Znode::new(Meta::new(by.zxid, self.time_ms, kind), create.data.clone(), acl.clone());
        let stat = znode.stat();
        self.link(&path, znode.into(), |meta| {
            meta.creates = sequence::next(meta.creates);
            meta.pzxid = by.zxid;
        });
        let event = Some(Event { kind: ChangeKind::Created, acl, parent_acl });
        let contender = (mode == CreateMode::EphemeralSequential)
            .then(|| Contender::plain(&path, by.session, by.who, self.time_ms));
        let undo = Undo::Create { parent, data: create.data.clone() };
        Ok(Done { path, stat, contender, limit, event, undo })
    }

    /// delete.
    pub(crate) fn delete(&mut self, by: &Author, path: &str, version: Version) -> Result<Done, ErrorCode> {
        let (parent_path, name) = split_checked(path)?;
        if RESERVED.contains(&path) {
            return Err(ErrorCode::BadArguments);
        }
        let parent = self.tree.get(parent_path).ok_or(ErrorCode::NoNode)?;
        permit(&parent.acl, perms::DELETE, by.who)?;
        let znode = parent.children.get(name).ok_or(ErrorCode::NoNode)?;
        check_version(znode.meta.version, version)?;
        if !znode.children.is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        let data_len = znode.data_len();
        Ok(self.remove(by.zxid, path.to_owned(), data_len))
    }

    /// setData.
    pub(crate) fn set_data(&mut self, by: &Author, set: &SetData) -> Result<Done, ErrorCode> {
        check_path(&set.path)?;
        let znode = self.tree.get(&set.path).ok_or(ErrorCode::NoNode)?;
        permit(&znode.acl, perms::WRITE, by.who)?;
        let bytes_diff = bytes_diff(znode, set.data.as_ref());
        if by.enforce_quota {
            self.check_quota(&set.path, 0, bytes_diff)?;
        }
        check_version(znode.meta.version, set.version)?;
        let version = next_version(znode.meta.version);
        Ok(self.replace_data(by.zxid, &set.path, set.data.clone(), bytes_diff, version))
    }

    /// setACL. Not part of multi, so it cannot be taken back.
    pub(crate) fn set_acl(&mut self, by: &Author, set: &SetAcl) -> Result<Done, ErrorCode> {
        check_path(&set.path)?;
        let acl = acl::resolve(set.acl.as_deref(), by.who)?;
        let znode = self.tree.get(&set.path).ok_or(ErrorCode::NoNode)?;
        permit(&znode.acl, perms::ADMIN, by.who)?;
        check_version(znode.meta.aversion, set.version)?;
        let (stat, _) = self.tree.update(&set.path, 0, |znode| {
            znode.acl = SharedAcl::sharing(acl, &znode.acl);
            znode.meta.aversion = next_version(znode.meta.aversion);
            znode.stat()
        });
        let stat = self.shown(&set.path, stat);
        Ok(Done {
            path: set.path.clone(),
            stat,
            contender: None,
            limit: None,
            event: None,
            undo: Undo::Nothing,
        })
    }

    /// check, which is only part of multi.
    pub(crate) fn check_version(&self, by: &Author, path: &str, version: Version) -> Result<Done, ErrorCode> {
        check_path(path)?;
        let znode = self.tree.get(path).ok_or(ErrorCode::NoNode)?;
        permit(&znode.acl, perms::READ, by.who)?;
        check_version(znode.meta.version, version)?;
        let (path, stat) = (path.to_owned(), znode.stat());
        Ok(Done { path, stat, contender: None, limit: None, event: None, undo: Undo::Nothing })
    }

    /// Writes the configuration text. The version is -1 then, as ZooKeeper's is.
    pub(crate) fn configure(&mut self, zxid: Zxid, config: &str) -> Done {
        let data = Some(Bytes::copy_from_slice(config.as_bytes()));
        let znode = self.tree.get(CONFIG_PATH).expect("a reserved znode exists always");
        let bytes_diff = bytes_diff(znode, data.as_ref());
        self.replace_data(zxid, CONFIG_PATH, data, bytes_diff, Version(-1))
    }

    /// Deletes a childless znode that exists and has `data_len` bytes of data.
    pub(crate) fn remove(&mut self, zxid: Zxid, path: String, data_len: usize) -> Done {
        let Unlinked { znode, parent_before: parent, parent_acl } =
            self.unlink(&path, data_len, |meta| meta.pzxid = zxid);
        let event = Some(Event { kind: ChangeKind::Deleted, acl: znode.acl.clone(), parent_acl });
        Done {
            stat: znode.stat(),
            contender: None,
            limit: None,
            event,
            undo: Undo::Delete { znode, parent },
            path,
        }
    }

    fn replace_data(
        &mut self,
        zxid: Zxid,
        path: &str,
        data: Option<Bytes>,
        bytes_diff: i64,
        version: Version,
    ) -> Done {
        let time_ms = self.time_ms;
        let ((stat, acl, undo), parent_acl) = self.tree.update(path, bytes_diff, |znode| {
            let meta = znode.meta;
            let data = znode.replace_data(data);
            znode.meta.version = version;
            znode.meta.mzxid = zxid;
            znode.meta.mtime_ms = time_ms;
            (znode.stat(), znode.acl.clone(), Undo::SetData { data, meta, bytes_diff })
        });
        let event = Some(Event { kind: ChangeKind::DataChanged, acl, parent_acl });
        Done { path: path.to_owned(), stat, contender: None, limit: None, event, undo }
    }

    /// Takes back the newest operation that has not been taken back.
    pub(crate) fn undo(&mut self, done: Done) {
        match done.undo {
            Undo::Nothing => {}
            Undo::Create { parent, data } => {
                let data_len = data.map_or(0, |data| data.len());
                drop(self.unlink(&done.path, data_len, |meta| *meta = parent));
            }
            Undo::Delete { znode, parent } => self.link(&done.path, znode, |meta| *meta = parent),
            Undo::SetData { data, meta, bytes_diff } => {
                self.tree.update(&done.path, -bytes_diff, |znode| {
                    znode.replace_data(data);
                    znode.meta = meta;
                });
            }
        }
    }

    fn link(&mut self, path: &str, znode: Arc<Znode>, parent_change: impl FnOnce(&mut Meta)) {
        if let Kind::Ephemeral(session) = znode.meta.kind {
            self.sessions.add_ephemeral(session, path);
        }
        self.tree.link(path, znode, parent_change);
    }

    fn unlink(&mut self, path: &str, data_len: usize, parent_change: impl FnOnce(&mut Meta)) -> Unlinked {
        let unlinked = self.tree.unlink(path, data_len, parent_change);
        if let Kind::Ephemeral(session) = unlinked.znode.meta.kind {
            self.sessions.remove_ephemeral(session, path);
        }
        unlinked
    }
}

/// The ACL of a new znode. Mostly it is given the very list that its parent has, which has been resolved when it came.
fn resolved(create: &Create, parent: Option<&Znode>, who: &[Id]) -> Result<SharedAcl, ErrorCode> {
    let given = create.acl.as_deref();
    match parent.map(|parent| &parent.acl) {
        Some(acl) if given == Some(acl.entries()) => Ok(acl.clone()),
        Some(acl) => Ok(SharedAcl::sharing(acl::resolve(given, who)?, acl)),
        None => Ok(SharedAcl::new(acl::resolve(given, who)?)),
    }
}

fn kind(mode: CreateMode, ttl_ms: Option<i64>, session: SessionId) -> Result<Kind, ErrorCode> {
    match (ttl_ms, mode.has_ttl()) {
        (Some(ttl_ms), true) if (1..=TTL_MAX_MS).contains(&ttl_ms) => Ok(Kind::Ttl(ttl_ms)),
        // ZooKeeper 3.8 lets createTTL with a mode without one pass if the time is negative, and dies of it.
        (_, true) | (Some(_), false) => Err(ErrorCode::BadArguments),
        (None, false) if mode.is_ephemeral() => Ok(Kind::Ephemeral(session)),
        (None, false) if mode == CreateMode::Container => Ok(Kind::Container),
        (None, false) => Ok(Kind::Persistent),
    }
}

/// Parent and name, as far as ZooKeeper looks at a path before it looks for the parent.
fn split_checked(path: &str) -> Result<(&str, &str), ErrorCode> {
    split(path).filter(|_| !path.contains('\0')).ok_or(ErrorCode::BadArguments)
}

fn check_path(path: &str) -> Result<(), ErrorCode> {
    paths::validate(path).map_err(|_| ErrorCode::BadArguments)
}

/// How much longer `data` is than what the znode has.
fn bytes_diff(znode: &Znode, data: Option<&Bytes>) -> i64 {
    data.map_or(0, Bytes::len) as i64 - znode.data_len() as i64
}

pub(crate) fn permit(acl: &SharedAcl, perm: i32, who: &[Id]) -> Result<(), ErrorCode> {
    let acl: &[Acl] = acl.entries();
    if acl::may(acl, perm, who) { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

fn check_version(current: Version, expected: Version) -> Result<(), ErrorCode> {
    if expected == Version::ANY || expected == current { Ok(()) } else { Err(ErrorCode::BadVersion) }
}

/// The version after one more change. Wraps past 2^31-1, and leaves out -1, which means "any" in a request.
fn next_version(version: Version) -> Version {
    match version.0.wrapping_add(1) {
        -1 => Version(0),
        next => Version(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_wrap_and_leave_out_any() {
        assert_eq!(next_version(Version(0)), Version(1));
        assert_eq!(next_version(Version(i32::MAX)), Version(i32::MIN));
        assert_eq!(next_version(Version(-2)), Version(0));
        assert_eq!(next_version(Version(-1)), Version(0));
    }
}
