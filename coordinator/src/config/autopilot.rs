//! `[autopilot]`: changes of the members that the leader makes by itself.

use std::fmt::Write as _;

use serde::Deserialize;

/// `[autopilot]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AutopilotConfig {
    /// Whether a node that comes back with an empty data folder is taken out of the members and in again. The
    /// same on all nodes: the one that comes back waits, and the others take it in.
    pub readmit_wiped: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawAutopilot {
    readmit_wiped: Option<bool>,
}

impl RawAutopilot {
    pub(super) fn config(self) -> AutopilotConfig {
        let default = AutopilotConfig::default();
        AutopilotConfig { readmit_wiped: self.readmit_wiped.unwrap_or(default.readmit_wiped) }
    }
}

pub(super) fn print(out: &mut String, config: AutopilotConfig) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\n[autopilot]\nreadmit_wiped = {}\n", config.readmit_wiped);
}
