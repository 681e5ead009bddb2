//! Section `[upgrade]`: finalization of upgrades.

use serde::{Deserialize, Serialize};

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
