//! A completed operation: the event for watchers, the state for a revert, and the cause.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::{SessionId, Stat, Version, Zxid};

use crate::acl_table::SharedAcl;
use crate::arena::Number;
use crate::command::Author;
use crate::locks::{Contender, Key};
use crate::outcome::{Change, ChangeKind, EndReason, EventSink};
use crate::rules::Rules;
use crate::tree::{ParentCounters, Path, Tree};

pub(crate) struct Done {
    /// Full path of the znode; empty for a deleted ephemeral, whose path `shared` has.
    pub path: String,
    /// Path shared with the session's list of ephemerals.
    pub(crate) shared: Option<Arc<str>>,
    /// Index of the last name's first byte.
    pub name_at: usize,
    /// The znode's Stat after the operation (the last Stat, if deleted).
    pub stat: Stat,
    /// The created znode as a position in its parent's queue.
    pub contender: Option<Contender>,
    pub(crate) event: Option<Event>,
    pub(crate) undo: Undo,
}

pub(crate) struct Event {
    pub kind: ChangeKind,
    /// The znode's ACL, unless `undo` leads to the znode.
    pub acl: Option<SharedAcl>,
    pub parent_acl: SharedAcl,
}

/// State for the revert of a change.
pub(crate) enum Undo {
    Nothing,
    Create { id: Number, parent: ParentCounters },
    Delete { id: Number, parent: ParentCounters },
    SetData { id: Number, data: Option<Bytes>, before: BeforeData, bytes_diff: i64 },
}

/// Numbers of a znode before a change of the data.
pub(crate) struct BeforeData {
    pub mzxid: Zxid,
    pub mtime_ms: i64,
    pub version: Version,
}

impl Done {
    /// Makes a change without a queue position.
    pub(crate) fn new(path: String, stat: Stat, event: Option<Event>, undo: Undo) -> Self {
        Done { path, shared: None, name_at: 0, stat, contender: None, event, undo }
    }

    /// Returns the kind of change, if visible to clients.
    pub(crate) fn kind(&self) -> Option<ChangeKind> {
        self.event.as_ref().map(|event| event.kind)
    }

    /// Returns the number of a created or deleted znode. The tree keeps both until the change is published.
    pub(crate) fn id(&self) -> Option<Number> {
        match self.undo {
            Undo::Create { id, .. } | Undo::Delete { id, .. } => Some(id),
            Undo::Nothing | Undo::SetData { .. } => None,
        }
    }

    /// Returns the data of a created or deleted znode.
    pub(crate) fn data<'a>(&self, tree: &'a Tree) -> Option<&'a [u8]> {
        tree.node(self.id()?).data().map(|data| &data[..])
    }

    /// Returns true for a deleted znode that ever had children.
    pub(crate) fn was_parent(&self, tree: &Tree) -> bool {
        matches!(self.undo, Undo::Delete { id, .. } if tree.node(id).meta.has_had_children())
    }

    /// Returns the full path of the znode.
    pub(crate) fn path(&self) -> &str {
        self.shared.as_deref().unwrap_or(&self.path)
    }

    pub(crate) fn parent(&self) -> &str {
        Path::cut(self.path(), self.name_at).parent()
    }

    /// Returns the key as a queue position, if the znode is ephemeral.
    pub(crate) fn key(&self) -> Option<Key> {
        let is_ephemeral = self.stat.ephemeral_owner != SessionId::NONE;
        debug_assert_eq!(self.shared.is_some(), is_ephemeral, "ephemeral paths are shared, and no others");
        Some(Key { czxid: self.stat.czxid, path: self.shared.clone()? })
    }

    /// Returns the ACLs of the created or deleted znode and of its parent.
    pub(crate) fn acls<'a>(&'a self, tree: &'a Tree) -> (&'a [Acl], &'a [Acl]) {
        let Some(Event { acl, parent_acl, .. }) = &self.event else { return (&[], &[]) };
        let acl = self.id().map(|id| &tree.node(id).acl).or(acl.as_ref());
        (acl.map_or(&[][..], SharedAcl::entries), parent_acl.entries())
    }

    /// Passes the change to the sink, if visible to clients.
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

/// Cause of created and deleted znodes, which decides the reasons of ended positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause<'a> {
    pub zxid: Zxid,
    pub session: SessionId,
    /// Identities of the client behind the command.
    pub who: &'a [Id],
    /// Reason for the end of positions, if the command determines the reason; otherwise the owner of a
    /// position does.
    pub why: Option<EndReason>,
    /// Limit of positions granted. Each further lock gets a delay that is over at once, and a `LockDue` of
    /// its own grants the lock.
    pub grants_max: usize,
}

impl<'a> Cause<'a> {
    pub(crate) fn new(by: &Author<'a>, why: Option<EndReason>) -> Self {
        Cause { zxid: by.zxid, session: by.session, who: by.who, why, grants_max: usize::MAX }
    }

    /// Makes the cause of a command without a session.
    pub(crate) fn of_the_cluster(zxid: Zxid) -> Self {
        Cause { zxid, session: SessionId::NONE, who: &[], why: None, grants_max: usize::MAX }
    }
}
