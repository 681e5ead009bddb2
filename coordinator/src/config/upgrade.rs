//! `[upgrade]`: when the cluster goes over to a new version for good.

use serde::{Deserialize, Serialize};

/// Who says that there is no way back to the old release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finalize {
    /// The leader, when all members have run the new release in health for a minute.
    #[default]
    Auto,
    /// An operator, by `rowlock upgrade finalize`.
    Manual,
}

impl Finalize {
    /// As the file says it.
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
    /// Who finalizes an upgrade. The leader's value counts.
    pub finalize: Finalize,
    /// How long all members must have been healthy under one leader before it finalizes by itself,
    /// milliseconds. Not in `cluster.toml`: only tests have a reason to wait less.
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
