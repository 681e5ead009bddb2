//! Tests of every rule of the watch table, without a socket.

use std::collections::{BTreeMap, VecDeque};

use ChangeKind::{Created, DataChanged, Deleted};
use EventType::{NodeChildrenChanged, NodeCreated, NodeDataChanged, NodeDeleted};
use rowlock_proto::decode;

use super::*;
use crate::node::delivery::outbox::{self, Inbox};

/// A table with connections 1, 2, 3, ... and their inboxes.
struct Room {
    table: WatchTable,
    inboxes: BTreeMap<ConnectionId, Inbox>,
    acl: Vec<Acl>,
    last_zxid: i64,
}

const A: ConnectionId = ConnectionId(1);
const B: ConnectionId = ConnectionId(2);

fn digest(user: &str) -> Id {
    Id { scheme: "digest".to_owned(), id: format!("{user}:hash") }
}

impl Room {
    fn new() -> Room {
        let mut room =
            Room { table: WatchTable::new(), inboxes: BTreeMap::new(), acl: Acl::open(), last_zxid: 0 };
        room.join_all();
        room
    }

    /// Registers both connections, each with its own outbox.
    fn join_all(&mut self) {
        for (connection, user) in [(A, "a"), (B, "b")] {
            let (outbox, inbox) = outbox::channel();
            self.table.join(connection, &outbox, &Arc::from([digest(user)]));
            self.inboxes.insert(connection, inbox);
        }
    }

    fn watch(&mut self, connection: ConnectionId, path: &str, kinds: Kinds) {
        self.table.add(connection, path, kinds).unwrap();
        self.check();
    }

    fn change(&mut self, path: &str, kind: ChangeKind) {
        self.last_zxid += 1;
        let acl = self.acl.clone();
        self.table.fire(&Change {
            zxid: Zxid(self.last_zxid),
            path,
            kind,
            acl: &acl,
            parent_acl: &acl,
            rules: &Rules::default(),
        });
        self.check();
    }

    fn frames(&mut self, connection: ConnectionId) -> Vec<Bytes> {
        let mut messages = VecDeque::new();
        self.inboxes.get_mut(&connection).unwrap().take(&mut messages).unwrap();
        let frame = |message| match message {
            Message::Event(frame) => frame,
            other => panic!("{other:?}"),
        };
        messages.into_iter().map(frame).collect()
    }

    fn heard(&mut self, connection: ConnectionId) -> Vec<(EventType, String)> {
        let decoded = |mut frame: Bytes| {
            let mut frame = frame.split_off(4);
            let header = decode::reply_header(&mut frame).unwrap();
            assert!(header.zxid > Zxid(0) && header.err.is_none());
            let event = decode::event(&mut frame).unwrap();
            assert_eq!(event.state, SYNC_CONNECTED);
            (event.event_type, event.path)
        };
        self.frames(connection).into_iter().map(decoded).collect()
    }

    /// Asserts the invariant of [`WatchTable`].
    fn check(&self) {
        let table = &self.table;
        let (mut watches, mut recursive) = (0, 0);
        let mut of: BTreeMap<ConnectionId, (usize, BTreeSet<Arc<str>>)> = BTreeMap::new();
        for (path, on_path) in &table.paths {
            assert!(!on_path.is_empty(), "{path}");
            for (connection, kinds) in on_path {
                assert!(!kinds.is_empty(), "{path}");
                watches += kinds.count();
                recursive += kinds.and(Kinds::RECURSIVE).count();
                let entry = of.entry(*connection).or_default();
                entry.0 += kinds.count();
                entry.1.insert(path.clone());
            }
        }
        assert_eq!((table.watches, table.recursive), (watches, recursive));
        for (connection, watcher) in &table.watchers {
            let (watches, paths) = of.remove(connection).unwrap_or_default();
            assert_eq!((watcher.watches, &watcher.paths), (watches, &paths));
            assert_eq!(watcher.bytes, paths.iter().map(|path| weight(path)).sum::<usize>());
        }
        assert_eq!(table.bytes, table.watchers.values().map(|watcher| watcher.bytes).sum::<usize>());
        assert!(of.is_empty());
    }
}

fn told(events: &[(EventType, &str)]) -> Vec<(EventType, String)> {
    events.iter().map(|(event_type, path)| (*event_type, (*path).to_owned())).collect()
}

#[test]
fn one_shot_watches_fire_once() {
    let mut room = Room::new();
    room.watch(A, "/p", Kinds::DATA);
    room.watch(A, "/p", Kinds::DATA);
    assert_eq!(room.table.len(), 1, "the same watch set twice is one");
    room.change("/p", DataChanged);
    room.change("/p", DataChanged);
    assert_eq!(room.heard(A), told(&[(NodeDataChanged, "/p")]));
    room.watch(A, "/", Kinds::CHILD);
    room.change("/q", Created);
    room.change("/r", Created);
    assert_eq!(room.heard(A), told(&[(NodeChildrenChanged, "/")]));
    assert!(room.table.is_empty() && room.table.fired() == 2);
}

