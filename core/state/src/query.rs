//! Reads for clients and for the node itself, and the export of the whole tree. Changes nothing.
//!
//! `who` never contains `world:anyone`, an identity of every client.

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::{ErrorCode, SessionId, Stat};

use crate::acl::{self, shown_to};
use crate::guard::decides;
use crate::machine::Machine;
use crate::ops::permit;
use crate::sessions::Session;
use crate::znode::{Kind, Znode, saturating_i32};

impl Machine {
    /// Runs exists. Needs READ, as in ZooKeeper 3.9. Refuses a path with a NUL; other reads answer such a
    /// path like the path of a missing znode.
    pub fn exists(&self, path: &str, who: &[Id]) -> Result<Stat, ErrorCode> {
        if path.contains('\0') {
            return Err(ErrorCode::BadArguments);
        }
        Ok(self.shown(path, self.readable(path, perms::READ, who)?.stat()))
    }

    /// Runs getData. Null data differs from empty data. A quota's `zookeeper_stats` shows the present usage.
    pub fn get_data(&self, path: &str, who: &[Id]) -> Result<(Option<Bytes>, Stat), ErrorCode> {
        let znode = self.readable(path, perms::READ, who)?;
        match self.shown_data(path) {
            Some(text) => Ok((Some(text.into()), self.shown(path, znode.stat()))),
            None => Ok((znode.data().cloned(), znode.stat())),
        }
    }

    /// Runs getChildren and getChildren2. Returns names in order.
    pub fn get_children(&self, path: &str, who: &[Id]) -> Result<(Vec<String>, Stat), ErrorCode> {
        let znode = self.readable(path, perms::READ, who)?;
        let names = znode.children.iter().map(|(name, _)| String::from(&**name)).collect();
        Ok((names, self.shown(path, znode.stat())))
    }

    /// Runs one page of getChildren: the names behind `after`, in order, up to `most` names or this many
    /// bytes, but at least one name if there is one. Also returns whether more names follow. The cost is in
    /// proportion to the page, not to the znode.
    pub fn get_children_after(
        &self,
        path: &str,
        after: &str,
        (most, most_bytes): (usize, usize),
        who: &[Id],
    ) -> Result<(Vec<String>, bool, Stat), ErrorCode> {
        let znode = self.readable(path, perms::READ, who)?;
        let mut names: Vec<String> = Vec::new();
        let (mut bytes, mut is_more) = (0, false);
        // No name is empty: an empty `after` leaves out nothing.
        for (name, _) in znode.children.from(after.as_bytes()).filter(|(name, _)| ***name != *after) {
            bytes += name.len();
            if !names.is_empty() && (names.len() >= most || bytes > most_bytes) {
                is_more = true;
                break;
            }
            names.push(String::from(&**name));
        }
        assert!(!is_more || !names.is_empty(), "a page that others follow has a name");
        Ok((names, is_more, self.shown(path, znode.stat())))
    }

    /// Runs getACL. Needs READ or ADMIN; hides digests without ADMIN.
    pub fn get_acl(&self, path: &str, who: &[Id]) -> Result<(Vec<Acl>, Stat), ErrorCode> {
        let znode = self.readable(path, perms::READ | perms::ADMIN, who)?;
        Ok((shown_to(znode.acl.entries(), who), self.shown(path, znode.stat())))
    }

    /// Runs getAllChildrenNumber: counts znodes below `path` at any depth.
    pub fn all_children_number(&self, path: &str, who: &[Id]) -> Result<i32, ErrorCode> {
        Ok(saturating_i32(self.readable(path, perms::READ, who)?.descendants))
    }

    /// Runs getEphemerals: returns the session's znodes with a path that begins with `prefix`, in order.
    pub fn ephemerals(&self, session: SessionId, prefix: &str) -> Vec<String> {
        let Some(session) = self.sessions.get(session) else { return Vec::new() };
        let below = session.ephemerals().filter(|path| path.starts_with(prefix));
        let mut paths: Vec<String> = below.map(str::to_owned).collect();
        paths.sort_unstable();
        paths
    }

    /// Returns the Stat of a znode without a check of permissions, for setWatches.
    pub fn stat(&self, path: &str) -> Option<Stat> {
        self.tree.get(path).map(|znode| self.shown(path, znode.stat()))
    }

    pub fn acl(&self, path: &str) -> Option<&[Acl]> {
        self.tree.get(path).map(|znode| znode.acl.entries())
    }

    /// Returns whether a client may read the znode, if present: by its ACL and by the rules of locks.
    pub fn may_read(&self, path: &str, who: &[Id]) -> bool {
        decides!(
            "znode-is-visible",
            self.rules.may_see(path, who)
                && self.acl(path).is_none_or(|list| acl::may(list, perms::READ, who))
        )
    }

