//! Yields a task's turn to the tasks that are ready to run.
//!
//! The runtime runs a task that has just been woken before all other ready tasks, which is right for a single
//! request. But the sockets of many clients become readable together: the intake would take one write at a
//! time and forward each alone, with a frame, two system calls and a wake-up of the leader per command.

use std::future::poll_fn;
use std::task::Poll;

/// Lets every task that is ready now run first. Waits for no event: without other ready tasks this returns at
/// once. Cancel safe.
pub(super) async fn yield_to_ready() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
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
    async fn ready_tasks_run_first() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let others: Vec<_> = (1..=3)
            .map(|n| {
                let order = order.clone();
                rowlock_env::task::spawn("other", async move { order.lock().push(n) })
            })
            .collect();
        yield_to_ready().await;
        order.lock().push(4);
        for other in others {
            other.await.unwrap();
        }
        assert_eq!(*order.lock(), [1, 2, 3, 4]);
    }
}