#[test]
fn watches_that_stay_are_left_beside_those_that_are_spent() {
    let mut room = Room::new();
    room.watch(A, "/p", Kinds::DATA);
    room.watch(B, "/p", Kinds::CHILD | Kinds::PERSISTENT);
    room.change("/p", DataChanged);
    assert_eq!((room.heard(A).len(), room.heard(B).len()), (1, 1));
    assert_eq!(room.table.kinds(A, "/p"), Kinds::NONE);
    assert_eq!(room.table.kinds(B, "/p"), Kinds::CHILD | Kinds::PERSISTENT);
    room.change("/p", Deleted);
    assert_eq!((room.heard(A).len(), room.heard(B).len()), (0, 1));
    assert_eq!(room.table.kinds(B, "/p"), Kinds::PERSISTENT);
}

#[test]
fn each_change_fires_its_tables() {
    // Connection A has both one-shot watches on the znode, B on its parent.
    type Events = &'static [(EventType, &'static str)];
    let cases: [(ChangeKind, Events, Events); 3] = [
        (Created, &[(NodeCreated, "/d/p")], &[(NodeChildrenChanged, "/d")]),
        (DataChanged, &[(NodeDataChanged, "/d/p")], &[]),
        (Deleted, &[(NodeDeleted, "/d/p")], &[(NodeChildrenChanged, "/d")]),
    ];
    for (kind, a, b) in cases {
        let mut room = Room::new();
        room.watch(A, "/d/p", Kinds::DATA | Kinds::CHILD);
        room.watch(B, "/d", Kinds::DATA | Kinds::CHILD);
        room.change("/d/p", kind);
        assert_eq!((room.heard(A), room.heard(B)), (told(a), told(b)), "{kind:?}");
        let spent = if kind == Deleted { Kinds::NONE } else { Kinds::CHILD };
        assert_eq!(room.table.kinds(A, "/d/p"), spent, "{kind:?}");
    }
}

#[test]
fn a_deletion_is_one_event_and_then_the_parents() {
    let mut room = Room::new();
    room.watch(A, "/d/p", Kinds::ALL);
    room.watch(A, "/d", Kinds::CHILD | Kinds::RECURSIVE);
    room.change("/d/p", Deleted);
    assert_eq!(room.heard(A), told(&[(NodeDeleted, "/d/p"), (NodeChildrenChanged, "/d")]));
}

#[test]
fn a_persistent_watch_gets_data_and_children_and_stays() {
    let mut room = Room::new();
    room.watch(A, "/p", Kinds::PERSISTENT);
    room.change("/p", Created);
    room.change("/p/k", Created);
    room.change("/p/k", DataChanged);
    room.change("/p/k", Deleted);
    room.change("/p", DataChanged);
    room.change("/p", Deleted);
    let want = [
        (NodeCreated, "/p"),
        (NodeChildrenChanged, "/p"),
        (NodeChildrenChanged, "/p"),
        (NodeDataChanged, "/p"),
        (NodeDeleted, "/p"),
    ];
    assert_eq!(room.heard(A), told(&want));
    assert_eq!(room.table.kinds(A, "/p"), Kinds::PERSISTENT);
}

#[test]
fn a_recursive_watch_gets_descendants_and_no_child_lists() {
    let mut room = Room::new();
    room.watch(A, "/r", Kinds::RECURSIVE);
    room.watch(A, "/", Kinds::RECURSIVE);
    room.watch(B, "/r/x", Kinds::RECURSIVE);
    room.change("/r", Created);
    room.change("/r/x/y", Created);
    room.change("/r/x/y", DataChanged);
    room.change("/rx", Created);
    room.change("/r/x/y", Deleted);
    let y = [(NodeCreated, "/r/x/y"), (NodeDataChanged, "/r/x/y"), (NodeDeleted, "/r/x/y")];
    assert_eq!(room.heard(B), told(&y));
    let a = [(NodeCreated, "/r"), y[0], y[1], (NodeCreated, "/rx"), y[2]];
    assert_eq!(room.heard(A), told(&a), "once each, however many ancestors are watched");
}

#[test]
fn only_readers_get_events_but_all_one_shot_watches_are_spent() {
    let mut room = Room::new();
    room.acl = vec![Acl { perms: perms::READ, id: digest("a") }];
    for connection in [A, B] {
        room.watch(connection, "/s", Kinds::DATA);
    }
    room.change("/s", DataChanged);
    assert_eq!(room.heard(A), told(&[(NodeDataChanged, "/s")]));
    assert_eq!(room.heard(B), []);
    assert!(room.table.is_empty());
    room.watch(B, "/", Kinds::CHILD);
    room.change("/s", Deleted);
    assert_eq!(room.heard(B), [], "the parent's ACL counts for the list of children");
    room.table.identify(B, Arc::from([digest("b"), digest("a")]));
    room.watch(B, "/s", Kinds::DATA);
    room.change("/s", Created);
    assert_eq!(room.heard(B), told(&[(NodeCreated, "/s")]));
}

