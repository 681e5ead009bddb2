//! Watches: the paths that connections of this node watch, and the delivery of events for each change.
//!
//! In the flow: apply passes every change to [`WatchTable::fire`], which pushes encoded events into the
//! outboxes of the watching connections; connections add and remove watches while they hold the read lock of
//! the state. Watches belong to a connection, live in this node's memory and are not replicated.
//!
//! Must never wait, touch a socket, or read the state.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::BitOr;
use std::sync::Arc;

use crate::limits;
use bytes::{Bytes, BytesMut};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_metrics::Metrics;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::{EventType, WatchedEvent};
use rowlock_proto::{Zxid, encode, path as znode_path};
use rowlock_state::acl;
use rowlock_state::outcome::{Change, ChangeKind};
use rowlock_state::rules::Rules;

use crate::node::delivery::outbox::{Message, Outbox};

/// A client connection of this node, numbered from 1 in the order of accepting; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Approximate cost of a watched path beside its bytes: the entries in the table's indexes.
const OVERHEAD: usize = 256;

/// Returns a connection's cost of a path, for all kinds of watches together.
///
/// The table keeps a path of several connections once and counts the path for each connection, so that the
/// weight of a connection's watches does not depend on the others.
fn weight(path: &str) -> usize {
    OVERHEAD + path.len()
}

/// Bounds on the weight of a node's watches.
#[derive(Clone, Copy, Debug)]
pub struct WatchBounds {
    pub connection: usize,
    /// Total weight from which each connection may have only `small`.
    pub all: usize,
    /// Enough for a client that waits for a few locks.
    pub small: usize,
}

impl Default for WatchBounds {
    fn default() -> Self {
        WatchBounds {
            connection: limits::WATCH_BYTES_PER_CONNECTION,
            all: limits::WATCH_BYTES_ALL,
            small: limits::WATCH_BYTES_SMALL,
        }
    }
}

impl WatchBounds {
    /// Returns whether a connection with weight `own` may add `more`, at a total of `all`.
    fn has_room(&self, own: usize, all: usize, more: usize) -> bool {
        more == 0 || own + more <= if all < self.all { self.connection } else { self.small }
    }
}

