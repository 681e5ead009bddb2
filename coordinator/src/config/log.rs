//! Section `[log]`: level and slow requests. `log = "info"` sets the level alone.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::duration;

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

#[cfg(test)]
mod tests {
    use std::path::Path;

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
}
