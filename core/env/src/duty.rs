//! Recurring work of a node beside its requests: the trait of such work and the one runner.
//!
//! In the flow: a part of the node implements [`Duty`], and the node starts one task with [`run`] per duty. A
//! duty may wait for a disk or for another node, and delays no other duty.

use std::future::{Future, pending};

use crate::time::{self, Instant};

/// Recurring work, called at events and times of its own choice.
pub trait Duty: Send + 'static {
    /// Reason for the end of the duty. A duty without an end has [`std::convert::Infallible`].
    type End: Send;

    /// Does the work that is due, and returns the time of the next call. `None`: at the next event.
    ///
    /// # Cancel safety
    /// The shutdown drops the future at any await.
    fn turn(&mut self) -> impl Future<Output = Result<Option<Instant>, Self::End>> + Send;

    /// Waits for an event that makes the work due at once. Has no events by default.
    ///
    /// # Cancel safety
    /// The time of the next call drops the future, and no event gets lost.
    fn event(&mut self) -> impl Future<Output = Result<(), Self::End>> + Send {
        pending()
    }
}

/// Runs the duty until its end.
pub async fn run<D: Duty>(mut duty: D) -> D::End {
    loop {
        let next = match duty.turn().await {
            Ok(next) => next,
            Err(end) => return end,
        };
        let at = next.unwrap_or_else(time::now);
        tokio::select! {
            biased;
            event = duty.event() => if let Err(end) = event { return end },
            () = time::sleep_until(at), if next.is_some() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    const LATER: Duration = Duration::from_secs(3_600);

    /// Duty that ends after its script of next calls, and reports the number of calls.
    struct Script {
        next: Vec<Option<Duration>>,
        events: mpsc::Receiver<()>,
        calls: usize,
    }

    impl Duty for Script {
        type End = (usize, &'static str);

        async fn turn(&mut self) -> Result<Option<Instant>, Self::End> {
            self.calls += 1;
            let next = self.next.pop().ok_or((self.calls, "script"))?;
            Ok(next.map(|after| time::now() + after))
        }

        async fn event(&mut self) -> Result<(), Self::End> {
            self.events.recv().await.ok_or((self.calls, "closed"))
        }
    }

    #[tokio::test]
    async fn duty_is_called_at_its_time_and_at_each_event() {
        let (event, events) = mpsc::channel(4);
        for _ in 0..2 {
            event.try_send(()).expect("there is space");
        }
        let next = vec![Some(Duration::ZERO), None, Some(LATER)];
        assert_eq!(run(Script { next, events, calls: 0 }).await, (4, "script"));
    }

    #[tokio::test]
    async fn duty_ends_when_its_events_end() {
        let (event, events) = mpsc::channel(1);
        drop(event);
        assert_eq!(run(Script { next: vec![None, None], events, calls: 0 }).await, (1, "closed"));
    }
}
