//! Shared services of a world's components: true time, future events, and the trace.

use crate::time::Nanos;
use crate::trace::Trace;

pub type Event = Box<dyn FnOnce() + Send>;

/// Center of a world. Implemented by the executor, and by small fakes in tests.
pub trait Heart: Send + Sync {
    fn now(&self) -> Nanos;
    /// Returns when the running turn's work so far would be done: messages sent now leave at this time.
    fn turn_so_far(&self) -> Nanos {
        self.now()
    }
    /// Schedules `event` at `when` (at once, but not within this call, if `when` has passed). Events of one
    /// time run in the order of scheduling, independent of the state of any host.
    fn at(&self, when: Nanos, event: Event);
    fn trace(&self) -> &Trace;
}
