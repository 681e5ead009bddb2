//! The watches of a session on the client's side: who waits for which path.
//!
//! One-shot as on the server. The server forgets them with the connection; this table is what setWatches
//! registers again on the next one.

use std::collections::BTreeMap;

use rowlock_proto::request::SetWatches;
use rowlock_proto::{ErrorCode, EventType, WatchedEvent, Zxid};
use tokio::sync::oneshot;

use crate::limits::{SET_WATCHES_BYTES, WATCHES_BEFORE_SWEEP};

pub(crate) type WatchSender = oneshot::Sender<WatchedEvent>;

/// Request that leaves the watch; together with the result the kind decides the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchedBy {
    Exists,
    GetData,
    GetChildren,
}

/// A watch that becomes one when its request succeeds.
pub(crate) struct WatchRequest {
    pub by: WatchedBy,
    pub path: String,
    pub event: WatchSender,
}

type Table = BTreeMap<String, Vec<WatchSender>>;

/// The list of a frame in which a table's paths go.
type ListOf = fn(&mut SetWatches) -> &mut Vec<String>;

/// All watches of one session. Dropping it tells the waiters that none will fire.
#[derive(Default)]
pub(crate) struct Watches {
    data: Table,
    exist: Table,
    child: Table,
    /// Number of watched paths at the next sweep.
    sweep_at: usize,
}

impl Watches {
    /// The reply of a watched request came: the server now keeps the watch, unless the error says otherwise.
    pub(crate) fn register(&mut self, request: WatchRequest, err: Option<ErrorCode>) {
        if self.data.len() + self.exist.len() + self.child.len() >= self.sweep_at.max(WATCHES_BEFORE_SWEEP) {
            self.sweep();
        }
        let table = match (request.by, err) {
            (WatchedBy::Exists | WatchedBy::GetData, None) => &mut self.data,
            (WatchedBy::Exists, Some(ErrorCode::NoNode)) => &mut self.exist,
            (WatchedBy::GetChildren, None) => &mut self.child,
            (_, Some(_)) => return,
        };
        let waiters = table.entry(request.path).or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(request.event);
    }

    /// Takes everybody whom the event is for.
    pub(crate) fn fire(&mut self, event: &WatchedEvent) -> Vec<WatchSender> {
        let Watches { data, exist, child, .. } = self;
        let tables: &mut [&mut Table] = match event.event_type {
            EventType::NodeCreated | EventType::NodeDataChanged => &mut [data, exist],
            EventType::NodeDeleted => &mut [data, exist, child],
            EventType::NodeChildrenChanged => &mut [child],
            EventType::None => &mut [],
        };
        tables.iter_mut().filter_map(|table| table.remove(&event.path)).flatten().collect()
    }

    /// Forgets watches without a waiting caller. The server keeps them; their events are dropped here.
    fn sweep(&mut self) {
        for table in [&mut self.data, &mut self.exist, &mut self.child] {
            table.retain(|_, waiters| {
                waiters.retain(|waiter| !waiter.is_closed());
                !waiters.is_empty()
            });
        }
        self.sweep_at = 2 * (self.data.len() + self.exist.len() + self.child.len());
    }

    /// The requests that register all watches on a new connection, each of bounded size. Forgets watches that
    /// no caller waits for any more.
    pub(crate) fn registrations(&mut self, relative_zxid: Zxid) -> Vec<SetWatches> {
        self.sweep();
        let mut frames = Vec::new();
        let mut frame = SetWatches { relative_zxid, ..SetWatches::default() };
        let mut bytes = 0;
        let tables: [(&mut Table, ListOf); 3] = [
            (&mut self.data, |f| &mut f.data),
            (&mut self.exist, |f| &mut f.exist),
            (&mut self.child, |f| &mut f.child),
        ];
        for (table, list_of) in tables {
            for path in table.keys() {
                if bytes + path.len() > SET_WATCHES_BYTES && bytes > 0 {
                    frames.push(std::mem::replace(
                        &mut frame,
                        SetWatches { relative_zxid, ..SetWatches::default() },
                    ));
                    bytes = 0;
                }
                bytes += path.len() + 4;
                list_of(&mut frame).push(path.clone());
            }
        }
        if bytes > 0 {
            frames.push(frame);
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(
        it: &mut Watches,
        by: WatchedBy,
        path: &str,
        err: Option<ErrorCode>,
    ) -> oneshot::Receiver<WatchedEvent> {
        let (event, receiver) = oneshot::channel();
        it.register(WatchRequest { by, path: path.to_owned(), event }, err);
        receiver
    }

    fn event(event_type: EventType, path: &str) -> WatchedEvent {
        WatchedEvent { zxid: Zxid(9), event_type, state: 3, path: path.to_owned() }
    }

    #[test]
    fn each_event_finds_the_tables_it_concerns_once() {
        let mut it = Watches::default();
        let _data = watch(&mut it, WatchedBy::GetData, "/a", None);
        let _exist = watch(&mut it, WatchedBy::Exists, "/a", Some(ErrorCode::NoNode));
        let _child = watch(&mut it, WatchedBy::GetChildren, "/a", None);
        assert_eq!(it.fire(&event(EventType::NodeChildrenChanged, "/a")).len(), 1);
        assert_eq!(it.fire(&event(EventType::NodeDeleted, "/b")).len(), 0);
        assert_eq!(it.fire(&event(EventType::NodeDeleted, "/a")).len(), 2);
        assert_eq!(it.fire(&event(EventType::NodeDeleted, "/a")).len(), 0);
    }

    #[test]
    fn a_failed_read_leaves_no_watch_but_exists_on_an_absent_znode_does() {
        let mut it = Watches::default();
        let _a = watch(&mut it, WatchedBy::GetData, "/a", Some(ErrorCode::NoNode));
        let _b = watch(&mut it, WatchedBy::Exists, "/b", Some(ErrorCode::NoAuth));
        let _c = watch(&mut it, WatchedBy::Exists, "/c", Some(ErrorCode::NoNode));
        let frames = it.registrations(Zxid(3));
        assert_eq!(frames.len(), 1);
        assert_eq!((frames[0].relative_zxid, &frames[0].exist[..]), (Zxid(3), &["/c".to_owned()][..]));
        assert!(frames[0].data.is_empty());
    }

    #[test]
    fn watches_nobody_waits_for_do_not_pile_up() {
        let mut it = Watches::default();
        let kept = watch(&mut it, WatchedBy::Exists, "/kept", None);
        for i in 0..10 * WATCHES_BEFORE_SWEEP {
            drop(watch(&mut it, WatchedBy::GetData, &format!("/{i}"), None));
            assert!(it.data.len() <= WATCHES_BEFORE_SWEEP);
        }
        assert!(it.data.contains_key("/kept"));
        drop(kept);
    }

    #[test]
    fn registrations_are_split_into_frames_and_skip_watches_nobody_waits_for() {
        let mut it = Watches::default();
        let name = "x".repeat(1000);
        let waiting: Vec<_> =
            (0..300).map(|i| watch(&mut it, WatchedBy::GetData, &format!("/{name}{i}"), None)).collect();
        drop(watch(&mut it, WatchedBy::GetChildren, "/gone", None));
        let frames = it.registrations(Zxid(1));
        assert_eq!(frames.len(), 3);
        assert_eq!(frames.iter().map(|f| f.data.len()).sum::<usize>(), waiting.len());
        assert!(frames.iter().all(|f| f.child.is_empty()));
        assert!(Watches::default().registrations(Zxid(1)).is_empty());
    }
}
