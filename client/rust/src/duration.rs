//! Durations as people write them, in variables of the environment and on the command line.

use std::time::Duration;

/// The text is not a duration; see [`parse_duration`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use a number of seconds, or a unit: 2.5, 500ms, 10s, 5m, 1h, 7d")]
pub struct ParseDurationError;

/// Parses a duration as the variables of the environment and the command line take it: `500ms`, `10s`,
/// `1.5h` (ms, s, m, h, d), or a number of seconds.
///
/// # Errors
/// The text has another form, or the number is negative or too large.
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let seconds = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(ParseDurationError),
    };
    let number: f64 = number.parse().map_err(|_| ParseDurationError)?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| ParseDurationError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_or_are_seconds() {
        let ms = |text| parse_duration(text).map(|time| time.as_millis());
        for (text, expected) in [
            ("2.5", 2_500),
            ("0", 0),
            ("500ms", 500),
            ("10s", 10_000),
            ("1.5h", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        for wrong in ["", "s", "ms", "soon", "1w", "-1s", "1e400", "10 s", "é", "10sé"] {
            assert!(ms(wrong).is_err(), "{wrong}");
        }
    }
}
