//! The settings of the lock history, which the configuration of every node has.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    pub enabled: bool,
    /// Age after which entries are removed, in milliseconds.
    #[serde(rename = "max_age", with = "crate::duration")]
    pub max_age_ms: u64,
    /// Bound of the history's disk space per node, in bytes. Above the bound the oldest entries are removed.
    pub max_bytes: u64,
}

impl Default for HistoryConfig {
    /// Returns the default: a week, in a quarter of a gigabyte.
    fn default() -> Self {
        HistoryConfig { enabled: true, max_age_ms: 7 * 86_400_000, max_bytes: 256 << 20 }
    }
}
