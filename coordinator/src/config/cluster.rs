//! Section `[cluster]`: nodes find each other by name instead of by a list of all nodes.
//!
//! Section `[autopilot]`: automatic membership changes by the leader.
//!
//! Section `[backup]`: scheduled backups by the leader.
//!
//! Section `[upgrade]`: finalization of upgrades.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::config::duration;
use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

use super::check::split;
use super::security::numbered;
use super::source::Source;
use super::{ClusterConfig, ConfigError, NodeEntry};

/// One node needs no discovery, and more than nine voters only cost time.
const EXPECT: RangeInclusive<u64> = 2..=9;

/// Section `[cluster]` of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discovery {
    /// Number of founders, 2 to 9: the nodes 1 to this number form the cluster. Never change it later.
    pub expect: u64,
    /// Names or addresses of peer ports, `host:port` with commas between, that together resolve to all nodes.
    /// Resolved every half second while a node is missing.
    #[serde(with = "with_commas")]
    pub seeds: Vec<String>,
}

impl Discovery {
    /// Iterates over the nodes that form the cluster.
    pub fn founders(&self) -> impl Iterator<Item = NodeId> {
        (1..=self.expect).map(NodeId)
    }
}

pub(super) fn check(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    let Some(Discovery { expect, seeds }) = &config.discovery else { return Ok(()) };
    if !EXPECT.contains(expect) {
        let what = format!("expect = {expect} in [cluster] is out of range");
        let remedy = "say how many nodes form the cluster, from 2 to 9; one node alone needs no [cluster]";
        return Err(source.at("cluster.expect", what, remedy));
    }
    if seeds.is_empty() {
        let remedy = "name what leads to all nodes, e.g. seeds = \"rowlock-nodes:2281\"";
        return Err(source.at("cluster.seeds", "seeds in [cluster] is empty".to_owned(), remedy));
    }
    for seed in seeds {
        split(seed).map_err(|why| {
            let what = format!("seeds in [cluster] has \"{seed}\", which is not an address: {why}");
            source.at("cluster.seeds", what, "write \"host:port\", more of them with commas between")
        })?;
    }
    for (at, NodeEntry { id, learner, .. }) in config.nodes.iter().enumerate() {
        let (id_is, remedy) = match (id.0 <= *expect, learner) {
            (true, true) => {
                ("is a learner, and one of those who form the cluster", "remove `learner = true`")
            }
            (false, false) => (
                "is none of those who form the cluster",
                "set `learner = true`: it joins when there is a cluster",
            ),
            _ => continue,
        };
        let what = format!("node {id} {id_is} (expect = {expect} in [cluster])");
        return Err(source.at(&format!("node.{at}.id"), what, remedy));
    }
    Ok(())
}

/// Reads and writes the seeds as one text with commas.
mod with_commas {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
        let text = String::deserialize(from)?;
        let seeds = text.split(',').map(str::trim).filter(|seed| !seed.is_empty());
        Ok(seeds.map(str::to_owned).collect())
    }

    pub fn serialize<S: Serializer>(seeds: &[String], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&seeds.join(","))
    }
}

/// Below a second, a node's first moments after the start would pass for stability.
const PROMOTE_AFTER_MS: RangeInclusive<u64> = 1_000..=86_400_000;
/// Below five seconds, a slow election would cost a member.
const REMOVE_DEAD_AFTER_MS: RangeInclusive<u64> = 5_000..=30 * 86_400_000;
/// Range of the possible node numbers.
const MIN_VOTERS: RangeInclusive<u32> = 1..=254;

/// Section `[autopilot]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutopilotConfig {
    /// Readmits a node that lost its data under its number: the leader removes and adds the node.
    pub readmit_wiped: bool,
    /// Time for which a learner must have kept up before it votes, `"1s"` to `"1d"`.
    #[serde(rename = "promote_after", with = "duration::or_off")]
    pub promote_after_ms: Option<u64>,
    /// Time for which a voter must have been silent before its removal, `"5s"` to `"30d"`.
    #[serde(rename = "remove_dead_after", with = "duration::or_off")]
    pub remove_dead_after_ms: Option<u64>,
    /// Minimum number of remaining voters after a removal.
    pub min_voters: u32,
}

impl Default for AutopilotConfig {
    /// Leaves all changes to operators: a learner may be meant to stay one, and a silent voter may come back.
    fn default() -> Self {
        AutopilotConfig {
            readmit_wiped: false,
            promote_after_ms: None,
            remove_dead_after_ms: None,
            min_voters: 3,
        }
    }
}

pub(super) fn check_autopilot(source: &Source<'_>, config: AutopilotConfig) -> Result<(), ConfigError> {
    let times = [
        ("promote_after", config.promote_after_ms, PROMOTE_AFTER_MS),
        ("remove_dead_after", config.remove_dead_after_ms, REMOVE_DEAD_AFTER_MS),
    ];
    for (key, ms, range) in times {
        if let Some(ms) = ms.filter(|ms| !range.contains(ms)) {
            let (least, most) = (duration::text(*range.start()), duration::text(*range.end()));
            let what = format!("{key} = \"{}\" in [autopilot] is no time to wait", duration::text(ms));
            let remedy = format!("use \"off\", or a number and a unit from \"{least}\" to \"{most}\"");
            return Err(source.at(&format!("autopilot.{key}"), what, &remedy));
        }
    }
    if MIN_VOTERS.contains(&config.min_voters) {
        return Ok(());
    }
    let what = format!("min_voters = {} in [autopilot] is out of range", config.min_voters);
    Err(source.at("autopilot.min_voters", what, "use 1 to 254"))
}

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

pub(super) fn check_backup(source: &Source<'_>, config: &BackupConfig) -> Result<(), ConfigError> {
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

/// Decision that ends the way back to the old release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finalize {
    /// The leader finalizes when all members have been healthy on the new release for a minute.
    #[default]
    Auto,
    /// An operator finalizes with `rowlock upgrade finalize`.
    Manual,
}

impl Finalize {
    /// Returns the value in `cluster.toml`.
    pub fn word(self) -> &'static str {
        match self {
            Finalize::Auto => "auto",
            Finalize::Manual => "manual",
        }
    }
}

/// Section `[upgrade]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpgradeConfig {
    /// Party that finalizes an upgrade: the leader after a minute of health (`"auto"`), or an operator
    /// (`"manual"`).
    pub finalize: Finalize,
    /// Time for which all members must have been healthy under one leader before the leader finalizes,
    /// milliseconds. Not in `cluster.toml`: only tests need less.
    #[serde(skip, default = "health_ms")]
    pub health_ms: u64,
}

impl Default for UpgradeConfig {
    fn default() -> Self {
        UpgradeConfig { finalize: Finalize::default(), health_ms: health_ms() }
    }
}

fn health_ms() -> u64 {
    60_000
}
