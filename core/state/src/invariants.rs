//! Invariants between the parts of the state, checked from scratch. For tests and the simulator.

use rowlock_proto::SessionId;

use crate::acl_table::SharedAcl;
use crate::arena::Number;
use crate::machine::{Machine, RESERVED};
use crate::tree::Totals;
use crate::znode::{Kind, Znode};

/// Totals counted by a walk over all znodes.
#[derive(Default)]
struct Recount {
    totals: Totals,
    reapable: Vec<String>,
    ephemerals: Vec<(SessionId, String)>,
    acls: Vec<SharedAcl>,
}

impl Machine {
    /// Recomputes every index, counter and digest from the znodes and sessions. O(state): not for production
    /// paths.
    pub fn check(&self) -> Result<(), String> {
        let found = self.walk()?;
        if found.totals != *self.tree.totals() {
            return Err(format!("counted {:?}, kept {:?}", found.totals, self.tree.totals()));
        }
        self.tree.check()?;
        self.tree.reapable().check()?;
        if !self.tree.reapable().iter().map(|(path, ())| &**path).eq(sorted(found.reapable.iter())) {
            return Err("the index of containers and TTL znodes is wrong".to_owned());
        }
        self.tree.acls().check(found.acls.iter())?;
        self.sessions.check()?;
        self.locks.check()?;
        self.check_contenders()?;
        self.check_upgrade()?;
        if self.rules_text()? != *self.rules && !crate::mutant::is("first-rules-stay") {
            return Err("the rules are not those of their znode".to_owned());
        }
        let mut owned: Vec<_> = found.ephemerals.iter().map(|(id, path)| (*id, path.as_str())).collect();
        owned.sort_unstable();
        let registered = self
            .sessions()
            .flat_map(|(id, session)| session.ephemerals_in_order().into_iter().map(move |path| (id, path)));
        if !registered.eq(owned) {
            return Err("the sessions' ephemerals are not the ephemeral znodes".to_owned());
        }
        let mut spots = self.sessions().flat_map(|(_, session)| session.spots());
        if !spots.all(|((parent, path), id)| {
            self.tree.node(id).parent == parent && self.tree.find(path) == Some(id)
        }) {
            return Err("a session has a znode under another number or parent than the tree".to_owned());
        }
        match RESERVED.iter().find(|path| self.tree.get(path).is_none()) {
            Some(path) => Err(format!("{path} is missing")),
            None => Ok(()),
        }
    }

    /// Checks that every queue position is an ephemeral znode of its session.
    fn check_contenders(&self) -> Result<(), String> {
        let has_had_children = |znode: &Znode| znode.meta.has_had_children();
        if let Some(path) = self.locks.idle().find(|path| !self.tree.get(path).is_some_and(has_had_children))
        {
            return Err(format!("{path} is remembered as a lock and has never had a place"));
        }
        for (path, node, limit) in self.locks.znodes() {
            if self.limit_of(path) != limit {
                return Err(format!("{path} is granted by the limit {limit:?}, its znode says another"));
            }
            if node.is_some_and(|node| self.tree.find(path) != Some(node)) {
                return Err(format!("{path} is another znode than its queue knows"));
            }
        }
        for lock in self.locks() {
            if let Some((key, _)) =
                lock.contenders().find(|(key, it)| self.tree.find(&key.path) != Some(it.node))
            {
                return Err(format!("{} is another znode than its queue knows", key.path));
            }
            for contender in lock.holders().chain(lock.waiters()) {
                let znode = self.tree.get(&contender.path);
                let is_right = znode.is_some_and(|znode| {
                    znode.meta.kind == Kind::Ephemeral(contender.session)
                        && znode.meta.czxid.0 == contender.token.0
                        && crate::tree::split(&contender.path)
                            .is_some_and(|(lock_of, _)| lock_of == lock.path())
                });
                if !is_right {
                    return Err(format!("{} is in a queue and no znode of its session", contender.path));
                }
            }
        }
        Ok(())
    }

    fn walk(&self) -> Result<Recount, String> {
        let mut found = Recount::default();
        let mut todo = vec![(String::new(), Number::FIRST)];
        while let Some((path, of)) = todo.pop() {
            let znode = self.tree.node(of);
            let shown = if path.is_empty() { "/" } else { &path };
            found.totals.add_hashed(shown, znode, znode.hash(shown));
            found.acls.push(znode.acl.clone());
            self.check_znode(shown, znode)?;
            match znode.meta.kind {
                Kind::Persistent => {}
                Kind::Ephemeral(session) => found.ephemerals.push((session, shown.to_owned())),
                Kind::Container | Kind::Ttl(_) => found.reapable.push(shown.to_owned()),
            }
            for (name, id) in znode.children.iter() {
                if self.tree.node(*id).parent != of {
                    return Err(format!("{path}/{} has another parent", &**name));
                }
                todo.push((format!("{path}/{}", &**name), *id));
            }
        }
        Ok(found)
    }

    fn check_znode(&self, path: &str, znode: &Znode) -> Result<(), String> {
        let meta = &znode.meta;
        znode.children.check().map_err(|error| format!("{path}: {error}"))?;
        rowlock_proto::path::validate(path).map_err(|error| format!("{path}: {error}"))?;
        let below: u64 = self.tree.children(znode).map(|(_, child)| 1 + child.descendants).sum();
        let bytes_below: u64 =
            self.tree.children(znode).map(|(_, child)| child.data_len() as u64 + child.bytes_below).sum();
        let zxids = [meta.czxid, meta.mzxid, meta.pzxid];
        let wrong = [
            (below != znode.descendants, "descendants are miscounted"),
            (bytes_below != znode.bytes_below, "the bytes below are miscounted"),
            (znode.acl.entries().is_empty(), "the ACL is empty"),
            (znode.acl.hash() != SharedAcl::new(znode.acl.entries().to_vec()).hash(), "stale ACL hash"),
            (znode.data_hash_is_stale(), "stale data hash"),
            (!znode.is_counted(path), "stale hash"),
            (zxids.iter().any(|zxid| *zxid > self.last_zxid), "a zxid lies in the future"),
            (meta.mzxid < meta.czxid || meta.pzxid < meta.czxid, "changed before it was created"),
            (meta.ctime_ms > self.time_ms || meta.mtime_ms > self.time_ms, "a time lies in the future"),
            (meta.mtime_ms < meta.ctime_ms, "changed at a time before it was created"),
            (
                matches!(meta.kind, Kind::Ephemeral(_)) && !znode.children.is_empty(),
                "an ephemeral has children",
            ),
            (matches!(meta.kind, Kind::Ephemeral(id) if self.session(id).is_none()), "its session has ended"),
        ];
        match wrong.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, what)) => Err(format!("{path}: {what}")),
            None => Ok(()),
        }
    }
}

fn sorted<'a>(paths: impl Iterator<Item = &'a String>) -> impl Iterator<Item = &'a str> {
    let mut paths: Vec<&str> = paths.map(String::as_str).collect();
    paths.sort_unstable();
    paths.into_iter()
}
