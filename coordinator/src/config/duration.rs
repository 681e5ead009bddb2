//! Text form of durations: a number and a unit, like "7d", "12h", "30m", "90s" or "100ms".

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

/// Units in milliseconds, the longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Text of an absent duration.
const OFF: &str = "off";

/// Parses a duration into milliseconds.
pub fn parse(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*ms)
}

/// Returns the shortest text that [`parse`] reads as `ms` milliseconds.
pub fn text(ms: u64) -> String {
    let fits = |(_, unit_ms): &&(&str, u64)| ms.is_multiple_of(*unit_ms);
    let (unit, unit_ms) = UNITS.iter().find(fits).unwrap_or(&("ms", 1));
    format!("{}{unit}", ms / unit_ms)
}

/// Reads a duration in milliseconds, for `#[serde(with)]`.
///
/// # Errors
/// The text is not a duration: the message has the cause and a remedy, separated by "; ".
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let remedy = "is not a duration; use a number and a unit, e.g. \"7d\", \"12h\", \"1s\", \"100ms\"";
    parse(&String::deserialize(from)?).ok_or_else(|| D::Error::custom(remedy))
}

/// Writes a duration of milliseconds, for `#[serde(with)]`.
///
/// # Errors
/// Those of `to`.
pub fn serialize<S: Serializer>(ms: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text(*ms))
}

/// A duration, or "off" for `None`, for `#[serde(with)]`.
pub mod or_off {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::{OFF, parse, text};

    /// Reads a duration or "off", in milliseconds.
    ///
    /// # Errors
    /// The errors of [`super::deserialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        let written = String::deserialize(from)?;
        if written == OFF {
            return Ok(None);
        }
        let remedy = "is not a duration; use \"off\", or a number and a unit, e.g. \"6h\", \"1s\", \"100ms\"";
        parse(&written).map(Some).ok_or_else(|| D::Error::custom(remedy))
    }

    /// Writes a duration of milliseconds, or "off".
    ///
    /// # Errors
    /// Those of `to`.
    pub fn serialize<S: Serializer>(ms: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&ms.map_or(OFF.to_owned(), text))
    }
}
