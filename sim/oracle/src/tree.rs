//! Znodes: create, delete, setData, setACL, check and multi, with ZooKeeper's checks in ZooKeeper's order.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, perms};
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_proto::path::{parent, validate};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::response::OpResult;
use rowlock_proto::{CreateMode, ErrorCode, SessionId, Stat, Version};
use rowlock_state::Lifetime;
use rowlock_state::outcome::ChangeKind;

use crate::book::{Author, Cause, Change, Oracle, Position, Reply, Znode, split};
use crate::rights::{permit, resolve};

pub(crate) const CONFIG: &str = "/zookeeper/config";
const RESERVED: [&str; 4] = ["/", "/zookeeper", CONFIG, "/zookeeper/quota"];
const TTL_MAX_MS: i64 = 0xff_ffff_ffff;

impl Oracle {
    pub(crate) fn znode(&self, path: &str) -> Option<&Znode> {
        self.znodes.get(path).map(|znode| &**znode)
    }

    /// Iterates over the znodes from this path on, in order.
    pub(crate) fn from(&self, path: &str) -> impl Iterator<Item = (&Arc<str>, &Arc<Znode>)> {
        self.znodes.range::<str, _>((Bound::Included(path), Bound::Unbounded))
    }

    /// Returns the znode at `path`, or else the nearest one above.
    pub(crate) fn nearest<'a>(&'a self, mut path: &'a str) -> &'a Znode {
        loop {
            match (self.znode(path), parent(path)) {
                (Some(znode), _) => return znode,
                (None, Some(above)) => path = above,
                (None, None) => path = "/",
            }
        }
    }

    /// Changes a znode, or removes it, and remembers the value before.
    fn store(&mut self, path: Arc<str>, znode: Option<Znode>) {
        let before = match znode {
            Some(znode) => self.znodes.insert(path.clone(), Arc::new(znode)),
            None => self.znodes.remove(&path),
        };
        self.undo.push((path, before));
    }

    /// Reverts all changes of znodes since this length of the list.
    pub(crate) fn revert(&mut self, length: usize) {
        for (path, before) in self.undo.drain(length..).rev() {
            match before {
                Some(znode) => self.znodes.insert(path, znode),
                None => self.znodes.remove(&path),
            };
        }
    }

    fn count_child(&mut self, path: &str, by: i32) {
        let (above, _) = split(path).expect("a path has a parent");
        let mut znode = self.znode(above).expect("the caller has found the parent").clone();
        znode.stat.num_children += by;
        znode.creates = znode.creates.wrapping_add(by.max(0));
        znode.stat.cversion.0 = znode.stat.cversion.0.wrapping_add(1);
        znode.stat.pzxid = self.zxid;
        self.store(above.into(), Some(znode));
    }

    fn lists(&self, path: &str, own: &[Acl]) -> (Vec<Acl>, Vec<Acl>) {
        let above = split(path).and_then(|(above, _)| self.znode(above));
        (own.to_vec(), above.map(|above| above.acl.to_vec()).unwrap_or_default())
    }

    pub(crate) fn create(
        &mut self,
        by: &Author,
        create: &Create,
        ttl_ms: Option<i64>,
    ) -> Reply<(Change, Stat)> {
        let mode = CreateMode::from_flags(create.flags).ok_or(ErrorCode::BadArguments)?;
        let has_good_ttl = ttl_ms.is_none_or(|ttl_ms| (1..=TTL_MAX_MS).contains(&ttl_ms));
        if mode.has_ttl() != ttl_ms.is_some() || !has_good_ttl || !create.path.contains('/') {
            return Err(ErrorCode::BadArguments);
        }
        self.permit_create(by, &create.path, mode, create.data.as_deref())?;
        if create.path.contains('\0') {
            return Err(ErrorCode::BadArguments);
        }
        let lifetime = match mode {
            _ if mode.is_ephemeral() => Lifetime::Session,
            CreateMode::Container => Lifetime::Container,
            _ => ttl_ms.map_or(Lifetime::Persistent, Lifetime::Ttl),
        };
        let data = create.data.clone();
        let (path, acl) = (&create.path, create.acl.as_deref());
        let (mut change, stat) = self.create_as(by, path, (data, acl), mode.is_sequential(), lifetime)?;
        if mode == CreateMode::EphemeralSequential {
            change.position = Some(Position::plain(&change.path, by, self.zxid, self.time_ms));
        }
        Ok((change, stat))
    }

