//! Whether this node may open one more session. All doors of a node share it: ZooKeeper's protocol and locks
//! by HTTP.

use parking_lot::Mutex;
use rowlock_env::time;

use super::ClientContext;
use super::throttle::Throttle;

/// See the module.
pub struct NewSessions {
    throttle: Mutex<Throttle>,
}

impl NewSessions {
    /// So many a second; 0: no bound.
    pub fn new(per_second: u32) -> Self {
        NewSessions { throttle: Mutex::new(Throttle::new(per_second)) }
    }

    /// Takes the place of one more session. Judged here by what is applied, so that what is refused costs the
    /// cluster nothing; those that are being opened at the same moment are not counted.
    ///
    /// # Errors
    /// Which bound is reached.
    pub(crate) fn make_room(&self, context: &ClientContext) -> Result<(), &'static str> {
        let (most, memory) = (context.config.limits.sessions, &context.replica.memory);
        let why = if most > 0 && context.replica.state.read().counts().sessions >= most {
            "limits.sessions is reached"
        } else if context.replica.state.read().grace_ms() > 0 {
            "the cluster was restored a moment ago: clients of the old one may still believe that they hold locks"
        } else if memory.is_full() {
            "limits.memory_bytes is reached"
        } else if !self.throttle.lock().take(time::now()) {
            "client.new_sessions_per_second is reached"
        } else {
            return Ok(());
        };
        context.metrics.sessions_refused_total.inc();
        Err(why)
    }
}
