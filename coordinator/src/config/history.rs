use serde::{Deserialize, Serialize};

/// Settings of the lock history, part of the configuration of every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// Records the lock events on each node.
    pub enabled: bool,
    /// Age after which records are removed.
    #[serde(rename = "max_age", with = "super::duration")]
    pub max_age_ms: u64,
    /// Disk space per node in bytes, at least 64 MiB. A record takes about 130 bytes, an undisturbed lock
    /// three records.
    pub max_bytes: u64,
}

impl Default for HistoryConfig {
    /// Returns the default: a week, in a quarter of a gigabyte.
    fn default() -> Self {
        HistoryConfig { enabled: true, max_age_ms: 7 * 86_400_000, max_bytes: 256 << 20 }
    }
}
