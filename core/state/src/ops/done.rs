//! An operation that has been carried out: what others are told of it, and what it takes to take it back.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::Acl;
use rowlock_proto::{SessionId, Stat, Version, Zxid};

use crate::acl::SharedAcl;
use crate::arena::Number;
use crate::locks::{Contender, Key};
use crate::outcome::{Change, ChangeKind, EventSink};
use crate::rules::Rules;
use crate::tree::{ParentCounters, Path, Tree};

/// An operation that has been carried out.
pub(crate) struct Done {
    /// Full path of the znode; empty if it is one of an ephemeral that has gone, which is shared already.
    pub path: String,
    /// The path that the session's list shares.
    pub(super) shared: Option<Arc<str>>,
    /// Where its last name begins.
    pub name_at: usize,
    /// The znode's Stat after it (the last one, if deleted).
    pub stat: Stat,
    /// The place in its parent's queue that a created znode is.
    pub contender: Option<Contender>,
    pub(super) event: Option<Event>,
    pub(super) undo: Undo,
}

pub(super) struct Event {
    pub kind: ChangeKind,
    /// The znode's, unless it can be looked up in what it takes to undo this.
    pub acl: Option<SharedAcl>,
    pub parent_acl: SharedAcl,
}

/// How to undo a change.
pub(super) enum Undo {
    Nothing,
    Create { id: Number, parent: ParentCounters },
    Delete { id: Number, parent: ParentCounters },
    SetData { id: Number, data: Option<Bytes>, before: BeforeData, bytes_diff: i64 },
}

/// The numbers of a znode before a change of its data.
pub(super) struct BeforeData {
    pub mzxid: Zxid,
    pub mtime_ms: i64,
    pub version: Version,
}

impl Done {
    /// A change that makes no place in a queue.
    pub(super) fn new(path: String, stat: Stat, event: Option<Event>, undo: Undo) -> Self {
        Done { path, shared: None, name_at: 0, stat, contender: None, event, undo }
    }

    /// The change of the znode, if it is visible to clients.
    pub(crate) fn kind(&self) -> Option<ChangeKind> {
        self.event.as_ref().map(|event| event.kind)
    }

    /// The number of a znode that has come or gone. Until this is published, the tree has it in either case.
    pub(crate) fn id(&self) -> Option<Number> {
        match self.undo {
            Undo::Create { id, .. } | Undo::Delete { id, .. } => Some(id),
            Undo::Nothing | Undo::SetData { .. } => None,
        }
    }

    /// The data that a new znode has, or a deleted one had.
    pub(crate) fn data<'a>(&self, tree: &'a Tree) -> Option<&'a [u8]> {
        tree.node(self.id()?).data().map(|data| &data[..])
    }

    /// Whether it is a deleted znode that had ever had children.
    pub(crate) fn was_parent(&self, tree: &Tree) -> bool {
        matches!(self.undo, Undo::Delete { id, .. } if tree.node(id).meta.has_had_children())
    }

    /// Full path of the znode.
    pub(crate) fn path(&self) -> &str {
        self.shared.as_deref().unwrap_or(&self.path)
    }

    pub(crate) fn parent(&self) -> &str {
        Path::cut(self.path(), self.name_at).parent()
    }

    /// Its key as a place in a queue, if it is ephemeral.
    pub(crate) fn key(&self) -> Option<Key> {
        let is_ephemeral = self.stat.ephemeral_owner != SessionId::NONE;
        debug_assert_eq!(self.shared.is_some(), is_ephemeral, "ephemeral paths are shared, and no others");
        Some(Key { czxid: self.stat.czxid, path: self.shared.clone()? })
    }

    /// The ACL of what came or went, and of its parent.
    pub(crate) fn acls<'a>(&'a self, tree: &'a Tree) -> (&'a [Acl], &'a [Acl]) {
        let Some(Event { acl, parent_acl, .. }) = &self.event else { return (&[], &[]) };
        let acl = self.id().map(|id| &tree.node(id).acl).or(acl.as_ref());
        (acl.map_or(&[][..], SharedAcl::entries), parent_acl.entries())
    }

    /// Tells the sink, if there is something to tell.
    pub(crate) fn fire<S: EventSink + ?Sized>(
        &self,
        (tree, rules): (&Tree, &Rules),
        zxid: Zxid,
        sink: &mut S,
    ) {
        if let Some(Event { kind, .. }) = &self.event {
            let (acl, parent_acl) = self.acls(tree);
            debug_assert!(
                !acl.is_empty() && !parent_acl.is_empty(),
                "an event without ACLs is told to nobody"
            );
            sink.changed(&Change { zxid, path: self.path(), kind: *kind, acl, parent_acl, rules });
        }
    }
}
