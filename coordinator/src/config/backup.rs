//! Section `[backup]`: scheduled backups by the leader.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::security::numbered;
use super::source::Source;
use crate::config::duration;

/// One second, for trials, to a year.
const EVERY_MS: RangeInclusive<u64> = 1_000..=365 * 86_400_000;
const KEEP_MAX: u32 = 10_000;

/// Section `[backup]` of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackupConfig {
    /// Time between the leader's scheduled backups.
    #[serde(rename = "every", with = "duration::or_off")]
    pub every_ms: Option<u64>,
    /// Number of backups to keep.
    pub keep: u32,
    /// Folder of the backups, relative to the data folder; better on another disk. `{id}` stands for the
    /// node's number.
    pub dir: PathBuf,
}

impl Default for BackupConfig {
    fn default() -> Self {
        BackupConfig { every_ms: None, keep: 7, dir: PathBuf::from("backups") }
    }
}

impl BackupConfig {
    /// Returns the folder of this node's backups.
    pub fn folder(&self, id: NodeId, data_dir: &Path) -> PathBuf {
        data_dir.join(numbered(&self.dir, id))
    }
}

pub(super) fn check(source: &Source<'_>, config: &BackupConfig) -> Result<(), ConfigError> {
    if let Some(ms) = config.every_ms.filter(|ms| !EVERY_MS.contains(ms)) {
        let what = format!("every = \"{}\" in [backup] is no time between two backups", duration::text(ms));
        let remedy = "use \"off\", or a number and a unit, from \"1s\" to \"365d\", e.g. \"6h\"";
        return Err(source.at("backup.every", what, remedy));
    }
    if (1..=KEEP_MAX).contains(&config.keep) {
        return Ok(());
    }
    let what = format!("keep = {} in [backup] is out of range", config.keep);
    Err(source.at("backup.keep", what, "use 1 to 10000"))
}