    /// Creates a znode without a look at the rules of locks.
    pub(crate) fn create_as(
        &mut self,
        by: &Author,
        path: &str,
        (data, acl): (Option<Bytes>, Option<&[Acl]>),
        is_sequential: bool,
        lifetime: Lifetime,
    ) -> Reply<(Change, Stat)> {
        let acl: Arc<[Acl]> = resolve(acl, &by.who)?.into();
        let (above, _) = split(path).ok_or(ErrorCode::BadArguments)?;
        let parent = self.znode(above).ok_or(ErrorCode::NoNode)?;
        permit(parent, perms::CREATE, &by.who)?;
        let path = if is_sequential { format!("{path}{:010}", parent.creates) } else { path.to_owned() };
        validate(&path).map_err(|_| ErrorCode::BadArguments)?;
        if path == "/" || path == ANNOUNCEMENT || self.znode(&path).is_some() {
            return Err(ErrorCode::NodeExists);
        }
        if parent.lifetime == Lifetime::Session {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        self.check_quota(by, &path, 1, length(&data))?;
        let owner = if lifetime == Lifetime::Session { by.session } else { SessionId::NONE };
        let stat = Stat {
            czxid: self.zxid,
            mzxid: self.zxid,
            pzxid: self.zxid,
            ctime_ms: self.time_ms,
            mtime_ms: self.time_ms,
            ephemeral_owner: owner,
            data_length: length(&data) as i32,
            ..Stat::default()
        };
        let lists = self.lists(&path, &acl);
        let change = Change::new(&path, ChangeKind::Created, lists, data.clone(), owner, self.zxid);
        self.store(change.path.clone(), Some(Znode { data, acl, stat, creates: 0, lifetime }));
        self.count_child(&path, 1);
        Ok((change, stat))
    }

    pub(crate) fn delete(&mut self, by: &Author, path: &str, version: Version) -> Reply<Change> {
        let (above, _) = split(path).ok_or(ErrorCode::BadArguments)?;
        if path.contains('\0') || RESERVED.contains(&path) {
            return Err(ErrorCode::BadArguments);
        }
        permit(self.znode(above).ok_or(ErrorCode::NoNode)?, perms::DELETE, &by.who)?;
        let znode = self.znode(path).ok_or(ErrorCode::NoNode)?;
        self.permit_delete(by, path, znode.stat.ephemeral_owner)?;
        expect(znode.stat.version, version)?;
        if znode.stat.num_children > 0 {
            return Err(ErrorCode::NotEmpty);
        }
        Ok(self.remove(path))
    }

    /// Deletes an existing znode without children.
    pub(crate) fn remove(&mut self, path: &str) -> Change {
        let znode = self.znode(path).expect("the caller has found the znode").clone();
        let lists = self.lists(path, &znode.acl);
        let Stat { ephemeral_owner: owner, czxid, .. } = znode.stat;
        let change = Change::new(path, ChangeKind::Deleted, lists, znode.data, owner, czxid);
        self.store(change.path.clone(), None);
        self.count_child(path, -1);
        change
    }

    pub(crate) fn set_data(&mut self, by: &Author, set: &SetData) -> Reply<(Change, Stat)> {
        validate(&set.path).map_err(|_| ErrorCode::BadArguments)?;
        let znode = self.znode(&set.path).ok_or(ErrorCode::NoNode)?;
        permit(znode, perms::WRITE, &by.who)?;
        self.permit_set_data(by, set, znode.stat.ephemeral_owner)?;
        self.check_quota(by, &set.path, 0, length(&set.data) - length(&znode.data))?;
        expect(znode.stat.version, set.version)?;
        let version = next(znode.stat.version);
        Ok(self.replace(&set.path, set.data.clone(), version))
    }

    /// Replaces the data of an existing znode.
    pub(crate) fn replace(&mut self, path: &str, data: Option<Bytes>, version: Version) -> (Change, Stat) {
        let mut znode = self.znode(path).expect("the caller has found the znode").clone();
        znode.stat.data_length = length(&data) as i32;
        znode.data = data.clone();
        (znode.stat.version, znode.stat.mzxid) = (version, self.zxid);
        znode.stat.mtime_ms = self.time_ms;
        let (stat, lists) = (znode.stat, self.lists(path, &znode.acl));
        let kind = ChangeKind::DataChanged;
        let change = Change::new(path, kind, lists, data, stat.ephemeral_owner, stat.czxid);
        self.store(path.into(), Some(znode));
        (change, stat)
    }

    pub(crate) fn set_acl(&mut self, by: &Author, set: &SetAcl) -> Reply<Stat> {
        validate(&set.path).map_err(|_| ErrorCode::BadArguments)?;
        let acl = resolve(set.acl.as_deref(), &by.who)?;
        let mut znode = self.znode(&set.path).ok_or(ErrorCode::NoNode)?.clone();
        permit(&znode, perms::ADMIN, &by.who)?;
        self.permit_set_acl(by, &set.path, znode.stat.ephemeral_owner)?;
        expect(znode.stat.aversion, set.version)?;
        znode.stat.aversion = next(znode.stat.aversion);
        znode.acl = acl.into();
        self.store(set.path.as_str().into(), Some(znode));
        Ok(self.shown(&set.path).expect("the znode is there").1)
    }

    /// Runs all operations or none.
    pub(crate) fn multi(&mut self, by: &Author, ops: &[Op]) -> Vec<OpResult> {
        let (mut changes, mut results) = (Vec::new(), Vec::new());
        for op in ops {
            match self.op(by, op, &mut changes) {
                Ok(result) => results.push(result),
                Err(code) => {
                    self.revert(0);
                    results.fill(OpResult::Error(None));
                    results.push(OpResult::Error(Some(code)));
                    results.resize(ops.len(), OpResult::Error(Some(ErrorCode::RuntimeInconsistency)));
                    return results;
                }
            }
        }
        self.end_delays(&changes);
        self.publish(&Cause::of(by, None), changes);
        results
    }

    fn op(&mut self, by: &Author, op: &Op, changes: &mut Vec<Change>) -> Reply<OpResult> {
        let (change, result) = match op {
            Op::Create(create) if create.flags != CreateMode::Container.flags() => {
                let (change, _) = self.create(by, create, None)?;
                let path = change.path.to_string();
                (change, OpResult::Create(path))
            }
            Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) => {
                let (change, stat) = self.create(by, create, None)?;
                let path = change.path.to_string();
                (change, OpResult::Create2(path, stat))
            }
            Op::CreateTtl(create, ttl_ms) => {
                let (change, stat) = self.create(by, create, Some(*ttl_ms))?;
                let path = change.path.to_string();
                (change, OpResult::Create2(path, stat))
            }
            Op::Delete { path, version } => (self.delete(by, path, *version)?, OpResult::Delete),
            Op::SetData(set) => {
                let (change, stat) = self.set_data(by, set)?;
                (change, OpResult::SetData(stat))
            }
            Op::Check { path, version } => {
                validate(path).map_err(|_| ErrorCode::BadArguments)?;
                self.permit_see(by, path)?;
                let znode = self.znode(path).ok_or(ErrorCode::NoNode)?;
                permit(znode, perms::READ, &by.who)?;
                expect(znode.stat.version, *version)?;
                return Ok(OpResult::Check);
            }
        };
        changes.push(change);
        Ok(result)
    }

