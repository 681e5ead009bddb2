//! persistent-watches: while a connection lasts, a session receives every change after the registration that
//! matches one of its persistent watches: once, in the order of the log, before a reply shows the change. The
//! session receives no other event. A watch registered again on another connection begins there; the node
//! reports no changes in between.

use std::collections::BTreeMap;

use rowlock_proto::{EventType, SessionId, Zxid};

use super::super::Invariant;
use crate::history::client::{ClientFact, ClientId, Follow, ZnodeChange};
use crate::history::{Book, Fact};

/// Change of a znode that a watch may match.
struct Change {
    zxid: Zxid,
    kind: EventType,
    path: String,
}

struct Follower {
    client: ClientId,
    /// Zxid of the registration at the node, by path and whether the watch is recursive.
    watches: BTreeMap<(String, bool), Zxid>,
    /// The watches are registered on a live connection.
    is_armed: bool,
    /// Index of the first change that the node may still report.
    next: usize,
}

impl Follower {
    fn is_about(&self, change: &Change) -> bool {
        let is_here = |path: &str, is_recursive| {
            self.watches.get(&(path.to_owned(), is_recursive)).is_some_and(|since| change.zxid > *since)
        };
        if is_here(&change.path, false) {
            return true;
        }
        if change.kind == EventType::NodeChildrenChanged {
            return false;
        }
        let above = change.path.match_indices('/').skip(1).map(|(at, _)| &change.path[..at]);
        is_here(&change.path, true) || above.into_iter().any(|path| is_here(path, true))
    }
}

#[derive(Default)]
pub struct PersistentWatches {
    changes: Vec<Change>,
    followers: BTreeMap<SessionId, Follower>,
}

impl PersistentWatches {
    fn changed(&mut self, path: &str, zxid: Zxid, change: ZnodeChange) {
        let kind = match change {
            ZnodeChange::Created => EventType::NodeCreated,
            ZnodeChange::Deleted => EventType::NodeDeleted,
            ZnodeChange::Data => EventType::NodeDataChanged,
            ZnodeChange::Child { .. } => EventType::NodeChildrenChanged,
        };
        self.changes.push(Change { zxid, kind, path: path.to_owned() });
    }

    fn follower(&mut self, client: ClientId, session: SessionId, what: &Follow) -> Result<(), String> {
        let changes = &self.changes;
        let new = || Follower { client, watches: BTreeMap::new(), is_armed: true, next: 0 };
        let follower = self.followers.entry(session).or_insert_with(new);
        let behind = |zxid: Zxid| changes.partition_point(|change| change.zxid <= zxid);
        let due = |follower: &Follower| {
            let at = (follower.next..changes.len()).find(|at| follower.is_about(&changes[*at]));
            at.filter(|_| follower.is_armed)
        };
        let who = format!("client {} in session {session}", client.0);
        match what {
            Follow::Added { path, is_recursive, since } => {
                follower.watches.entry((path.clone(), *is_recursive)).or_insert(*since);
            }
            Follow::Removed { path, is_recursive } => {
                follower.watches.remove(&(path.clone(), *is_recursive));
            }
            Follow::Cut => follower.is_armed = false,
            Follow::Rearmed { since } => {
                follower.watches.values_mut().for_each(|from| *from = *since);
                (follower.is_armed, follower.next) = (true, behind(*since));
            }
            Follow::Told { kind, path, zxid } => {
                let told = |change: &Change| (change.kind, &change.path, change.zxid) == (*kind, path, *zxid);
                match due(follower) {
                    Some(at) if told(&changes[at]) => follower.next = at + 1,
                    Some(at) => {
                        let Change { zxid: due, kind: wanted, path: of } = &changes[at];
                        return Err(format!(
                            "{who} was told of {kind:?} {path} at {zxid}, and {wanted:?} {of} at {due} was next"
                        ));
                    }
                    None => {
                        return Err(format!(
                            "{who} was told of {kind:?} {path} at {zxid}, which it does not watch or was told of"
                        ));
                    }
                }
            }
            Follow::Shown { zxid } => {
                if let Some(Change { zxid: due, kind, path }) =
                    due(follower).map(|at| &changes[at]).filter(|change| change.zxid <= *zxid)
                {
                    return Err(format!(
                        "{who} was shown the state of {zxid} before it was told of {kind:?} {path} at {due}"
                    ));
                }
                follower.next = follower.next.max(behind(*zxid));
            }
        }
        Ok(())
    }
}

impl Invariant for PersistentWatches {
    fn name(&self) -> &'static str {
        "persistent-watches"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Znode(znode) => self.changed(&znode.path, znode.zxid, znode.change),
            Fact::Client { client, what: ClientFact::Follows { session, what }, .. } => {
                return self.follower(*client, *session, what);
            }
            Fact::Client { client, what: ClientFact::Ended, .. } => {
                self.followers.retain(|_, follower| follower.client != *client);
            }
            _ => {}
        }
        Ok(())
    }
}
