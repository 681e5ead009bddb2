//! Operations on single znodes, with ZooKeeper's checks in ZooKeeper's order (`PrepRequestProcessor`).
//!
//! An operation either changes nothing and returns an error, or returns a [`Done`], which can fire its event
//! or be reverted. Operations do not depend on whether a multi contains them.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_proto::request::{Create, SetAcl, SetData};
use rowlock_proto::{CreateMode, ErrorCode, SessionId, Version, Zxid, path as paths};

use crate::acl_table::SharedAcl;
use crate::arena::Number;
use crate::command::Author;
pub(crate) use crate::done::Done;
use crate::done::{BeforeData, Event, Undo};
use crate::guard::decides;
use crate::locks::Contender;
use crate::machine::{CONFIG_PATH, Machine, RESERVED};
use crate::outcome::ChangeKind;
use crate::shared_map::Slot;
use crate::tree::{ParentCounters, Path, TreePosition, Unlinked};
use crate::znode::{Kind, Meta, Znode, ZnodeName};
use crate::{acl, sequence, steps};

/// Longest time to live that ZooKeeper can store (`EphemeralType.TTL`).
const TTL_MAX_MS: i64 = 0xff_ffff_ffff;

/// A well-formed create request.
pub(crate) struct New<'a> {
    /// The path, before its number, in pieces.
    pub path: [&'a str; 3],
    /// Index of the last name's first byte.
    pub name_at: usize,
    pub data: Option<Bytes>,
    pub acl: Option<&'a [Acl]>,
    pub mode: CreateMode,
    pub kind: Kind,
}

impl Machine {
    /// Returns whether the tree agrees with the response to a request. Only for assertions.
    pub(crate) fn is_as_done(&self, request: &Request, done: &Done) -> bool {
        let found = steps::uncounted(|| self.tree.get(done.path()));
        match request {
            Request::Delete { .. } => found.is_none(),
            // A quota's statistics show another length.
            Request::SetAcl(_) => found.is_some_and(|znode| znode.meta.aversion == done.stat.aversion),
            _ => found.is_some_and(|znode| znode.stat() == done.stat),
        }
    }

    /// Runs create, create2, createContainer and createTTL.
    pub(crate) fn create(
        &mut self,
        by: &Author,
        create: &Create,
        ttl_ms: Option<i64>,
    ) -> Result<Done, ErrorCode> {
        let mode = CreateMode::from_flags(create.flags).ok_or(ErrorCode::BadArguments)?;
        let kind = kind(mode, ttl_ms, by.session)?;
        let path = Path::new(&create.path).ok_or(ErrorCode::BadArguments)?;
        self.permit_create(by, &create.path, (mode, create.data.as_ref()))?;
        let parent = self.tree.find(path.parent());
        let (data, acl) = (create.data.clone(), create.acl.as_deref());
        let new = New { path: [&create.path, "", ""], name_at: path.name_at(), data, acl, mode, kind };
        let mut done = self.create_below(by, parent, new)?;
        if mode == CreateMode::EphemeralSequential {
            let mode = Contender::plain_mode(&done.path[path.name_at()..]);
            let address = self.sessions.shared_address((by.session, by.place), by.who);
            done.contender = Some(Contender::plain(mode, by.session, address, self.time_ms));
        }
        Ok(done)
    }

