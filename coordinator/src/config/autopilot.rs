//! Section `[autopilot]`: automatic membership changes by the leader.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::source::Source;
use crate::config::duration;

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