/// Set of kinds of watches: a connection has at most one watch of each kind on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    pub const NONE: Kinds = Kinds(0);
    /// One-shot, set by getData and exists: fires when the znode is created, changed or deleted.
    pub const DATA: Kinds = Kinds(1);
    /// One-shot, set by getChildren: fires when the list of children changes or the znode is deleted.
    pub const CHILD: Kinds = Kinds(2);
    /// Set by addWatch: fires on both of the above, and stays.
    pub const PERSISTENT: Kinds = Kinds(4);
    /// Set by addWatch: fires on creation, change and deletion of the znode and all its descendants, and
    /// stays.
    pub const RECURSIVE: Kinds = Kinds(8);
    pub const ALL: Kinds = Kinds(15);

    pub fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 & other.0)
    }

    pub fn without(self, other: Kinds) -> Kinds {
        Kinds(self.0 & !other.0)
    }

    /// Returns whether the sets share a kind.
    pub fn intersects(self, other: Kinds) -> bool {
        !self.and(other).is_empty()
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of kinds, which is the number of watches in the set.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl BitOr for Kinds {
    type Output = Kinds;
    fn bitor(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }
}

/// `WatchedEvent::state` of all server events: SyncConnected.
const SYNC_CONNECTED: i32 = 3;

/// Maps paths to the connections that watch them.
///
/// Invariant: `watchers[c].paths` holds exactly the paths under which `paths` mentions `c`; no set of kinds
/// in `paths` is empty; `watches`, `recursive` and `bytes` are totals over `paths`.
#[derive(Default)]
pub struct WatchTable {
    paths: BTreeMap<Arc<str>, BTreeMap<ConnectionId, Kinds>>,
    watchers: BTreeMap<ConnectionId, Watcher>,
    watches: usize,
    recursive: usize,
    /// Total weight of all watches.
    bytes: usize,
    fired: u64,
    bounds: WatchBounds,
}

struct Watcher {
    outbox: Outbox,
    identities: Arc<[Id]>,
    paths: BTreeSet<Arc<str>>,
    watches: usize,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchCounts {
    /// Connections with at least one watch.
    pub connections: usize,
    /// Paths with at least one watch.
    pub paths: usize,
    pub watches: usize,
}

/// The connection's watches have reached their maximum weight ([`WatchBounds`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many watches on one connection")]
pub struct TooManyWatches;

/// An event, with the access rules for the choice of its receivers.
struct EventDraft<'a> {
    zxid: Zxid,
    event_type: EventType,
    path: &'a str,
    acl: &'a [Acl],
    rules: &'a Rules,
}

impl WatchTable {
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty table with other bounds.
    pub fn bounded_by(bounds: WatchBounds) -> Self {
        WatchTable { bounds, ..Self::default() }
    }

    /// Registers a connection before its first watch. The identities decide which events the connection may
    /// receive. Call this before each watch: most connections have none, and need no entry. Idempotent.
    pub fn join(&mut self, connection: ConnectionId, outbox: &Outbox, identities: &Arc<[Id]>) {
        self.watchers.entry(connection).or_insert_with(|| Watcher {
            outbox: outbox.clone(),
            identities: identities.clone(),
            paths: BTreeSet::new(),
            watches: 0,
            bytes: 0,
        });
    }

    /// Replaces the identities of a registered connection. Other connections bring their identities when they
    /// join.
    pub fn identify(&mut self, connection: ConnectionId, identities: Arc<[Id]>) {
        if let Some(watcher) = self.watchers.get_mut(&connection) {
            watcher.identities = identities;
        }
    }

    /// Removes a connection and its watches. Idempotent.
    pub fn leave(&mut self, connection: ConnectionId) {
        let Some(watcher) = self.watchers.remove(&connection) else { return };
        self.bytes -= watcher.bytes;
        for path in watcher.paths {
            let on_path = self.paths.get_mut(&path).expect("the indexes agree");
            let kinds = on_path.remove(&connection).expect("the indexes agree");
            if on_path.is_empty() {
                self.paths.remove(&path);
            }
            self.forget(kinds);
        }
    }

    /// Sets watches of the given kinds, each at most once. A connection that has not joined, or has left,
    /// gets none.
    pub fn add(&mut self, connection: ConnectionId, path: &str, kinds: Kinds) -> Result<(), TooManyWatches> {
        let Some(watcher) = self.watchers.get_mut(&connection) else { return Ok(()) };
        let here = self.paths.get(path).and_then(|p| p.get(&connection)).copied().unwrap_or_default();
        let new = kinds.without(here);
        if new.is_empty() {
            return Ok(());
        }
        let more = if here.is_empty() { weight(path) } else { 0 };
        if decides!("watches-are-full", !self.bounds.has_room(watcher.bytes, self.bytes, more)) {
            return Err(TooManyWatches);
        }
        let key = match self.paths.get_key_value(path) {
            Some((key, _)) => key.clone(),
            None => Arc::from(path),
        };
        watcher.paths.insert(key.clone());
        watcher.watches += new.count();
        watcher.bytes += more;
        self.bytes += more;
        self.paths.entry(key).or_default().insert(connection, here | new);
        self.watches += new.count();
        self.recursive += new.and(Kinds::RECURSIVE).count();
        Ok(())
    }

    /// Removes watches of the given kinds, and returns the kinds that existed.
    pub fn remove(&mut self, connection: ConnectionId, path: &str, kinds: Kinds) -> Kinds {
        let Some(on_path) = self.paths.get_mut(path) else { return Kinds::NONE };
        let Some(here) = on_path.get_mut(&connection) else { return Kinds::NONE };
        let gone = here.and(kinds);
        *here = here.without(gone);
        let watcher = self.watchers.get_mut(&connection).expect("the indexes agree");
        watcher.watches -= gone.count();
        if here.is_empty() {
            on_path.remove(&connection);
            self.bytes -= watcher.forget(path);
            if on_path.is_empty() {
                self.paths.remove(path);
            }
        }
        self.forget(gone);
        gone
    }

    pub fn kinds(&self, connection: ConnectionId, path: &str) -> Kinds {
        self.paths.get(path).and_then(|p| p.get(&connection)).copied().unwrap_or_default()
    }

    fn forget(&mut self, kinds: Kinds) {
        self.watches -= kinds.count();
        self.recursive -= kinds.and(Kinds::RECURSIVE).count();
    }

    pub fn counts(&self) -> WatchCounts {
        let connections = self.watchers.values().filter(|w| w.watches > 0).count();
        WatchCounts { connections, paths: self.paths.len(), watches: self.watches }
    }

    pub fn len(&self) -> usize {
        self.watches
    }

    /// Approximate size of all watches in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the gauges of watches.
    pub fn show(&self, metrics: &Metrics) {
        metrics.watches.set(self.len() as u64);
        metrics.watch_bytes.set(self.bytes() as u64);
    }

    pub fn is_empty(&self) -> bool {
        self.watches == 0
    }

    /// Number of events pushed so far.
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Iterates over all watched paths with their connections, in order.
    pub fn by_path(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = ConnectionId>)> {
        self.paths.iter().map(|(path, on_path)| (&**path, on_path.keys().copied()))
    }

    /// Iterates over all watching connections with their paths, in order.
    pub fn by_connection(&self) -> impl Iterator<Item = (ConnectionId, impl Iterator<Item = &str>)> {
        let watching = self.watchers.iter().filter(|(_, w)| w.watches > 0);
        watching.map(|(id, w)| (*id, w.paths.iter().map(|p| &**p)))
    }

    /// Sends the events of a change to all watching connections, and removes the one-shot watches on that
    /// path, also of connections without the right to READ the znode, which receive nothing.
    ///
    /// Order for a connection: the znode's own event, then its parent's NodeChildrenChanged. A connection
    /// receives a NodeDeleted once, for all kinds of watches together.
    pub fn fire(&mut self, change: &Change<'_>) {
        if self.is_empty() {
            return;
        }
        let (event_type, spent) = match change.kind {
            ChangeKind::Created => (EventType::NodeCreated, Kinds::DATA),
            ChangeKind::DataChanged => (EventType::NodeDataChanged, Kinds::DATA),
            ChangeKind::Deleted => (EventType::NodeDeleted, Kinds::DATA | Kinds::CHILD),
        };
        let draft = EventDraft {
            zxid: change.zxid,
            event_type,
            path: change.path,
            acl: change.acl,
            rules: change.rules,
        };
        let once = if mutant::is(Mutant::PersistentOnce) { Kinds::PERSISTENT } else { Kinds::NONE };
        let mut receivers =
            self.spend(change.path, spent | once, spent | Kinds::PERSISTENT | Kinds::RECURSIVE);
        if self.recursive > 0 {
            self.recursive_above(change.path, &mut receivers);
        }
        self.deliver(&draft, &receivers);
        if decides!("change-is-of-data", change.kind == ChangeKind::DataChanged) {
            return;
        }
        if let Some(parent) = znode_path::parent(change.path) {
            let receivers = self.spend(parent, Kinds::CHILD, Kinds::CHILD | Kinds::PERSISTENT);
            let event_type = EventType::NodeChildrenChanged;
            let (acl, rules) = (change.parent_acl, change.rules);
            let draft = EventDraft { zxid: change.zxid, event_type, path: parent, acl, rules };
            self.deliver(&draft, &receivers);
        }
    }

    /// Returns the connections with a watch of the `heard` kinds on exactly this path, in order, and removes
    /// their `spent` kinds. Looks the path up once, however many connections watch it.
    fn spend(&mut self, path: &str, spent: Kinds, heard: Kinds) -> Vec<ConnectionId> {
        debug_assert!(!spent.intersects(Kinds::RECURSIVE), "only one-shot watches are spent");
        let Some(on_path) = self.paths.get_mut(path) else { return Vec::new() };
        let mut receivers = Vec::with_capacity(on_path.len());
        let mut left = on_path.len();
        for (connection, kinds) in
            on_path.iter_mut().filter(|(_, kinds)| decides!("watch-hears-change", kinds.intersects(heard)))
        {
            receivers.push(*connection);
            let gone = kinds.and(spent);
            if gone.is_empty() {
                continue;
            }
            *kinds = kinds.without(gone);
            self.watches -= gone.count();
            let watcher = self.watchers.get_mut(connection).expect("the indexes agree");
            watcher.watches -= gone.count();
            if kinds.is_empty() {
                self.bytes -= watcher.forget(path);
                left -= 1;
            }
        }
        if left == 0 {
            self.paths.remove(path);
        } else if left < on_path.len() {
            on_path.retain(|_, kinds| !kinds.is_empty());
        }
        receivers
    }

    /// Adds the connections that watch an ancestor recursively and are not among `receivers` yet.
    fn recursive_above(&self, path: &str, receivers: &mut Vec<ConnectionId>) {
        let mut above = znode_path::parent(path);
        while let Some(ancestor) = above {
            if let Some(on_path) = self.paths.get(ancestor) {
                let recursive = on_path
                    .iter()
                    .filter(|(_, kinds)| decides!("watch-is-recursive", kinds.intersects(Kinds::RECURSIVE)));
                receivers.extend(recursive.map(|(id, _)| *id));
            }
            above = znode_path::parent(ancestor);
        }
        receivers.sort_unstable();
        receivers.dedup();
    }

    fn deliver(&mut self, draft: &EventDraft<'_>, receivers: &[ConnectionId]) {
        let mut frame: Option<Bytes> = None;
        for connection in receivers {
            let watcher = self.watchers.get(connection).expect("the indexes agree");
            let who = &watcher.identities;
            let is_shown = decides!("watcher-may-see", draft.rules.may_see(draft.path, who));
            let is_readable = acl::may(draft.acl, perms::READ, who) || mutant::is(Mutant::EventsIgnoreAcls);
            if !(is_readable && is_shown) {
                continue;
            }
            // Encoded once for all receivers.
            let frame = frame.get_or_insert_with(|| event_frame(draft.zxid, draft.event_type, draft.path));
            watcher.outbox.push(Message::Event(frame.clone()));
            self.fired += 1;
        }
    }
}

impl Watcher {
    /// Removes the watch on the path. Returns its weight.
    fn forget(&mut self, path: &str) -> usize {
        let there = self.paths.remove(path);
        assert!(there, "the indexes agree");
        self.bytes -= weight(path);
        weight(path)
    }
}

pub(crate) fn event_frame(zxid: Zxid, event_type: EventType, path: &str) -> Bytes {
    let event = WatchedEvent { zxid, event_type, state: SYNC_CONNECTED, path: path.to_owned() };
    let mut frame = BytesMut::with_capacity(64 + path.len());
    encode::event(&event, &mut frame);
    frame.freeze()
}

#[cfg(test)]
mod tests;
