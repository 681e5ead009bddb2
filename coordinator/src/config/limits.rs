//! Section `[limits]`: bounds on the memory and disk that clients can make a node use.

use rowlock_env::process;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::source::Source;

/// A large state's log alone may use this much memory.
const MEMORY_MIN_BYTES: u64 = 256 << 20;

/// Divisor of the machine's memory for the default bound. Checking a snapshot needs the state a second time,
/// and the program, its threads and the allocator need the last third.
const MEMORY_PART: u64 = 3;

/// Section `[limits]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Open sessions of the cluster; 0: no bound. Forced releases by HTTP, and superusers with a certificate
    /// or token, have a sixteenth more.
    pub sessions: u64,
    /// Share of a host (an IPv4 address, an IPv6 /64): the host may open a session while it has fewer than
    /// this many times the free sessions. With 4, one host alone gets four fifths. Raise it, or `sessions`,
    /// behind NAT or a proxy; 0: no shares.
    pub sessions_share: u64,
    /// Memory of a node in bytes, at least 256 MiB; beyond, the node refuses growing writes. 0: no bound. Not
    /// set: a third of the memory of the machine or the cgroup.
    pub memory_bytes: Option<u64>,
    /// Free bytes on the data folder's file system below which the node warns; 0: never.
    pub warn_free_bytes: u64,
    /// Free bytes below which the node is short of room: growing writes are refused while too few voters have
    /// more; 0: never.
    pub min_free_bytes: u64,
    /// Size in bytes of the file `reserve`, which gives its room to the log on a full disk; 0: none.
    pub reserve_bytes: u64,
}

impl Default for LimitsConfig {
    /// Allows as many sessions as five nodes have connections, four log segments of free space, and a reserve
    /// of one more.
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
    /// Returns the maximum memory of a node in bytes; 0: no bound.
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
