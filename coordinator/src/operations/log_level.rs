//! Another filter for the log of a running node, for a while or until it is taken back.
//!
//! The node speaks through `tracing` and does not know where its lines go. So the program that runs the node
//! gives it a [`LogSwitch`]; a node without one refuses. The filter is in memory only: a restart ends it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_types::operation::LogLevelChange;
use serde_json::{Value, json};

/// What the program that runs a node logs.
pub trait LogSwitch: Send + Sync + 'static {
    /// Logs by this filter from now on; `None`: as the program is configured.
    ///
    /// # Errors
    /// The filter means nothing, in words; then nothing has changed.
    fn set(&self, filter: Option<&str>) -> Result<(), String>;

    fn current(&self) -> String;
}

pub struct LogLevel {
    me: NodeId,
    switch: OnceLock<Arc<dyn LogSwitch>>,
    /// When a filter ends.
    until: watch::Sender<Option<Instant>>,
}

impl LogLevel {
    /// Of this node. Until [`LogLevel::is_switched_by`] it refuses.
    pub fn of(me: NodeId) -> Self {
        LogLevel { me, switch: OnceLock::new(), until: watch::channel(None).0 }
    }

    /// Who carries the wishes out. The first one stays.
    pub fn is_switched_by(&self, switch: Arc<dyn LogSwitch>) {
        let _: Result<(), Arc<dyn LogSwitch>> = self.switch.set(switch);
    }

    /// Does it, and says how the node logs then.
    ///
    /// # Errors
    /// `Unimplemented`: the program has no switch. `BadArguments`: the filter means nothing.
    pub fn carry_out(&self, change: &LogLevelChange) -> Result<Value, ErrorCode> {
        let switch = self.switch.get().ok_or(ErrorCode::Unimplemented)?;
        let (filter, for_ms) = match change {
            LogLevelChange::Show => return Ok(self.document(&**switch)),
            LogLevelChange::Reset => (None, None),
            LogLevelChange::Set { filter, for_ms } => (Some(filter.as_str()), *for_ms),
        };
        let before = switch.current();
        switch.set(filter).map_err(|why| {
            tracing::warn!(%why, "an operator's filter of the log is refused");
            ErrorCode::BadArguments
        })?;
        self.until.send(for_ms.map(|ms| time::now() + Duration::from_millis(ms)));
        tracing::info!(before, now = switch.current(), for_ms, "an operator has changed what is logged");
        Ok(self.document(&**switch))
    }

    fn document(&self, switch: &dyn LogSwitch) -> Value {
        let left = self.until.borrow().map(|until| until.saturating_since(time::now()));
        let ends_in_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        json!({ "node": self.me.0, "filter": switch.current(), "ends_in_ms": ends_in_ms })
    }

    /// Takes filters back when their time is over. Runs without end.
    pub async fn run(self: Arc<Self>) {
        let mut changes = self.until.subscribe();
        loop {
            let until = *changes.borrow_and_update();
            // `self` keeps the channel open.
            let _ = match until {
                Some(until) => time::timeout_at(until, changes.changed()).await,
                None => Ok(changes.changed().await),
            };
            if until.is_some_and(|until| time::now() >= until) {
                self.end(until);
            }
        }
    }

    /// Unless there has been another wish meanwhile.
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
