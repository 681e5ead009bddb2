//! Section `[log]`: level and slow requests. `log = "info"` sets the level alone.
//!
//! Section `[limits]`: bounds on the memory and disk that clients can make a node use.
//!
//! Section `[audit]`: the audit log. Section `[history]`: the lock history.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::duration;
use rowlock_env::process;
use rowlock_proto::NodeId;
use rowlock_wal::Acknowledge;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::ConfigError;
use super::source::Source;
use crate::node::audit::{Event, Settings};

/// Section `[log]` of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Level or filter such as `info,rowlock_consensus::raft=debug`; `--log` and `ROWLOCK_LOG` take
    /// precedence.
    pub level: String,
    /// Duration from which the node logs a request with its stages; `"0s"`: each, `"off"`: none.
    #[serde(rename = "slow_request", with = "duration::or_off")]
    pub slow_request_ms: Option<u64>,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { level: "info".to_owned(), slow_request_ms: Some(1_000) }
    }
}

/// Reads the table, or the level alone.
pub(super) fn level_or_table<'de, D: Deserializer<'de>>(from: D) -> Result<LogConfig, D::Error> {
    from.deserialize_any(Either)
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = LogConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a level or the table [log]")
    }

    fn visit_str<E>(self, level: &str) -> Result<LogConfig, E> {
        Ok(LogConfig { level: level.to_owned(), ..LogConfig::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<LogConfig, A::Error> {
        LogConfig::deserialize(MapAccessDeserializer::new(table))
    }
}

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

pub(super) fn check_limits(source: &Source<'_>, config: LimitsConfig) -> Result<(), ConfigError> {
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

/// Section `[audit]` of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Name in the data folder, or absolute path; `{id}` stands for the node's number. Not set: no audit log.
    pub file: Option<PathBuf>,
    /// Recorded kinds of events: `auth`, `acl`, `admin`, `denied`, `locks`, `writes`.
    pub events: BTreeSet<Event>,
    /// Bytes of a file, which then becomes `audit.log.1`.
    pub max_bytes: u64,
    /// Number of older files to keep.
    pub keep: u32,
}

impl Default for AuditConfig {
    fn default() -> Self {
        let events = [Event::Auth, Event::Acl, Event::Admin, Event::Denied].into();
        AuditConfig { file: None, events, max_bytes: 64 << 20, keep: 8 }
    }
}

impl AuditConfig {
    /// Returns the settings of this node's audit log, if it has one.
    pub fn settings(&self, id: NodeId, data_dir: &Path) -> Option<Settings> {
        let file = data_dir.join(super::security::numbered(self.file.as_deref()?, id));
        Some(Settings { file, max_bytes: self.max_bytes, keep: self.keep })
    }
}

/// Section `[locks]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocksConfig {
    /// `"flushed"`: grants and releases are on the disks of a quorum before their answers. `"written"`: a
    /// quorum's kernels have them, and a loss of power of a majority may forget them; then all sessions end,
    /// and no session opens before every former holder has given up. Linux only.
    pub acknowledge: AcknowledgeLocks,
    /// Milliseconds within which `"written"` flushes, 1 to 10,000.
    pub flush_within_ms: u64,
}

/// Moment of the answer to a command about locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcknowledgeLocks {
    /// After the flush at a quorum.
    #[default]
    Flushed,
    /// After the write; the flush follows.
    Written,
}

impl Default for LocksConfig {
    /// Returns the mode in which no power loss forgets a grant.
    fn default() -> Self {
        LocksConfig { acknowledge: AcknowledgeLocks::Flushed, flush_within_ms: 100 }
    }
}

impl LocksConfig {
    /// Returns the time at which the log acknowledges.
    pub fn acknowledge(&self) -> Acknowledge {
        match self.acknowledge {
            AcknowledgeLocks::Flushed => Acknowledge::Flushed,
            AcknowledgeLocks::Written => {
                Acknowledge::Written { flush_within: Duration::from_millis(self.flush_within_ms) }
            }
        }
    }
}

/// Range of the time until a flush: a longer wait gains nothing and forgets more.
const FLUSH_WITHIN_MS: RangeInclusive<u64> = 1..=10_000;