    /// Counts znodes and bytes at `path` and below.
    fn used(&self, path: &str) -> (i64, i64) {
        let below = format!("{path}/");
        let at = self.znodes.get(path).into_iter();
        let rest = self.from(&below).take_while(|(path, _)| path.starts_with(&below));
        at.chain(rest.map(|(_, znode)| znode))
            .fold((0, 0), |(count, bytes), znode| (count + 1, bytes + length(&znode.data)))
    }

    /// Checks the hard limits of the innermost quota around a path.
    fn check_quota(&self, by: &Author, path: &str, count_diff: i64, bytes_diff: i64) -> Reply<()> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).filter(|end| *end > 0);
        let limits = |end| self.znode(&format!("/zookeeper/quota{}/zookeeper_limits", &path[..end]));
        let innermost = ends.filter_map(|end| Some((&path[..end], limits(end)?))).next_back();
        let Some((path, limits)) = innermost.filter(|_| by.stamp.enforce_quota) else { return Ok(()) };
        let text = String::from_utf8(limits.data.clone().unwrap_or_default().to_vec()).unwrap_or_default();
        let pairs = || text.split([',', ';']).filter_map(|pair| pair.split_once('='));
        let hard = |key: &str| {
            let value = pairs().rfind(|(name, _)| *name == key)?.1;
            value.split('=').next()?.parse::<i64>().ok().filter(|value| *value >= 0)
        };
        let (count, bytes) = self.used(path);
        let is_over = |hard: Option<i64>, used, diff| diff != 0 && hard.is_some_and(|max| used + diff > max);
        let is_refused = is_over(hard("countHardLimit"), count, count_diff)
            || is_over(hard("byteHardLimit"), bytes, bytes_diff);
        if is_refused { Err(ErrorCode::QuotaExceeded) } else { Ok(()) }
    }

    /// Returns data and Stat as readers see them: the statistics of a quota are counted.
    pub(crate) fn shown(&self, path: &str) -> Option<(Option<Bytes>, Stat)> {
        let znode = self.znode(path)?;
        let subject =
            path.strip_prefix("/zookeeper/quota/").and_then(|rest| rest.strip_suffix("/zookeeper_stats"));
        let Some(subject) = subject else { return Some((znode.data.clone(), znode.stat)) };
        let (count, bytes) = self.used(&format!("/{subject}"));
        let text = format!("count={count},bytes={bytes}");
        let stat = Stat { data_length: text.len() as i32, ..znode.stat };
        Some((Some(text.into()), stat))
    }
}

fn length(data: &Option<Bytes>) -> i64 {
    data.as_ref().map_or(0, Bytes::len) as i64
}

fn expect(version: Version, expected: Version) -> Reply<()> {
    if expected == Version::ANY || version == expected { Ok(()) } else { Err(ErrorCode::BadVersion) }
}

/// Returns the version after a change; -1 means any version and is left out.
fn next(version: Version) -> Version {
    let next = version.0.wrapping_add(1);
    Version(if next == -1 { 0 } else { next })
}