    /// Returns the approximate bytes of all distinct ACLs.
    pub fn acl_bytes(&self) -> u64 {
        self.tree.acls().bytes()
    }

    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(id)
    }

    /// Returns the leader's clock at the last batch, milliseconds since 1970.
    pub fn time_ms(&self) -> i64 {
        self.time_ms
    }

    /// Iterates over open sessions in order of their ids.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter()
    }

    fn readable(&self, path: &str, perm: i32, who: &[Id]) -> Result<&Znode, ErrorCode> {
        self.permit_see(path, who)?;
        let znode = self.tree.get(path).ok_or(ErrorCode::NoNode)?;
        if crate::mutant::is("reads-ignore-acls") {
            return Ok(znode);
        }
        permit(&znode.acl, perm, who).map(|()| znode)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    Persistent,
    /// Lives as long as its session.
    Session,
    /// Lives until its last child is gone.
    Container,
    /// Lives for this many milliseconds without children and changes.
    Ttl(i64),
}

/// A znode with its data, ACL, Stat and lifetime.
#[derive(Clone, Copy, Debug)]
pub struct Exported<'a> {
    /// Null differs from empty.
    pub data: Option<&'a [u8]>,
    pub acl: &'a [Acl],
    /// The Stat visible to clients.
    pub stat: Stat,
    /// Number of children created so far: the next sequential child's number.
    pub creates: i32,
    pub lifetime: Lifetime,
}

impl Machine {
    /// Calls `visit` with every znode and its path, parents before children, without checks of permissions.
    pub fn each_znode<'a>(&'a self, mut visit: impl FnMut(&str, Exported<'a>)) {
        let root = self.tree.root();
        visit("/", exported(root));
        let (mut path, mut znodes) = (String::new(), 1);
        // Iterators on the way down, with the lengths of their paths. A loop instead of recursion: a tree may
        // be deeper than the stack.
        let mut below = vec![(0, root.children.iter())];
        while let Some((length, siblings)) = below.last_mut() {
            path.truncate(*length);
            match siblings.next() {
                Some((name, id)) => {
                    let znode = self.tree.node(*id);
                    path.push('/');
                    path.push_str(name);
                    znodes += 1;
                    visit(&path, exported(znode));
                    below.push((path.len(), znode.children.iter()));
                }
                None => drop(below.pop()),
            }
        }
        assert_eq!(znodes, self.tree.totals().znodes, "every znode is shown, and each once");
    }
}

fn exported(znode: &Znode) -> Exported<'_> {
    let lifetime = match znode.meta.kind {
        Kind::Persistent => Lifetime::Persistent,
        Kind::Ephemeral(_) => Lifetime::Session,
        Kind::Container => Lifetime::Container,
        Kind::Ttl(ms) => Lifetime::Ttl(ms),
    };
    let data = znode.data().map(|data| &data[..]);
    Exported { data, acl: znode.acl.entries(), stat: znode.stat(), creates: znode.meta.creates, lifetime }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exists_refuses_a_path_with_a_nul() {
        let (machine, path, who) = (Machine::default(), "/a\0", &[]);
        assert_eq!(machine.exists(path, who), Err(ErrorCode::BadArguments));
        assert_eq!(machine.get_data(path, who), Err(ErrorCode::NoNode));
        assert_eq!(machine.get_children(path, who), Err(ErrorCode::NoNode));
        assert_eq!(machine.get_acl(path, who), Err(ErrorCode::NoNode));
        assert_eq!(machine.all_children_number(path, who), Err(ErrorCode::NoNode));
    }

    #[test]
    fn a_page_of_names_ends_at_either_bound_and_has_one_at_least() {
        let (machine, who) = (Machine::default(), &[]);
        let page = |after, most| machine.get_children_after("/zookeeper", after, most, who);
        let names = |after, most| page(after, most).map(|(names, is_more, _)| (names.join(","), is_more));
        assert_eq!(names("", (9, 99)), Ok(("config,quota".to_owned(), false)));
        assert_eq!(names("", (1, 99)), Ok(("config".to_owned(), true)));
        assert_eq!(names("", (9, 7)), Ok(("config".to_owned(), true)));
        assert_eq!(names("", (9, 0)), Ok(("config".to_owned(), true)), "one is given in any case");
        assert_eq!(names("config", (9, 99)), Ok(("quota".to_owned(), false)));
        assert_eq!(names("d", (9, 99)), Ok(("quota".to_owned(), false)), "it may be gone meanwhile");
        assert_eq!(names("quota", (9, 99)), Ok((String::new(), false)));
        assert_eq!(page("", (9, 99)).unwrap().2.num_children, 2);
        assert_eq!(names("/", (9, 99)).map(|_| ()), Ok(()));
        assert_eq!(machine.get_children_after("/no", "", (9, 99), who), Err(ErrorCode::NoNode));
    }
}
