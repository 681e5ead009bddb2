//! `[autopilot]`: changes of the members that the leader makes by itself.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use serde::Deserialize;
use toml::Spanned;

use super::ConfigError;
use super::check::Source;
use super::parse::{duration_ms, duration_text};

/// Below a second, what a node does at its start would pass for a stable one.
const PROMOTE_AFTER_MS: RangeInclusive<u64> = 1_000..=86_400_000;
/// Below five seconds, a slow election would cost a member.
const REMOVE_DEAD_AFTER_MS: RangeInclusive<u64> = 5_000..=30 * 86_400_000;
/// As many as there are numbers of nodes.
const MIN_VOTERS: RangeInclusive<u32> = 1..=254;
/// How the file says that something is not done.
const OFF: &str = "off";

/// `[autopilot]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutopilotConfig {
    /// Whether a node that comes back with an empty data folder is taken out of the members and in again. The
    /// same on all nodes: the one that comes back waits, and the others take it in.
    pub readmit_wiped: bool,
    /// How long a learner must have had the log and answered before the leader makes it a voter,
    /// milliseconds. `None`: learners stay learners. The leader's value counts.
    pub promote_after_ms: Option<u64>,
    /// How long a voter must have been silent before the leader removes it, milliseconds. `None`: never. The
    /// leader's value counts.
    pub remove_dead_after_ms: Option<u64>,
    /// So many voters are left at least when one is removed.
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

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawAutopilot {
    readmit_wiped: Option<bool>,
    promote_after: Option<Spanned<String>>,
    remove_dead_after: Option<Spanned<String>>,
    min_voters: Option<Spanned<u32>>,
}

impl RawAutopilot {
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let times = [
            ("promote_after", &self.promote_after, PROMOTE_AFTER_MS),
            ("remove_dead_after", &self.remove_dead_after, REMOVE_DEAD_AFTER_MS),
        ];
        for (key, text, range) in times {
            let Some(text) = text else { continue };
            let is_good = |text: &str| duration_ms(text).is_some_and(|ms| range.contains(&ms));
            if text.get_ref() != OFF && !is_good(text.get_ref()) {
                let (least, most) = (duration_text(*range.start()), duration_text(*range.end()));
                let what = format!("{key} = \"{}\" in [autopilot] is no time to wait", text.get_ref());
                let remedy = format!("use \"off\", or a number and a unit from \"{least}\" to \"{most}\"");
                return Err(source.at(text, what, &remedy));
            }
        }
        match self.min_voters.as_ref().filter(|least| !MIN_VOTERS.contains(least.get_ref())) {
            Some(least) => {
                let what = format!("min_voters = {} in [autopilot] is out of range", least.get_ref());
                Err(source.at(least, what, "use 1 to 254"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn config(self) -> AutopilotConfig {
        let default = AutopilotConfig::default();
        let time = |text: Option<Spanned<String>>| text.and_then(|text| duration_ms(text.get_ref()));
        AutopilotConfig {
            readmit_wiped: self.readmit_wiped.unwrap_or(default.readmit_wiped),
            promote_after_ms: time(self.promote_after),
            remove_dead_after_ms: time(self.remove_dead_after),
            min_voters: self.min_voters.map_or(default.min_voters, Spanned::into_inner),
        }
    }
}

pub(super) fn print(out: &mut String, config: AutopilotConfig) {
    let AutopilotConfig { readmit_wiped, promote_after_ms, remove_dead_after_ms, min_voters } = config;
    let time = |ms: Option<u64>| ms.map_or(OFF.to_owned(), duration_text);
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "\n[autopilot]\nreadmit_wiped = {readmit_wiped}\npromote_after = \"{}\"\nremove_dead_after = \"{}\"\n\
         min_voters = {min_voters}\n",
        time(promote_after_ms),
        time(remove_dead_after_ms),
    );
}
