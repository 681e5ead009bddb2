//! The operations on single znodes, with ZooKeeper's checks in ZooKeeper's order (`PrepRequestProcessor`).
//!
//! Each either changes nothing and gives an error, or is carried out and gives a [`Done`], which can fire its
//! event and be taken back. Operations do not know whether they run alone or in a multi.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_proto::request::{Create, SetAcl, SetData};
use rowlock_proto::{CreateMode, ErrorCode, SessionId, Stat, Version, Zxid, path as paths};

use crate::acl::{self, SharedAcl};
use crate::command::Stamp;
use crate::locks::{Contender, Key, limit_in};
use crate::machine::{CONFIG_PATH, Machine, RESERVED};
use crate::outcome::{Change, ChangeKind, EventSink};
use crate::sequence;
use crate::shared_map::Slot;
use crate::tree::{Before, Path, Trail, Unlinked};
use crate::znode::{Kind, Meta, SharedZnode, Znode};

/// Longest time to live that ZooKeeper can store (`EphemeralType.TTL`).
const TTL_MAX_MS: i64 = 0xff_ffff_ffff;

/// On whose behalf, and as which change.
pub(crate) struct Author<'a> {
    pub zxid: Zxid,
    pub session: SessionId,
    /// Where the session is, which no command moves before it is over.
    pub place: Slot,
    /// Identities, without `world:anyone`.
    pub who: &'a [Id],
    /// What the leader decided for its batch.
    pub stamp: Stamp,
}

/// What a create asks for, once it is known to be well formed.
pub(crate) struct New<'a> {
    /// The path, before its number, in pieces.
    pub path: [&'a str; 3],
    /// Where its last name begins.
    pub name_at: usize,
    pub data: Option<Bytes>,
    pub acl: Option<&'a [Acl]>,
    pub mode: CreateMode,
    pub kind: Kind,
}

/// An operation that has been carried out.
pub(crate) struct Done {
    /// Full path of the znode; empty if it is one of an ephemeral that has gone, which is shared already.
    pub path: String,
    /// The same, as its session's list has it.
    shared: Option<Arc<str>>,
    /// Where its last name begins.
    pub name_at: usize,
    /// The znode's Stat after it (the last one, if deleted).
    pub stat: Stat,
    /// The place in its parent's queue that a created znode is.
    pub contender: Option<Contender>,
    /// The limit of permits that its parent's data name, where there is a contender.
    pub limit: Option<u32>,
    /// Where its queue is or belongs, if it is a place in one and that was looked for.
    pub queue: Option<Result<Slot, Slot>>,
    /// It is a place in a queue that holds the lock since.
    pub holds: bool,
    event: Option<Event>,
    undo: Undo,
}

struct Event {
    kind: ChangeKind,
    /// The znode's, unless it can be looked up in what it takes to undo this.
    acl: Option<SharedAcl>,
    parent_acl: SharedAcl,
}

/// What it takes to have the state of before.
enum Undo {
    Nothing,
    Create { znode: SharedZnode, parent: Before },
    Delete { znode: SharedZnode, parent: Before },
    SetData { data: Option<Bytes>, meta: Meta, bytes_diff: i64 },
}

impl Done {
    /// Nothing that makes a place in a queue.
    fn new(path: String, stat: Stat, event: Option<Event>, undo: Undo) -> Self {
        Done {
            path,
            shared: None,
            name_at: 0,
            stat,
            contender: None,
            limit: None,
            queue: None,
            holds: false,
            event,
            undo,
        }
    }

    /// What happened to the znode, if anything that others see.
    pub(crate) fn kind(&self) -> Option<ChangeKind> {
        self.event.as_ref().map(|event| event.kind)
    }

    /// The data that a new znode has, or a deleted one had.
    pub(crate) fn data(&self) -> Option<&[u8]> {
        match &self.undo {
            Undo::Create { znode, .. } | Undo::Delete { znode, .. } => znode.data().map(|data| &data[..]),
            Undo::Nothing | Undo::SetData { .. } => None,
        }
    }

    /// Whether a deleted znode had ever had children.
    pub(crate) fn was_parent(&self) -> bool {
        let Undo::Delete { znode, .. } = &self.undo else { return false };
        // The number of creates comes round, some day.
        znode.meta.creates != 0 || znode.meta.pzxid != znode.meta.czxid
    }

    /// Full path of the znode.
    pub(crate) fn path(&self) -> &str {
        self.shared.as_deref().unwrap_or(&self.path)
    }

    /// Path of the parent.
    pub(crate) fn parent(&self) -> &str {
        Path::cut(self.path(), self.name_at).parent()
    }

