//! What the parts of a world share: true time, future events, and the trace.

use crate::time::Nanos;
use crate::trace::Trace;

/// Something that will happen.
pub type Event = Box<dyn FnOnce() + Send>;

/// The heart of a world. Its only real implementation is the executor; parts have small ones in their tests.
pub trait Heart: Send + Sync {
    fn now(&self) -> Nanos;
    /// When the work of the running turn that is done so far would be done: what it sends now leaves then.
    fn turn_so_far(&self) -> Nanos {
        self.now()
    }
    /// Lets `event` happen at `when` (at once, but not within this call, if that has passed). Events of one
    /// time happen in the order in which they were asked for. They belong to no host: whatever a host does in
    /// the meantime, they happen.
    fn at(&self, when: Nanos, event: Event);
    /// Where to write down what happens.
    fn trace(&self) -> &Trace;
}