    /// Creates a child of a znode found by the caller. Creates no contender.
    pub(crate) fn create_below(
        &mut self,
        by: &Author,
        parent: Option<Number>,
        new: New<'_>,
    ) -> Result<Done, ErrorCode> {
        // ZooKeeper checks for a NUL first, and for other faults of a path only later.
        let instead = |code| if new.path.concat().contains('\0') { ErrorCode::BadArguments } else { code };
        let parent = parent.map(|id| (id, self.tree.node(id)));
        let acl = resolved(new.acl, parent.map(|(_, znode)| znode), by.who).map_err(instead)?;
        let (parent_id, parent) = parent.ok_or(ErrorCode::NoNode).map_err(instead)?;
        permit(&parent.acl, perms::CREATE, by.who).map_err(instead)?;
        let path = if new.mode.is_sequential() {
            sequence::numbered(&new.path, parent.meta.creates)
        } else {
            new.path.concat()
        };
        check_path(&path)?;
        let at = Path::cut(&path, new.name_at);
        // Among well-formed paths only the root's has no name. Every reader sees the announcement, although
        // no tree contains it.
        if at.name().is_empty() || path == ANNOUNCEMENT {
            return Err(ErrorCode::NodeExists);
        }
        let Err(slot) = parent.children.find(at.name().as_bytes()) else { return Err(ErrorCode::NodeExists) };
        if decides!("parent-is-ephemeral", matches!(parent.meta.kind, Kind::Ephemeral(_))) {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        if decides!("create-counts-against-quota", by.stamp.enforce_quota) {
            let data_len = new.data.as_ref().map_or(0, Bytes::len);
            self.check_quota(&path, 1, data_len as i64)?;
        }
        assert!(parent.meta.pzxid <= by.zxid, "a znode is created below what is newer than itself");
        let parent_acl = parent.acl.clone();
        let parent = ParentCounters::of(&parent.meta);
        let meta = Meta::new(by.zxid, self.time_ms, new.kind);
        let znode = Znode::new(meta, new.data, acl);
        let shared = matches!(new.kind, Kind::Ephemeral(_)).then(|| Arc::from(path.as_str()));
        let stat = znode.stat();
        let place = TreePosition { parent: parent_id, at: slot };
        let id = self.link((at, shared.as_ref(), by.place), place, znode, |meta| {
            meta.creates = sequence::next(meta.creates);
            meta.pzxid = by.zxid;
        });
        self.rules_changed(&path);
        let event = Some(Event { kind: ChangeKind::Created, acl: None, parent_acl });
        let undo = Undo::Create { id, parent };
        Ok(Done { shared, name_at: new.name_at, ..Done::new(path, stat, event, undo) })
    }

    pub(crate) fn delete(&mut self, by: &Author, path: &str, version: Version) -> Result<Done, ErrorCode> {
        let at = split_checked(path)?;
        if decides!("znode-is-reserved", RESERVED.contains(&path)) {
            return Err(ErrorCode::BadArguments);
        }
        let parent_id = self.tree.find(at.parent()).ok_or(ErrorCode::NoNode)?;
        let parent = self.tree.node(parent_id);
        permit(&parent.acl, perms::DELETE, by.who)?;
        // Distinguishes `//a` from `/a`.
        if path.starts_with("//") {
            return Err(ErrorCode::NoNode);
        }
        let slot = parent.children.find(at.name().as_bytes()).map_err(|_| ErrorCode::NoNode)?;
        let znode = self.tree.node(*parent.children.at(slot).1);
        self.permit_delete(by, path, znode.meta.kind)?;
        check_version(znode.meta.version, version)?;
        if decides!("znode-has-children", !znode.children.is_empty()) {
            return Err(ErrorCode::NotEmpty);
        }
        Ok(self.remove_at((by.zxid, by.place), at, TreePosition { parent: parent_id, at: slot }))
    }

    pub(crate) fn set_data(&mut self, by: &Author, set: &SetData) -> Result<Done, ErrorCode> {
        check_path(&set.path)?;
        let id = self.tree.find(&set.path).ok_or(ErrorCode::NoNode)?;
        let znode = self.tree.node(id);
        permit(&znode.acl, perms::WRITE, by.who)?;
        self.permit_set_data(by, &set.path, (znode.meta.kind, set.data.as_ref()))?;
        let bytes_diff = bytes_diff(znode, set.data.as_ref());
        if decides!("write-counts-against-quota", by.stamp.enforce_quota) {
            self.check_quota(&set.path, 0, bytes_diff)?;
        }
        check_version(znode.meta.version, set.version)?;
        let version = next_version(znode.meta.version);
        Ok(self.replace_data(by.zxid, (&set.path, id), set.data.clone(), bytes_diff, version))
    }

    /// Runs setACL. No multi contains setACL, so setACL needs no revert.
    pub(crate) fn set_acl(&mut self, by: &Author, set: &SetAcl) -> Result<Done, ErrorCode> {
        check_path(&set.path)?;
        let acl = acl::resolve(set.acl.as_deref(), by.who)?;
        let id = self.tree.find(&set.path).ok_or(ErrorCode::NoNode)?;
        let znode = self.tree.node(id);
        permit(&znode.acl, perms::ADMIN, by.who)?;
        self.permit_set_acl(by, &set.path, znode.meta.kind)?;
        check_version(znode.meta.aversion, set.version)?;
        let stat = self.tree.set_acl((&set.path, id), SharedAcl::new(acl), |znode| {
            znode.meta.aversion = next_version(znode.meta.aversion);
            znode.stat()
        });
        let stat = self.shown(&set.path, stat);
        Ok(Done::new(set.path.clone(), stat, None, Undo::Nothing))
    }

    /// Runs check, which exists only in a multi.
    pub(crate) fn check_version(&self, by: &Author, path: &str, version: Version) -> Result<Done, ErrorCode> {
        check_path(path)?;
        self.permit_see(path, by.who)?;
        let znode = self.tree.get(path).ok_or(ErrorCode::NoNode)?;
        permit(&znode.acl, perms::READ, by.who)?;
        check_version(znode.meta.version, version)?;
        Ok(Done::new(path.to_owned(), znode.stat(), None, Undo::Nothing))
    }

    /// Writes the configuration's text with version -1, as ZooKeeper does.
    pub(crate) fn configure(&mut self, zxid: Zxid, config: &str) -> Done {
        let data = Some(Bytes::copy_from_slice(config.as_bytes()));
        let id = self.tree.find(CONFIG_PATH).expect("a reserved znode exists always");
        let bytes_diff = bytes_diff(self.tree.node(id), data.as_ref());
        self.replace_data(zxid, (CONFIG_PATH, id), data, bytes_diff, Version(-1))
    }

    /// Deletes an existing childless znode.
    pub(crate) fn remove(&mut self, zxid: Zxid, path: &str) -> Done {
        let at = Path::new(path).expect("a path has a slash");
        let parent = self.tree.find(at.parent()).expect("the caller has found the znode");
        let slot = self
            .tree
            .node(parent)
            .children
            .find(at.name().as_bytes())
            .expect("the caller has found the znode");
        self.remove_at((zxid, Slot::default()), at, TreePosition { parent, at: slot })
    }

    /// Deletes the childless znode at this position below its parent. `owner` is the probable slot of the
    /// znode's session, if any.
    pub(crate) fn remove_at(
        &mut self,
        (zxid, owner): (Zxid, Slot),
        path: Path<'_>,
        place: TreePosition,
    ) -> Done {
        debug_assert!(!RESERVED.contains(&path.full), "{} exists always", path.full);
        let (unlinked, shared) = self.unlink((path, owner), place, |meta| {
            assert!(meta.pzxid <= zxid, "a znode goes before what is newer came beside it");
            meta.pzxid = zxid;
        });
        let Unlinked { id, parent_before: parent, parent_acl } = unlinked;
        self.rules_changed(path.full);
        let name_at = path.name_at();
        let path = if shared.is_some() { String::new() } else { path.full.to_owned() };
        let event = Event { kind: ChangeKind::Deleted, acl: None, parent_acl };
        let (stat, undo) = (self.tree.node(id).stat(), Undo::Delete { id, parent });
        Done { shared, name_at, ..Done::new(path, stat, Some(event), undo) }
    }

    fn replace_data(
        &mut self,
        zxid: Zxid,
        (path, id): (&str, Number),
        data: Option<Bytes>,
        bytes_diff: i64,
        version: Version,
    ) -> Done {
        let time_ms = self.time_ms;
        let ((stat, acl, undo), parent_acl) = self.tree.update(path, id, bytes_diff, |znode| {
            let Meta { mzxid, mtime_ms, version: old, .. } = znode.meta;
            let before = BeforeData { mzxid, mtime_ms, version: old };
            assert!(mzxid <= zxid && mtime_ms <= time_ms, "a change is newer than the ones before");
            let data = znode.replace_data(data);
            znode.meta.version = version;
            znode.meta.mzxid = zxid;
            znode.meta.mtime_ms = time_ms;
            (znode.stat(), znode.acl.clone(), Undo::SetData { id, data, before, bytes_diff })
        });
        self.rules_changed(path);
        let event = Event { kind: ChangeKind::DataChanged, acl: Some(acl), parent_acl };
        Done::new(path.to_owned(), stat, Some(event), undo)
    }

    /// Reverts the newest operation not yet reverted.
    pub(crate) fn revert(&mut self, done: Done) {
        let path = done.shared.as_deref().unwrap_or(&done.path);
        let at = || Path::cut(path, done.name_at);
        match done.undo {
            Undo::Nothing => {}
            Undo::Create { id, parent } => {
                let place = self.place_of(id, at()).expect("it was created");
                let (gone, _) = self.unlink((at(), Slot::default()), place, |meta| parent.restore(meta));
                assert_eq!(gone.id, id, "what is taken back is what was created");
                self.tree.forget(id);
            }
            Undo::Delete { id, parent } => {
                let place = self.place_of(id, at()).expect_err("it was deleted");
                let znode = self.tree.node(id);
                let kind = znode.meta.kind;
                let name = self.name_of(kind, (at(), done.shared.as_ref(), Slot::default()), id);
                self.tree.link(at(), name, (id, place), |meta| parent.restore(meta));
            }
            Undo::SetData { id, data, before, bytes_diff } => {
                self.tree.update(path, id, -bytes_diff, |znode| {
                    znode.replace_data(data);
                    let BeforeData { mzxid, mtime_ms, version } = before;
                    (znode.meta.mzxid, znode.meta.mtime_ms, znode.meta.version) = (mzxid, mtime_ms, version);
                });
            }
        }
        self.rules_changed(path);
    }

    /// Returns the position below its parent where a created or deleted znode is, or belongs.
    fn place_of(&self, id: Number, path: Path<'_>) -> Result<TreePosition, TreePosition> {
        let parent = self.tree.node(id).parent;
        let at = self.tree.node(parent).children.find(path.name().as_bytes());
        at.map(|at| TreePosition { parent, at }).map_err(|at| TreePosition { parent, at })
    }

    /// Links a znode below its parent. `shared` is the path of an ephemeral znode, `owner` the probable slot
    /// of its session.
    fn link(
        &mut self,
        (path, shared, owner): (Path<'_>, Option<&Arc<str>>, Slot),
        place: TreePosition,
        znode: Znode,
        parent_change: impl FnOnce(&mut Meta),
    ) -> Number {
        let id = self.tree.add(znode, place.parent);
        let name = self.name_of(self.tree.node(id).meta.kind, (path, shared, owner), id);
        self.tree.link(path, name, (id, place), parent_change);
        id
    }

    /// Returns the name of a znode of this kind among its siblings. Adds an ephemeral znode to its session.
    fn name_of(
        &mut self,
        kind: Kind,
        (path, shared, owner): (Path<'_>, Option<&Arc<str>>, Slot),
        id: Number,
    ) -> ZnodeName {
        let Kind::Ephemeral(session) = kind else { return path.name().into() };
        let shared = shared.expect("the path of an ephemeral znode is shared");
        debug_assert_eq!(&**shared, path.full, "a session is given another path than the tree");
        self.sessions.add_ephemeral((session, owner), self.tree.node(id).parent, shared.clone(), id);
        ZnodeName::within(shared, path.name_at())
    }

    fn unlink(
        &mut self,
        (path, owner): (Path<'_>, Slot),
        place: TreePosition,
        parent_change: impl FnOnce(&mut Meta),
    ) -> (Unlinked, Option<Arc<str>>) {
        let unlinked = self.tree.unlink(path, place, parent_change);
        let shared = match self.tree.node(unlinked.id).meta.kind {
            Kind::Ephemeral(session) => {
                let below = (place.parent, path.full);
                Some(self.sessions.remove_ephemeral((session, owner), below, unlinked.id))
            }
            Kind::Persistent | Kind::Container | Kind::Ttl(_) => None,
        };
        debug_assert!(shared.as_ref().is_none_or(|shared| **shared == *path.full), "another path has gone");
        (unlinked, shared)
    }
}

/// Returns the ACL of a new znode. In most cases the given list is the very list of the parent, resolved at
/// the parent's creation.
pub(crate) fn resolved(
    given: Option<&[Acl]>,
    parent: Option<&Znode>,
    who: &[Id],
) -> Result<SharedAcl, ErrorCode> {
    match parent.map(|parent| &parent.acl) {
        Some(acl) if given.is_some_and(|given| acl.is_list(given)) => Ok(acl.clone()),
        _ => Ok(SharedAcl::new(acl::resolve(given, who)?)),
    }
}

fn kind(mode: CreateMode, ttl_ms: Option<i64>, session: SessionId) -> Result<Kind, ErrorCode> {
    match (ttl_ms, mode.has_ttl()) {
        (Some(ttl_ms), true) if (1..=TTL_MAX_MS).contains(&ttl_ms) => Ok(Kind::Ttl(ttl_ms)),
        // ZooKeeper 3.8 accepts createTTL with a negative time and a mode without TTL, and then crashes.
        (_, true) | (Some(_), false) => Err(ErrorCode::BadArguments),
        (None, false) if mode.is_ephemeral() => Ok(Kind::Ephemeral(session)),
        (None, false) if mode == CreateMode::Container => Ok(Kind::Container),
        (None, false) => Ok(Kind::Persistent),
    }
}

/// Splits a path into parent and name, with the checks that ZooKeeper makes before the lookup of the parent.
fn split_checked(path: &str) -> Result<Path<'_>, ErrorCode> {
    Path::new(path).filter(|_| !path.contains('\0')).ok_or(ErrorCode::BadArguments)
}

fn check_path(path: &str) -> Result<(), ErrorCode> {
    paths::validate(path).map_err(|_| ErrorCode::BadArguments)
}

/// Returns the number of bytes by which `data` exceeds the znode's data.
fn bytes_diff(znode: &Znode, data: Option<&Bytes>) -> i64 {
    data.map_or(0, Bytes::len) as i64 - znode.data_len() as i64
}

pub(crate) fn permit(acl: &SharedAcl, perm: i32, who: &[Id]) -> Result<(), ErrorCode> {
    if decides!("acl-permits-write", acl.allows(perm, who)) { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

fn check_version(current: Version, expected: Version) -> Result<(), ErrorCode> {
    if decides!("version-fits", expected == Version::ANY || expected == current) {
        Ok(())
    } else {
        Err(ErrorCode::BadVersion)
    }
}

/// Returns the version after one more change. Wraps past 2^31-1 and skips -1, which means "any" in a request.
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
