//! Log lines that strangers can cause: at most one in a while, with the number of those that were left out.

use std::time::Duration;

use rowlock_env::time::{self, Instant};

/// At most one line per so long.
const INTERVAL: Duration = Duration::from_secs(1);

/// When the last line was written, and what was left out since.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    last: Option<Instant>,
    suppressed: u64,
}

impl Complaints {
    /// Whether a line may be written now; if so, how many were left out since the last one.
    pub(crate) fn may_complain(&mut self) -> Option<u64> {
        let now = time::now();
        if self.last.is_some_and(|last| now < last + INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}