    /// What it is called as a place in a queue, if it is ephemeral.
    pub(crate) fn key(&self) -> Option<Key> {
        let is_ephemeral = self.stat.ephemeral_owner != SessionId::NONE;
        debug_assert_eq!(self.shared.is_some(), is_ephemeral, "ephemeral paths are shared, and no others");
        Some(Key { czxid: self.stat.czxid, path: self.shared.clone()? })
    }

    /// The ACL of what came or went, and of its parent.
    pub(crate) fn acls(&self) -> (&[Acl], &[Acl]) {
        let Some(Event { acl, parent_acl, .. }) = &self.event else { return (&[], &[]) };
        let acl = match &self.undo {
            Undo::Create { znode, .. } | Undo::Delete { znode, .. } => Some(&znode.acl),
            Undo::Nothing | Undo::SetData { .. } => acl.as_ref(),
        };
        (acl.map_or(&[][..], SharedAcl::entries), parent_acl.entries())
    }

    /// Tells the sink, if there is something to tell.
    pub(crate) fn fire<S: EventSink + ?Sized>(&self, zxid: Zxid, sink: &mut S) {
        if let Some(Event { kind, .. }) = &self.event {
            let (acl, parent_acl) = self.acls();
            debug_assert!(
                !acl.is_empty() && !parent_acl.is_empty(),
                "an event without ACLs is told to nobody"
            );
            sink.changed(&Change { zxid, path: self.path(), kind: *kind, acl, parent_acl });
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
        let path = Path::new(&create.path).ok_or(ErrorCode::BadArguments)?;
        let parent = self.tree.find(path.parent()).map(|(trail, _)| trail);
        let (data, acl) = (create.data.clone(), create.acl.as_deref());
        let new = New { path: [&create.path, "", ""], name_at: path.name_at(), data, acl, mode, kind };
        let mut done = self.create_below(by, parent.as_ref(), new)?;
        if mode == CreateMode::EphemeralSequential {
            let name = &done.path[path.name_at()..];
            done.contender = Some(Contender::plain(name, by.session, by.who, self.time_ms));
        }
        Ok(done)
    }

    /// The same, below the znode at the end of a trail. Makes no contender.
    pub(crate) fn create_below(
        &mut self,
        by: &Author,
        trail: Option<&Trail>,
        new: New<'_>,
    ) -> Result<Done, ErrorCode> {
        // A NUL comes first in ZooKeeper, the rest of what can be wrong with a path only behind these.
        let instead = |code| if new.path.concat().contains('\0') { ErrorCode::BadArguments } else { code };
        let parent = trail.map(|trail| (trail, self.tree.at(trail)));
        let acl = resolved(new.acl, parent.map(|(_, znode)| znode), by.who).map_err(instead)?;
        let (trail, parent) = parent.ok_or(ErrorCode::NoNode).map_err(instead)?;
        permit(&parent.acl, perms::CREATE, by.who).map_err(instead)?;
        let path = if new.mode.is_sequential() {
            sequence::numbered(&new.path, parent.meta.creates)
        } else {
            new.path.concat()
        };
        check_path(&path)?;
        let at = Path::cut(&path, new.name_at);
        // Of the paths that are well formed, only the root's has no name. The announcement is there for every
        // reader, though in no tree.
        if at.name().is_empty() || path == ANNOUNCEMENT {
            return Err(ErrorCode::NodeExists);
        }
        let Err(place) = parent.children.find(at.name()) else { return Err(ErrorCode::NodeExists) };
        if matches!(parent.meta.kind, Kind::Ephemeral(_)) {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        if by.stamp.enforce_quota {
            let data_len = new.data.as_ref().map_or(0, Bytes::len);
            self.check_quota(&path, 1, data_len as i64)?;
        }
        assert!(parent.meta.pzxid <= by.zxid, "a znode is created below what is newer than itself");
        let parent_acl = parent.acl.clone();
        let limit = limit_in(parent.data()).filter(|_| new.mode == CreateMode::EphemeralSequential);
        let parent = Before::of(&parent.meta);
        let meta = Meta::new(by.zxid, self.time_ms, new.kind);
        let znode = Znode::new(meta, new.data, acl);
        let shared = matches!(new.kind, Kind::Ephemeral(_)).then(|| Arc::from(path.as_str()));
        let znode = self.link((at, shared.as_ref(), by.place), (trail, place), znode, |meta| {
            meta.creates = sequence::next(meta.creates);
            meta.pzxid = by.zxid;
        });
        let event = Some(Event { kind: ChangeKind::Created, acl: None, parent_acl });
        let (stat, undo) = (znode.stat(), Undo::Create { znode, parent });
        Ok(Done { shared, name_at: new.name_at, limit, ..Done::new(path, stat, event, undo) })
    }

    /// delete.
    pub(crate) fn delete(&mut self, by: &Author, path: &str, version: Version) -> Result<Done, ErrorCode> {
        let at = split_checked(path)?;
        if RESERVED.contains(&path) {
            return Err(ErrorCode::BadArguments);
        }
        let (trail, parent) = self.tree.find(at.parent()).ok_or(ErrorCode::NoNode)?;
        permit(&parent.acl, perms::DELETE, by.who)?;
        // `//a` is not `/a`.
        if path.starts_with("//") {
            return Err(ErrorCode::NoNode);
        }
        let place = parent.children.find(at.name()).map_err(|_| ErrorCode::NoNode)?;
        let (_, znode) = parent.children.at(place);
        check_version(znode.meta.version, version)?;
        if !znode.children.is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        Ok(self.remove_at((by.zxid, by.place), at, (&trail, place)))
    }

    /// setData.
    pub(crate) fn set_data(&mut self, by: &Author, set: &SetData) -> Result<Done, ErrorCode> {
        check_path(&set.path)?;
        let (trail, znode) = self.tree.find(&set.path).ok_or(ErrorCode::NoNode)?;
        permit(&znode.acl, perms::WRITE, by.who)?;
        let bytes_diff = bytes_diff(znode, set.data.as_ref());
        if by.stamp.enforce_quota {
            self.check_quota(&set.path, 0, bytes_diff)?;
        }
        check_version(znode.meta.version, set.version)?;
        let version = next_version(znode.meta.version);
        Ok(self.replace_data(by.zxid, (&set.path, &trail), set.data.clone(), bytes_diff, version))
    }

    /// setACL. Not part of multi, so it cannot be taken back.
    pub(crate) fn set_acl(&mut self, by: &Author, set: &SetAcl) -> Result<Done, ErrorCode> {
        check_path(&set.path)?;
        let acl = acl::resolve(set.acl.as_deref(), by.who)?;
        let (trail, znode) = self.tree.find(&set.path).ok_or(ErrorCode::NoNode)?;
        permit(&znode.acl, perms::ADMIN, by.who)?;
        check_version(znode.meta.aversion, set.version)?;
        let stat = self.tree.set_acl((&set.path, &trail), SharedAcl::new(acl), |znode| {
            znode.meta.aversion = next_version(znode.meta.aversion);
            znode.stat()
        });
        let stat = self.shown(&set.path, stat);
        Ok(Done::new(set.path.clone(), stat, None, Undo::Nothing))
    }

    /// check, which is only part of multi.
    pub(crate) fn check_version(&self, by: &Author, path: &str, version: Version) -> Result<Done, ErrorCode> {
        check_path(path)?;
        let znode = self.tree.get(path).ok_or(ErrorCode::NoNode)?;
        permit(&znode.acl, perms::READ, by.who)?;
        check_version(znode.meta.version, version)?;
        Ok(Done::new(path.to_owned(), znode.stat(), None, Undo::Nothing))
    }

    /// Writes the configuration text. The version is -1 then, as ZooKeeper's is.
    pub(crate) fn configure(&mut self, zxid: Zxid, config: &str) -> Done {
        let data = Some(Bytes::copy_from_slice(config.as_bytes()));
        let (trail, znode) = self.tree.find(CONFIG_PATH).expect("a reserved znode exists always");
        let bytes_diff = bytes_diff(znode, data.as_ref());
        self.replace_data(zxid, (CONFIG_PATH, &trail), data, bytes_diff, Version(-1))
    }

    /// Deletes a childless znode that exists.
    pub(crate) fn remove(&mut self, zxid: Zxid, path: &str) -> Done {
        let at = Path::new(path).expect("a path has a slash");
        let (trail, parent) = self.tree.find(at.parent()).expect("the caller has found the znode");
        let place = parent.children.find(at.name()).expect("the caller has found the znode");
        self.remove_at((zxid, Slot::default()), at, (&trail, place))
    }

    /// Deletes the childless znode at this place below its parent. `owner`: where its session may be, if it
    /// has one.
    pub(crate) fn remove_at(
        &mut self,
        (zxid, owner): (Zxid, Slot),
        path: Path<'_>,
        place: (&Trail, Slot),
    ) -> Done {
        debug_assert!(!RESERVED.contains(&path.full), "{} exists always", path.full);
        let (unlinked, shared) = self.unlink((path, owner), place, |meta| {
            assert!(meta.pzxid <= zxid, "a znode goes before what is newer came beside it");
            meta.pzxid = zxid;
        });
        let Unlinked { znode, parent_before: parent, parent_acl } = unlinked;
        let name_at = path.name_at();
        let path = if shared.is_some() { String::new() } else { path.full.to_owned() };
        let event = Event { kind: ChangeKind::Deleted, acl: None, parent_acl };
        let (stat, undo) = (znode.stat(), Undo::Delete { znode, parent });
        Done { shared, name_at, ..Done::new(path, stat, Some(event), undo) }
    }

    fn replace_data(
        &mut self,
        zxid: Zxid,
        (path, trail): (&str, &Trail),
        data: Option<Bytes>,
        bytes_diff: i64,
        version: Version,
    ) -> Done {
        let time_ms = self.time_ms;
        let ((stat, acl, undo), parent_acl) = self.tree.update(path, trail, bytes_diff, |znode| {
            let meta = znode.meta;
            assert!(meta.mzxid <= zxid && meta.mtime_ms <= time_ms, "a change is newer than the ones before");
            let data = znode.replace_data(data);
            znode.meta.version = version;
            znode.meta.mzxid = zxid;
            znode.meta.mtime_ms = time_ms;
            (znode.stat(), znode.acl.clone(), Undo::SetData { data, meta, bytes_diff })
        });
        let event = Event { kind: ChangeKind::DataChanged, acl: Some(acl), parent_acl };
        Done::new(path.to_owned(), stat, Some(event), undo)
    }

    /// Takes back the newest operation that has not been taken back.
    pub(crate) fn undo(&mut self, done: Done) {
        let path = done.shared.as_deref().unwrap_or(&done.path);
        let at = || Path::cut(path, done.name_at);
        match done.undo {
            Undo::Nothing => {}
            Undo::Create { parent, .. } => {
                let (trail, place) = self.find_place(at());
                let place = place.expect("it was created");
                let (gone, _) =
                    self.unlink((at(), Slot::default()), (&trail, place), |meta| parent.restore(meta));
                assert_eq!(gone.znode.meta.czxid, done.stat.czxid, "what is taken back is what was created");
            }
            Undo::Delete { znode, parent } => {
                let (trail, place) = self.find_place(at());
                let place = place.expect_err("it was deleted");
                let (shared, znode) = (done.shared.as_ref(), SharedZnode::unwrap_or_clone(znode));
                let new = (at(), shared, Slot::default());
                self.link(new, (&trail, place), znode, |meta| parent.restore(meta));
            }
            Undo::SetData { data, meta, bytes_diff } => {
                let (trail, _) = self.tree.find(path).expect("it was changed");
                self.tree.update(path, &trail, -bytes_diff, |znode| {
                    znode.replace_data(data);
                    znode.meta = meta;
                });
            }
        }
    }

    /// The way to the parent of something that was done, and where it lies or belongs there.
    fn find_place(&self, path: Path<'_>) -> (Trail, Result<Slot, Slot>) {
        let (trail, parent) = self.tree.find(path.parent()).expect("what was done there was below a znode");
        let place = parent.children.find(path.name());
        (trail, place)
    }

    /// `shared`: the path, if the znode is ephemeral; `owner`: where its session may be then.
    fn link(
        &mut self,
        (path, shared, owner): (Path<'_>, Option<&Arc<str>>, Slot),
        place: (&Trail, Slot),
        znode: Znode,
        parent_change: impl FnOnce(&mut Meta),
    ) -> SharedZnode {
        if let Kind::Ephemeral(session) = znode.meta.kind {
            let shared = shared.expect("the path of an ephemeral znode is shared");
            debug_assert_eq!(&**shared, path.full, "a session is given another path than the tree");
            self.sessions.add_ephemeral((session, owner), shared.clone());
        }
        self.tree.link(path, place, znode, parent_change)
    }

    fn unlink(
        &mut self,
        (path, owner): (Path<'_>, Slot),
        place: (&Trail, Slot),
        parent_change: impl FnOnce(&mut Meta),
    ) -> (Unlinked, Option<Arc<str>>) {
        let unlinked = self.tree.unlink(path, place, parent_change);
        let shared = match unlinked.znode.meta.kind {
            Kind::Ephemeral(session) => Some(self.sessions.remove_ephemeral((session, owner), path.full)),
            Kind::Persistent | Kind::Container | Kind::Ttl(_) => None,
        };
        debug_assert!(shared.as_ref().is_none_or(|shared| **shared == *path.full), "another path has gone");
        (unlinked, shared)
    }
}

/// The ACL of a new znode. Mostly it is given the very list that its parent has, which has been resolved when
/// it came.
fn resolved(given: Option<&[Acl]>, parent: Option<&Znode>, who: &[Id]) -> Result<SharedAcl, ErrorCode> {
    match parent.map(|parent| &parent.acl) {
        Some(acl) if given == Some(acl.entries()) => Ok(acl.clone()),
        _ => Ok(SharedAcl::new(acl::resolve(given, who)?)),
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
fn split_checked(path: &str) -> Result<Path<'_>, ErrorCode> {
    Path::new(path).filter(|_| !path.contains('\0')).ok_or(ErrorCode::BadArguments)
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
