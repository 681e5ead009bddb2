//! Temporary log filters for a running node, until a time or until an operator resets them.
//!
//! The node logs through `tracing` and does not own the subscriber. So the program that runs the node passes
//! a [`LogSwitch`]; a node without one refuses. The filter is in memory only: a restart ends it.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rowlock_consensus::operation::LogLevelChange;
use rowlock_env::duty::Duty;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use serde_json::{Value, json};

/// Log filter of the program that runs a node.
pub trait LogSwitch: Send + Sync + 'static {
    /// Sets the log filter; `None` restores the program's configured filter.
    ///
    /// # Errors
    /// The reason why the filter is invalid; the previous filter stays then.
    fn set(&self, filter: Option<&str>) -> Result<(), String>;

    fn current(&self) -> String;
}

pub struct LogLevel {
    me: NodeId,
    switch: OnceLock<Arc<dyn LogSwitch>>,
    /// End of the current filter.
    until: watch::Sender<Option<Instant>>,
}

impl LogLevel {
    /// Creates the state of node `me`, which refuses until [`LogLevel::set_switch`].
    pub fn of(me: NodeId) -> Self {
        LogLevel { me, switch: OnceLock::new(), until: watch::channel(None).0 }
    }

    /// Installs the program's switch. The first call wins.
    pub fn set_switch(&self, switch: Arc<dyn LogSwitch>) {
        let _: Result<(), Arc<dyn LogSwitch>> = self.switch.set(switch);
    }

    /// Carries out the change, and returns the filter then in force.
    ///
    /// # Errors
    /// `Unimplemented`: the program has no switch. `BadArguments`: the filter is invalid.
    pub fn carry_out(&self, change: &LogLevelChange) -> Result<Value, ErrorCode> {
        let switch = self.switch.get().ok_or(ErrorCode::Unimplemented)?;
        let (filter, for_ms) = match change {
            LogLevelChange::Show => return Ok(self.document(&**switch)),
            LogLevelChange::Reset => (None, None),
            LogLevelChange::Set { filter, for_ms } => (Some(filter.as_str()), *for_ms),
        };
        let before = switch.current();
        switch.set(filter).map_err(|why| {
            tracing::warn!(%why, "an operator's log filter is invalid");
            ErrorCode::BadArguments
        })?;
        self.until.send(for_ms.map(|ms| time::now() + Duration::from_millis(ms)));
        tracing::info!(before, now = switch.current(), for_ms, "an operator has changed the log filter");
        Ok(self.document(&**switch))
    }

    fn document(&self, switch: &dyn LogSwitch) -> Value {
        let left = self.until.borrow().map(|until| until.saturating_since(time::now()));
        let ends_in_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        json!({ "node": self.me.0, "filter": switch.current(), "ends_in_ms": ends_in_ms })
    }

    /// Resets the filter, unless an operator has changed it meanwhile.
    fn end(&self, was: Option<Instant>) {
        let is_that = |until: &mut Option<Instant>| *until == was && until.take().is_some();
        if self.until.send_if_modified(is_that)
            && let Some(switch) = self.switch.get()
            && switch.set(None).is_ok()
        {
            tracing::info!(now = switch.current(), "the operator's filter of the log has ended");
        }
    }
}

/// Duty that resets each filter at its end.
pub struct FilterReset {
    log_level: Arc<LogLevel>,
    until: watch::Receiver<Option<Instant>>,
}

impl FilterReset {
    pub fn new(log_level: Arc<LogLevel>) -> FilterReset {
        FilterReset { until: log_level.until.subscribe(), log_level }
    }
}

impl Duty for FilterReset {
    type End = Infallible;

    async fn turn(&mut self) -> Result<Option<Instant>, Infallible> {
        let until = *self.until.borrow_and_update();
        let is_over = until.is_some_and(|until| time::now() >= until);
        if is_over {
            self.log_level.end(until);
        }
        Ok(until.filter(|_| !is_over))
    }

    async fn event(&mut self) -> Result<(), Infallible> {
        // `log_level` keeps the channel open.
        let _ = self.until.changed().await;
        Ok(())
    }
}
