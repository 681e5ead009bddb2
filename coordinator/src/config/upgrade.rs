//! `[upgrade]`: when the cluster goes over to a new version for good.

use std::fmt::Write as _;

use serde::Deserialize;
use toml::Spanned;

use super::ConfigError;
use super::check::Source;

/// Who says that there is no way back to the old release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

    fn named(word: &str) -> Option<Finalize> {
        [Finalize::Auto, Finalize::Manual].into_iter().find(|one| one.word() == word)
    }
}

/// `[upgrade]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpgradeConfig {
    /// Who finalizes an upgrade. The leader's value counts.
    pub finalize: Finalize,
    /// How long all members must have been healthy under one leader before it finalizes by itself,
    /// milliseconds. Not in `cluster.toml`: only tests have a reason to wait less.
    pub health_ms: u64,
}

impl Default for UpgradeConfig {
    fn default() -> Self {
        UpgradeConfig { finalize: Finalize::default(), health_ms: 60_000 }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawUpgrade {
    finalize: Option<Spanned<String>>,
}

impl RawUpgrade {
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        match self.finalize.as_ref().filter(|word| Finalize::named(word.get_ref()).is_none()) {
            None => Ok(()),
            Some(word) => {
                let what = format!("finalize = \"{}\" in [upgrade] is neither of two words", word.get_ref());
                Err(source.at(word, what, "use \"auto\" or \"manual\""))
            }
        }
    }

    pub(super) fn config(self) -> UpgradeConfig {
        let finalize = self.finalize.and_then(|word| Finalize::named(word.get_ref()));
        UpgradeConfig { finalize: finalize.unwrap_or_default(), ..UpgradeConfig::default() }
    }
}

pub(super) fn print(out: &mut String, config: UpgradeConfig) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\n[upgrade]\nfinalize = \"{}\"\n", config.finalize.word());
}