pub(super) fn check_locks(source: &Source<'_>, locks: LocksConfig) -> Result<(), ConfigError> {
    if FLUSH_WITHIN_MS.contains(&locks.flush_within_ms) {
        return Ok(());
    }
    let what = format!("flush_within_ms = {} is out of range", locks.flush_within_ms);
    Err(source.at("locks.flush_within_ms", what, "use 1 to 10000 (10 s), e.g. 100"))
}

/// Settings of the lock history, part of the configuration of every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// Records the lock events on each node.
    pub enabled: bool,
    /// Age after which records are removed.
    #[serde(rename = "max_age", with = "duration")]
    pub max_age_ms: u64,
    /// Disk space per node in bytes, at least 64 MiB. A record takes about 130 bytes, an undisturbed lock
    /// three records.
    pub max_bytes: u64,
}

impl Default for HistoryConfig {
    /// Returns the default: a week, in a quarter of a gigabyte.
    fn default() -> Self {
        HistoryConfig { enabled: true, max_age_ms: 7 * 86_400_000, max_bytes: 256 << 20 }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use rowlock_wal::Acknowledge;

    use crate::config::{ClusterConfig, ConfigError, LogConfig};

    fn parse(log: &str) -> Result<LogConfig, ConfigError> {
        let node = "[[node]]\nid = 1\nclient = \"127.0.0.1:2181\"\npeer = \"127.0.0.1:2881\"\n";
        let read = ClusterConfig::parse(&format!("{log}\n{node}"), Path::new("cluster.toml"))?;
        let again = ClusterConfig::parse(&read.to_toml(), Path::new("cluster.toml"))?;
        assert_eq!(again.log, read.log, "it is read as it was written");
        Ok(read.log)
    }

    #[test]
    fn the_level_alone_and_the_table_say_the_same() {
        assert_eq!(parse(""), Ok(LogConfig::default()));
        let debug = LogConfig { level: "debug".to_owned(), ..LogConfig::default() };
        assert_eq!(parse("log = \"debug\""), Ok(debug.clone()));
        assert_eq!(parse("[log]\nlevel = \"debug\""), Ok(debug));
    }

    #[test]
    fn a_slow_request_is_a_time_or_none_is() {
        for (text, ms) in [("100ms", Some(100)), ("2s", Some(2_000)), ("0s", Some(0)), ("off", None)] {
            assert_eq!(parse(&format!("[log]\nslow_request = \"{text}\"")).unwrap().slow_request_ms, ms);
        }
        let wrong = parse("[log]\nlevel = \"info\"\nslow_request = \"100\"").unwrap_err();
        assert_eq!((wrong.line, wrong.remedy.contains("\"100ms\"")), (Some(3), true), "{wrong}");
        let unknown = parse("[log]\nslow = \"1s\"").unwrap_err();
        assert!(unknown.line == Some(2) && unknown.to_string().contains("slow"), "{unknown}");
        let number = parse("log = 7").unwrap_err();
        assert!(number.to_string().contains("a level or the table [log]"), "{number}");
    }

    #[test]
    fn locks_are_flushed_before_their_answers_unless_the_file_says_otherwise() {
        let read = |text: &str| {
            let node = "[[node]]\nid = 1\nclient = \"127.0.0.1:2181\"\npeer = \"127.0.0.1:2881\"\n";
            ClusterConfig::parse(&format!("{text}{node}"), Path::new("cluster.toml"))
        };
        let acknowledge = |text| read(text).expect("is right").locks.acknowledge();
        let within = |ms| Acknowledge::Written { flush_within: Duration::from_millis(ms) };
        assert_eq!(acknowledge(""), Acknowledge::Flushed);
        assert_eq!(acknowledge("[locks]\nacknowledge = \"written\"\n"), within(100));
        assert_eq!(acknowledge("[locks]\nacknowledge = \"written\"\nflush_within_ms = 20\n"), within(20));
        let zero = read("[locks]\nflush_within_ms = 0\n").unwrap_err();
        assert!(zero.line == Some(2) && zero.to_string().contains("1 to 10000"), "{zero}");
        let unknown = read("[locks]\nacknowledge = \"maybe\"\n").unwrap_err().to_string();
        assert!(unknown.contains("unknown variant `maybe`") && unknown.contains("use one of"), "{unknown}");
    }
}