#[test]
fn an_event_is_encoded_once_for_all_receivers() {
    let mut room = Room::new();
    room.watch(A, "/p", Kinds::DATA);
    room.watch(B, "/p", Kinds::PERSISTENT);
    room.change("/p", DataChanged);
    let (a, b) = (room.frames(A), room.frames(B));
    assert_eq!(a[0].as_ptr(), b[0].as_ptr());
    assert_eq!(room.table.fired(), 2);
}

#[test]
fn a_connection_that_leaves_takes_its_watches_with_it() {
    let mut room = Room::new();
    for path in ["/p", "/q", "/p/k"] {
        room.watch(A, path, Kinds::ALL);
    }
    room.watch(B, "/p", Kinds::DATA);
    assert_eq!(room.table.counts(), WatchCounts { connections: 2, paths: 3, watches: 13 });
    room.table.leave(A);
    room.table.leave(A);
    room.check();
    assert_eq!(room.table.counts(), WatchCounts { connections: 1, paths: 1, watches: 1 });
    room.watch(A, "/p", Kinds::DATA);
    assert_eq!(room.table.len(), 1, "who has left gets none");
    room.change("/p", Deleted);
    assert_eq!((room.heard(A), room.heard(B)), (vec![], told(&[(NodeDeleted, "/p")])));
}

#[test]
fn watches_are_removed_by_kind_and_the_removed_are_returned() {
    let mut room = Room::new();
    room.watch(A, "/p", Kinds::DATA | Kinds::CHILD);
    assert_eq!(room.table.remove(B, "/p", Kinds::ALL), Kinds::NONE);
    assert_eq!(room.table.remove(A, "/q", Kinds::ALL), Kinds::NONE);
    assert_eq!(room.table.remove(A, "/p", Kinds::DATA | Kinds::PERSISTENT), Kinds::DATA);
    room.check();
    assert_eq!(room.table.kinds(A, "/p"), Kinds::CHILD);
    assert_eq!(room.table.remove(A, "/p", Kinds::ALL), Kinds::CHILD);
    room.check();
    assert!(room.table.is_empty());
}

#[test]
fn the_listings_name_paths_and_connections_in_order() {
    let mut room = Room::new();
    room.watch(B, "/q", Kinds::DATA);
    room.watch(A, "/q", Kinds::CHILD);
    room.watch(A, "/p", Kinds::DATA);
    let by_path: Vec<_> = room.table.by_path().map(|(p, c)| (p, c.collect::<Vec<_>>())).collect();
    assert_eq!(by_path, [("/p", vec![A]), ("/q", vec![A, B])]);
    let by_connection: Vec<_> = room.table.by_connection().map(|(c, p)| (c, p.collect::<Vec<_>>())).collect();
    assert_eq!(by_connection, [(A, vec!["/p", "/q"]), (B, vec!["/q"])]);
}

#[test]
fn the_bound_of_one_connections_watches_spares_the_others() {
    let mut room = Room::new();
    let long = format!("/{}", "x".repeat(999));
    let most = weight("/p") + weight(&long);
    room.table = WatchTable::bounded_by(WatchBounds { connection: most, ..WatchBounds::default() });
    room.join_all();
    room.watch(A, "/p", Kinds::DATA | Kinds::CHILD);
    room.watch(A, &long, Kinds::DATA);
    room.watch(A, "/p", Kinds::PERSISTENT);
    assert_eq!(room.table.add(A, "/q", Kinds::DATA), Err(TooManyWatches));
    room.watch(B, "/q", Kinds::DATA);
    room.change(&long, DataChanged);
    assert_eq!(room.table.add(A, &format!("{long}x"), Kinds::DATA), Err(TooManyWatches), "a byte too long");
    room.watch(A, "/q", Kinds::DATA);
    room.table.remove(A, "/p", Kinds::ALL);
    room.check();
    room.table.leave(A);
    room.table.leave(B);
    assert_eq!(room.table.bytes(), 0);
}

#[test]
fn above_the_total_bound_each_connection_keeps_a_small_one() {
    let mut room = Room::new();
    let (all, small) = (weight("/pp"), weight("/p"));
    room.table = WatchTable::bounded_by(WatchBounds { connection: 1 << 20, all, small });
    room.join_all();
    room.watch(A, "/pp", Kinds::DATA);
    assert_eq!(room.table.add(A, "/p", Kinds::DATA), Err(TooManyWatches));
    assert_eq!(room.table.add(B, "/pp", Kinds::DATA), Err(TooManyWatches));
    room.watch(B, "/p", Kinds::DATA);
    room.change("/pp", DataChanged);
    room.watch(A, "/qq", Kinds::DATA);
}

#[test]
fn one_connection_gets_the_small_bound_only_under_a_full_total() {
    let bounds = WatchBounds { connection: 1_000, all: 5_000, small: 100 };
    for (own, more, while_little, while_much) in
        [(0, 100, true, true), (0, 101, true, false), (99, 2, true, false), (900, 101, false, false)]
    {
        let room = (bounds.has_room(own, 4_999, more), bounds.has_room(own, 5_000, more));
        assert_eq!(room, (while_little, while_much), "{own} and {more}");
    }
}
