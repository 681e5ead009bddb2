//! `[backup]`: backups that the leader makes by itself.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rowlock_proto::NodeId;
use serde::Deserialize;
use toml::Spanned;

use super::ConfigError;
use super::check::Source;
use super::parse::{duration_ms, duration_text, quote};
use super::security::numbered;

/// From one second, for trials, to a year.
const EVERY_MS: RangeInclusive<u64> = 1_000..=365 * 86_400_000;
const KEEP_MAX: u32 = 10_000;

/// `[backup]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupConfig {
    /// How often, milliseconds. `None`: never.
    pub every_ms: Option<u64>,
    /// How many are kept.
    pub keep: u32,
    /// Where: `{id}` stands for the number of the node; a relative path is in the node's data folder.
    pub dir: PathBuf,
}

impl Default for BackupConfig {
    fn default() -> Self {
        BackupConfig { every_ms: None, keep: 7, dir: PathBuf::from("backups") }
    }
}

impl BackupConfig {
    /// Where this node writes.
    pub fn folder(&self, id: NodeId, data_dir: &Path) -> PathBuf {
        data_dir.join(numbered(&self.dir, id))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawBackup {
    every: Option<Spanned<String>>,
    keep: Option<Spanned<u32>>,
    dir: Option<Spanned<PathBuf>>,
}

impl RawBackup {
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        if let Some(every) = &self.every
            && !duration_ms(every.get_ref()).is_some_and(|ms| EVERY_MS.contains(&ms))
        {
            let what = format!("every = \"{}\" in [backup] is no time between two backups", every.get_ref());
            let remedy = "use a number and a unit, from \"1s\" to \"365d\", e.g. \"6h\"";
            return Err(source.at(every, what, remedy));
        }
        match self.keep.as_ref().filter(|keep| !(1..=KEEP_MAX).contains(keep.get_ref())) {
            Some(keep) => {
                let what = format!("keep = {} in [backup] is out of range", keep.get_ref());
                Err(source.at(keep, what, "use 1 to 10000"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn config(self) -> BackupConfig {
        let default = BackupConfig::default();
        BackupConfig {
            every_ms: self.every.and_then(|every| duration_ms(every.get_ref())),
            keep: self.keep.map_or(default.keep, Spanned::into_inner),
            dir: self.dir.map_or(default.dir, Spanned::into_inner),
        }
    }
}

pub(super) fn print(out: &mut String, BackupConfig { every_ms, keep, dir }: &BackupConfig) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\n[backup]\nkeep = {keep}\ndir = {}\n", quote(&dir.to_string_lossy()));
    if let Some(every) = every_ms {
        let _ = writeln!(out, "every = {}", quote(&duration_text(*every)));
    }
}
