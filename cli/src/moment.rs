//! Parsing and formatting of times and durations. Always UTC: nodes, clients and readers may be anywhere.

use std::time::Duration;

use rowlock_coordinator::node::moment::parse_rfc3339;
pub use rowlock_coordinator::node::moment::rfc3339;

const DAY_S: i64 = 86_400;

/// Formats a duration by its two largest units: `0.25 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`.
pub fn span(ms: i64) -> String {
    let seconds = ms / 1_000;
    let units = |size: i64, unit: &str, rest: i64, small: &str| match rest {
        0 => format!("{} {unit}", seconds / size),
        rest => format!("{} {unit} {rest} {small}", seconds / size),
    };
    match seconds {
        s if s < 10 => format!("{}.{:02} s", s, ms % 1_000 / 10),
        s if s < 60 => format!("{s} s"),
        s if s < 3_600 => units(60, "min", s % 60, "s"),
        s if s < DAY_S => units(3_600, "h", s % 3_600 / 60, "min"),
        s => units(DAY_S, "d", s % DAY_S / 3_600, "h"),
    }
}

/// Parses a point in the past, in ms since 1970: `10m` ago (s, m, h, d), `2026-11-20T13:42:05Z`, or seconds
/// since 1970.
pub fn past(text: &str, now_ms: i64) -> Result<i64, String> {
    let wrong = || format!("{text}: use 10m (s, m, h, d), 2026-11-20T13:42:05Z, or seconds since 1970");
    if let Ok(seconds) = text.parse::<f64>() {
        let ms = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?.as_millis();
        return i64::try_from(ms).map_err(|_| wrong());
    }
    if let Ok(ago) = duration(text) {
        return Ok(now_ms.saturating_sub(i64::try_from(ago.as_millis()).unwrap_or(i64::MAX)));
    }
    parse_rfc3339(text).ok_or_else(wrong)
}

/// Parses the duration of an option, see [`rowlock_client::parse_duration`].
pub fn duration(text: &str) -> Result<Duration, String> {
    rowlock_client::parse_duration(text).map_err(|e| e.to_string())
}

/// Parses as [`duration`] does, and refuses zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_moments_are_understood_in_all_three_forms() {
        let now = 1_795_181_663_219;
        assert_eq!(past("10m", now), Ok(now - 600_000));
        assert_eq!(past("1.5h", now), Ok(now - 5_400_000));
        assert_eq!(past("1795181663.219", now), Ok(now));
        assert_eq!(past("2026-11-20T13:34:23.219Z", now), Ok(1_795_181_663_219));
        assert_eq!(past("2026-11-20 15:34:23+02:00", now), Ok(1_795_181_663_000));
        for wrong in ["", "m", "yesterday", "2026-13-01T00:00:00Z", "2026-11-20", "-5m", "1e400", "é"] {
            assert!(past(wrong, now).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wait_may_not_be_zero() {
        assert!(positive_duration("0s").is_err() && positive_duration("1ms").is_ok());
    }

    #[test]
    fn spans_show_their_two_largest_units() {
        for (ms, text) in [
            (0, "0.00 s"),
            (254, "0.25 s"),
            (9_999, "9.99 s"),
            (42_700, "42 s"),
            (200_000, "3 min 20 s"),
            (180_000, "3 min"),
            (7_500_000, "2 h 5 min"),
            (356_400_000, "4 d 3 h"),
        ] {
            assert_eq!(span(ms), text);
        }
    }
}
