//! Report about a data folder at its opening.

use std::time::Duration;

use super::log::recover::Recovered;
use crate::entry::{LogId, Vote};

/// Contents of a data folder at its opening.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    pub segments: usize,
    pub records: u64,
    /// True if recovery cut an unfinished write off the log.
    pub torn: bool,
    /// True if other users had rights on the folder; the opener has removed these rights.
    pub exposed: bool,
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    /// Position before the log's first entry.
    pub purged: Option<LogId>,
    pub last: Option<LogId>,
    pub snapshot: Option<LogId>,
    /// Unusable snapshot files, renamed; an older snapshot or the log replaces them.
    pub damaged_snapshots: Vec<String>,
    /// Cut position, if the log's end conflicted with a newer snapshot. The inner `None` is an empty rest.
    pub cut_behind: Option<Option<LogId>>,
    pub took: Duration,
}

impl RecoveryReport {
    pub(super) fn of(found: &Recovered) -> Self {
        let checkpoint = found.log.checkpoint();
        RecoveryReport {
            segments: found.segments.len(),
            records: found.records,
            torn: found.torn,
            vote: checkpoint.vote,
            committed: checkpoint.committed,
            purged: checkpoint.purged,
            last: checkpoint.last,
            ..RecoveryReport::default()
        }
    }
}
