//! A task's place among those that are ready to run.
//!
//! The runtime runs a task that has just been woken before all others that are ready, which is right for a
//! single request. With many clients, whose sockets become readable together, the router would so be handed
//! one write at a time and send each by itself: a frame, two system calls and a wake-up of the leader for
//! every command.

use std::future::poll_fn;
use std::task::Poll;

/// Lets every task that is ready by now run first. Waits for no event: with nobody else it goes on at once.
/// Cancel safe.
pub(super) async fn behind_the_others() {
    let mut is_behind = false;
    poll_fn(|cx| {
        if is_behind {
            return Poll::Ready(());
        }
        is_behind = true;
        // A task that is woken while it runs goes to the end of the queue.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn whoever_is_ready_runs_before_it() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let others: Vec<_> = (1..=3)
            .map(|n| {
                let order = order.clone();
                rowlock_env::task::spawn("other", async move { order.lock().push(n) })
            })
            .collect();
        behind_the_others().await;
        order.lock().push(4);
        for other in others {
            other.await.unwrap();
        }
        assert_eq!(*order.lock(), [1, 2, 3, 4]);
    }
}
