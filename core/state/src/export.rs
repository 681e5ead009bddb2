//! Export of the whole tree, znode by znode, to another form. Changes nothing.

use rowlock_proto::Stat;
use rowlock_proto::acl::Acl;

use crate::machine::Machine;
use crate::znode::{Kind, Znode};

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
