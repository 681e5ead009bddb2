//! `[log]`: what a node logs. Or `log = "info"`, where nothing but the level is said.

use std::fmt::{self, Write as _};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::ConfigError;
use super::check::Source;
use super::parse::{RawLogTable, duration_ms, duration_text, quote};

/// No request is told as slow.
const OFF: &str = "off";

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Level or filter (`--log` and ROWLOCK_LOG go before it).
    pub level: String,
    /// A request that takes so many milliseconds is told of, with its stages. `None`: none is.
    pub slow_request_ms: Option<u64>,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { level: "info".to_owned(), slow_request_ms: Some(1_000) }
    }
}

/// The table, or the level alone.
#[derive(Default)]
pub(super) struct RawLog(RawLogTable);

impl<'de> Deserialize<'de> for RawLog {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Either).map(RawLog)
    }
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = RawLogTable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a level or the table [log]")
    }

    fn visit_str<E>(self, level: &str) -> Result<RawLogTable, E> {
        Ok(RawLogTable { level: Some(level.to_owned()), slow_request: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<RawLogTable, A::Error> {
        RawLogTable::deserialize(MapAccessDeserializer::new(table))
    }
}

impl RawLog {
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let is_good = |text: &str| text == OFF || duration_ms(text).is_some();
        match self.0.slow_request.as_ref().filter(|text| !is_good(text.get_ref())) {
            None => Ok(()),
            Some(text) => {
                let what = format!("slow_request = \"{}\" in [log] is no time", text.get_ref());
                Err(source.at(text, what, "use e.g. \"100ms\", \"1s\" or \"off\""))
            }
        }
    }

    pub(super) fn config(self) -> LogConfig {
        let (RawLogTable { level, slow_request }, usual) = (self.0, LogConfig::default());
        let slow_request_ms = slow_request.map_or(usual.slow_request_ms, |text| duration_ms(text.get_ref()));
        LogConfig { level: level.unwrap_or(usual.level), slow_request_ms }
    }
}

pub(super) fn print(out: &mut String, config: &LogConfig) {
    let slow = config.slow_request_ms.map_or(OFF.to_owned(), duration_text);
    // Writing to a String cannot fail.
    let _ = write!(out, "\n[log]\nlevel = {}\nslow_request = {}\n", quote(&config.level), quote(&slow));
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
