//! Pending watches of one session. Fired watches are reported in the order of their events.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rowlock_client::{OneshotWatch, WatchedEvent};

use crate::history::client::{ClientFact, WatchId};

/// Largest number of pending watches of a client.
const WATCHES: usize = 64;

/// By number, in the order of their requests.
#[derive(Default)]
pub(super) struct Watches(Mutex<BTreeMap<WatchId, OneshotWatch>>);

impl Watches {
    pub(super) fn has_room(&self) -> bool {
        self.0.lock().len() < WATCHES
    }

    pub(super) fn add(&self, id: WatchId, watch: OneshotWatch) {
        self.0.lock().insert(id, watch);
    }

    /// Polls each watch once. Returns the events since the last call, in the order of their zxids.
    pub(super) fn fired(&self) -> Vec<ClientFact> {
        let mut fired: Vec<(WatchId, WatchedEvent)> = Vec::new();
        self.0.lock().retain(|id, watch| match poll_now(watch) {
            Poll::Pending => true,
            Poll::Ready(event) => {
                // An error means that the session is over; the watch never fires.
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

/// Registers no waker: tasks with a reply, and the ticker, poll again.
fn poll_now(watch: &mut OneshotWatch) -> Poll<Result<WatchedEvent, rowlock_client::Error>> {
    pin!(watch.changed()).poll(&mut Context::from_waker(Waker::noop()))
}
