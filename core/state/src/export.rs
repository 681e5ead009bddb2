//! The whole tree, znode by znode, for writing it down in another form. Nothing here changes anything.

use rowlock_proto::Stat;
use rowlock_proto::acl::Acl;

use crate::machine::Machine;
use crate::znode::{Kind, Znode};

/// How long a znode lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is deleted.
    Persistent,
    /// As long as its session.
    Session,
    /// Until it has had children and has none left.
    Container,
    /// This many milliseconds without children and changes.
    Ttl(i64),
}

/// A znode with all that belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct Exported<'a> {
    /// Null and empty are different.
    pub data: Option<&'a [u8]>,
    pub acl: &'a [Acl],
    /// The Stat that clients see.
    pub stat: Stat,
    /// Children created so far: the number of the next sequential one.
    pub creates: i32,
    /// How long it lives.
    pub lifetime: Lifetime,
}

impl Machine {
    /// Shows `visit` every znode with its path, parents before their children, without asking for permission.
    pub fn each_znode<'a>(&'a self, mut visit: impl FnMut(&str, Exported<'a>)) {
        let root = self.tree.root();
        visit("/", exported(root));
        let (mut path, mut znodes) = (String::new(), 1);
        // The iterators on the way down, with the lengths of their paths; a loop, because a tree may be
        // deeper than the stack.
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
