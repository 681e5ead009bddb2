//! The watches of one session that have not fired, and the reports of those that have.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rowlock_client::{OneshotWatch, WatchedEvent};

use crate::history::client::{ClientFact, WatchId};

/// The most watches that a client keeps at once; it sets no more before some have fired.
const WATCHES: usize = 64;

/// By number, which is the order in which they were asked for.
#[derive(Default)]
pub(super) struct Watches(Mutex<BTreeMap<WatchId, OneshotWatch>>);

impl Watches {
    /// One more may be set.
    pub(super) fn has_room(&self) -> bool {
        self.0.lock().len() < WATCHES
    }

    pub(super) fn add(&self, id: WatchId, watch: OneshotWatch) {
        self.0.lock().insert(id, watch);
    }

    /// Asks each watch once; what has fired since the last time, in the order in which it happened.
    pub(super) fn fired(&self) -> Vec<ClientFact> {
        let mut fired: Vec<(WatchId, WatchedEvent)> = Vec::new();
        self.0.lock().retain(|id, watch| match look(watch) {
            Poll::Pending => true,
            Poll::Ready(event) => {
                // An error means that the session is over, and nothing fires any more.
                fired.extend(event.ok().map(|event| (*id, event)));
                false
            }
        });
        fired.sort_by_key(|(id, event)| (event.zxid, *id));
        let fact = |(watch, event): (WatchId, WatchedEvent)| {
            let WatchedEvent { zxid, event_type: kind, path, .. } = event;
            ClientFact::Event { watch, kind, path, zxid }
        };
        fired.into_iter().map(fact).collect()
    }
}

/// No task is woken: a task with a reply, or an idle one, asks again.
fn look(watch: &mut OneshotWatch) -> Poll<Result<WatchedEvent, rowlock_client::Error>> {
    pin!(watch.changed()).poll(&mut Context::from_waker(Waker::noop()))
}
