//! `[autopilot]`: changes of the members that the leader makes by itself.

use std::ops::RangeInclusive;

use rowlock_types::duration;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::parse::Source;

/// Below a second, what a node does at its start would pass for a stable one.
const PROMOTE_AFTER_MS: RangeInclusive<u64> = 1_000..=86_400_000;
/// Below five seconds, a slow election would cost a member.
const REMOVE_DEAD_AFTER_MS: RangeInclusive<u64> = 5_000..=30 * 86_400_000;
/// As many as there are numbers of nodes.
const MIN_VOTERS: RangeInclusive<u32> = 1..=254;

/// Section `[autopilot]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutopilotConfig {
    /// Whether a node that comes back with an empty data folder is taken out of the members and in again. The
    /// same on all nodes: the one that comes back waits, and the others take it in.
    pub readmit_wiped: bool,
    /// How long a learner must have had the log and answered before the leader makes it a voter,
    /// milliseconds. `None`: learners stay learners. The leader's value counts.
    #[serde(rename = "promote_after", with = "duration::or_off")]
    pub promote_after_ms: Option<u64>,
    /// How long a voter must have been silent before the leader removes it, milliseconds. `None`: never. The
    /// leader's value counts.
    #[serde(rename = "remove_dead_after", with = "duration::or_off")]
    pub remove_dead_after_ms: Option<u64>,
    /// At least this many voters are left when one is removed.
    pub min_voters: u32,
}

impl Default for AutopilotConfig {
    /// Members change when an operator says so: a learner may be meant to stay one, and a silent voter may
    /// come back.
    fn default() -> Self {
        AutopilotConfig {
            readmit_wiped: false,
            promote_after_ms: None,
            remove_dead_after_ms: None,
            min_voters: 3,
        }
    }
}

pub(super) fn check(source: &Source<'_>, config: AutopilotConfig) -> Result<(), ConfigError> {
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
