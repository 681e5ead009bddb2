//! `[limits]`: bounds of what clients make a node hold, in memory and on its disk.

use rowlock_env::process;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::parse::Source;

/// The log of a large state alone may have so much in memory.
const MEMORY_MIN_BYTES: u64 = 256 << 20;

/// Of the memory, what a node may hold by default. A snapshot needs the state once more while it is checked,
/// and the program, its threads and the allocator need the last part.
const MEMORY_PART: u64 = 3;

/// Section `[limits]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Open sessions of the cluster. Beyond: a node refuses new ones. 0: no bound.
    pub sessions: u64,
    /// A host (an IPv4 address, or the /64 of an IPv6 address) may open a session while it has fewer than
    /// this many times the sessions that are still free: 4 leaves four fifths of them to one host, and four
    /// ninths to each of two. 0: no shares.
    pub sessions_share: u64,
    /// What a node holds in memory. Beyond: what grows is refused. 0: no bound. `None`: a
    /// third of what the machine (or the cgroup) has.
    pub memory_bytes: Option<u64>,
    /// With less free on the file system of the data folder the node warns. 0: never.
    pub warn_free_bytes: u64,
    /// With less free the node is short of room: what grows is refused while too few voters have more. 0: no
    /// bound.
    pub min_free_bytes: u64,
    /// What a node keeps for its log on a disk that fills up, in a file. 0: nothing.
    pub reserve_bytes: u64,
}

impl Default for LimitsConfig {
    /// As many sessions as five nodes have connections; room for four segments of the log, and for one more.
    fn default() -> Self {
        LimitsConfig {
            sessions: 100_000,
            sessions_share: 4,
            memory_bytes: None,
            warn_free_bytes: 1 << 30,
            min_free_bytes: 256 << 20,
            reserve_bytes: 64 << 20,
        }
    }
}

impl LimitsConfig {
    /// What a node may hold in memory; 0: no bound.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.unwrap_or_else(|| process::memory_bytes().unwrap_or(0) / MEMORY_PART)
    }
}

pub(super) fn check(source: &Source<'_>, config: LimitsConfig) -> Result<(), ConfigError> {
    if let Some(bytes) = config.memory_bytes.filter(|bytes| (1..MEMORY_MIN_BYTES).contains(bytes)) {
        let what = format!("memory_bytes = {bytes} is too little for a node");
        let remedy = "use at least 268435456 (256 MiB); 0 for no bound";
        return Err(source.at("limits.memory_bytes", what, remedy));
    }
    let LimitsConfig { warn_free_bytes: warn, min_free_bytes: min, .. } = config;
    if warn > 0 && min > warn {
        let what = format!("min_free_bytes = {min} is more than warn_free_bytes, {warn}");
        let remedy = "give warn_free_bytes a greater value, so that the warning comes first";
        let offset = source.offset("limits.min_free_bytes").or(source.offset("limits.warn_free_bytes"));
        return Err(source.error(offset, what, remedy));
    }
    Ok(())
}
