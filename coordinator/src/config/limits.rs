//! `[limits]`: bounds of what clients make a node hold, in memory and on its disk.

use std::fmt::Write as _;

use rowlock_env::process;
use serde::Deserialize;
use toml::Spanned;

use super::ConfigError;
use super::check::Source;

/// The log of a large state alone may have so much in memory.
const MEMORY_MIN_BYTES: u64 = 256 << 20;

/// Of the memory, what a node may hold by default. A snapshot needs the state once more while it is checked,
/// and the program, its threads and the allocator need the last part.
const MEMORY_PART: u64 = 3;

/// `[limits]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawLimits {
    sessions: Option<u64>,
    sessions_share: Option<u64>,
    memory_bytes: Option<Spanned<u64>>,
    warn_free_bytes: Option<u64>,
    min_free_bytes: Option<Spanned<u64>>,
    reserve_bytes: Option<u64>,
}

impl RawLimits {
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        if let Some(bytes) =
            self.memory_bytes.as_ref().filter(|b| (1..MEMORY_MIN_BYTES).contains(b.get_ref()))
        {
            let what = format!("memory_bytes = {} is too little for a node", bytes.get_ref());
            return Err(source.at(bytes, what, "use at least 268435456 (256 MiB); 0 for no bound"));
        }
        let warn = self.warn_free_bytes.unwrap_or(LimitsConfig::default().warn_free_bytes);
        match self.min_free_bytes.as_ref().filter(|min| warn > 0 && *min.get_ref() > warn) {
            Some(min) => {
                let what = format!("min_free_bytes = {} is more than warn_free_bytes, {warn}", min.get_ref());
                Err(source.at(
                    min,
                    what,
                    "give warn_free_bytes a greater value, so that the warning comes first",
                ))
            }
            None => Ok(()),
        }
    }

    pub(super) fn config(self) -> LimitsConfig {
        let default = LimitsConfig::default();
        LimitsConfig {
            sessions: self.sessions.unwrap_or(default.sessions),
            sessions_share: self.sessions_share.unwrap_or(default.sessions_share),
            memory_bytes: self.memory_bytes.map(Spanned::into_inner),
            warn_free_bytes: self.warn_free_bytes.unwrap_or(default.warn_free_bytes),
            min_free_bytes: self.min_free_bytes.map_or(default.min_free_bytes, Spanned::into_inner),
            reserve_bytes: self.reserve_bytes.unwrap_or(default.reserve_bytes),
        }
    }
}

pub(super) fn print(out: &mut String, config: LimitsConfig) {
    let LimitsConfig {
        sessions,
        sessions_share,
        memory_bytes,
        warn_free_bytes,
        min_free_bytes,
        reserve_bytes,
    } = config;
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "\n[limits]\nsessions = {sessions}\nsessions_share = {sessions_share}\nwarn_free_bytes = {warn_free_bytes}\nmin_free_bytes = {min_free_bytes}\n\
         reserve_bytes = {reserve_bytes}\n"
    );
    if let Some(bytes) = memory_bytes {
        let _ = writeln!(out, "memory_bytes = {bytes}");
    }
}
