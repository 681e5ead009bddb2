//! A watched value: receivers see the latest value, and wake in the order of their waits.
//!
//! tokio's own watch spreads its waiters over lists and wakes them in random order.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

/// Error of a receiver after the last sender is gone and the last value has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("channel closed")
    }
}

impl std::error::Error for Closed {}

struct WatchState<T> {
    value: RwLock<T>,
    version: AtomicU64,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
    senders: usize,
}

impl<T> WatchState<T> {
    fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.waiters.lock().wakers);
        for waker in wakers.into_values() {
            waker.wake();
        }
    }
}

/// Reference to the current value, under a read lock: never hold it across an await.
pub struct Ref<'a, T> {
    guard: RwLockReadGuard<'a, T>,
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

pub struct Sender<T> {
    shared: Arc<WatchState<T>>,
}

/// Receiver of the value. A clone has seen the same values as its original.
pub struct Receiver<T> {
    shared: Arc<WatchState<T>>,
    seen: u64,
}

/// Makes a channel with `init`, already seen by the receiver.
pub fn channel<T>(init: T) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(WatchState {
        value: RwLock::new(init),
        version: AtomicU64::new(0),
        waiters: Mutex::new(Waiters { senders: 1, ..Waiters::default() }),
    });
    (Sender { shared: shared.clone() }, Receiver { shared, seen: 0 })
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.waiters.lock().senders += 1;
        Sender { shared: self.shared.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let last = {
            let mut waiters = self.shared.waiters.lock();
            waiters.senders -= 1;
            waiters.senders == 0
        };
        if last {
            self.shared.wake_all();
        }
    }
}

impl<T> Sender<T> {
    /// Sets the value and wakes all receivers.
    pub fn send(&self, value: T) {
        self.modify(|current| *current = value);
    }

    /// Changes the value in ticket and wakes all receivers.
    pub fn modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|current| {
            change(current);
            true
        });
    }

    /// Changes the value in ticket, and wakes the receivers if `change` returns true. Returns the result of
    /// `change`.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        {
            let mut value = self.shared.value.write();
            if !change(&mut value) {
                return false;
            }
            self.shared.version.fetch_add(1, Ordering::Release);
        }
        self.shared.wake_all();
        true
    }

    pub fn borrow(&self) -> Ref<'_, T> {
        Ref { guard: self.shared.value.read() }
    }

    /// Makes a receiver, with the current value already seen.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { seen: self.shared.version.load(Ordering::Acquire), shared: self.shared.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Receiver { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Receiver<T> {
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref { guard: self.shared.value.read() }
    }

    /// Returns the current value and marks it seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let guard = self.shared.value.read();
        self.seen = self.shared.version.load(Ordering::Acquire);
        Ref { guard }
    }

    /// Returns true if this receiver has not seen the current value.
    pub fn has_changed(&self) -> bool {
        self.shared.version.load(Ordering::Acquire) != self.seen
    }

    /// Waits for an unseen value and marks it seen. Cancel safe.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        let seen = Changed { shared: &self.shared, seen: self.seen, ticket: None }.await?;
        self.seen = seen;
        Ok(())
    }

    /// Waits until the current or a later value satisfies `condition`. Cancel safe.
    pub async fn wait_for(&mut self, mut condition: impl FnMut(&T) -> bool) -> Result<(), Closed> {
        loop {
            if condition(&self.borrow_and_update()) {
                return Ok(());
            }
            self.changed().await?;
        }
    }
}

struct Changed<'a, T> {
    shared: &'a WatchState<T>,
    seen: u64,
    ticket: Option<u64>,
}

impl<T> Future for Changed<'_, T> {
    type Output = Result<u64, Closed>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Checked under the waiters' lock: a later send finds our waker.
        let mut waiters = self.shared.waiters.lock();
        let version = self.shared.version.load(Ordering::Acquire);
        if version != self.seen {
            return Poll::Ready(Ok(version));
        }
        if waiters.senders == 0 {
            return Poll::Ready(Err(Closed));
        }
        let ticket = self.ticket.unwrap_or_else(|| {
            waiters.next += 1;
            waiters.next
        });
        waiters.wakers.insert(ticket, cx.waker().clone());
        drop(waiters);
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl<T> Drop for Changed<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.waiters.lock().wakers.remove(&ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_receiver_sees_the_latest_value_once() {
        let (tx, mut rx) = channel(1);
        assert!(!rx.has_changed());
        tx.send(2);
        tx.send(3);
        rx.changed().await.expect("sender lives");
        assert_eq!(*rx.borrow_and_update(), 3);
        assert!(!rx.has_changed());
        assert!(!tx.send_if_modified(|_| false));
        assert!(!rx.has_changed());
    }

    #[tokio::test]
    async fn the_last_value_is_seen_before_the_close() {
        let (tx, mut rx) = channel(1);
        let tx2 = tx.clone();
        tx2.send(5);
        drop(tx);
        drop(tx2);
        assert_eq!(rx.changed().await, Ok(()));
        assert_eq!(rx.changed().await, Err(Closed));
    }

    #[tokio::test]
    async fn waiters_wake_in_the_order_in_which_they_began_to_wait() {
        let (tx, rx) = channel(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut futures: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
        for i in 0..20 {
            let (mut rx, order) = (rx.clone(), order.clone());
            futures.push(Box::pin(async move {
                rx.changed().await.expect("sender lives");
                order.lock().push(i);
            }));
        }
        let local = tokio::task::LocalSet::new();
        for f in futures {
            local.spawn_local(f);
        }
        local.spawn_local(async move {
            tokio::task::yield_now().await;
            tx.send(1);
        });
        local.await;
        assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
    }
}
