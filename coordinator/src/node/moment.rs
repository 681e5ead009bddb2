//! Times for people (RFC 3339), always in UTC: nodes, clients and readers may be in different time zones.

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, PrimitiveDateTime};

/// Formats milliseconds since 1970 like `2026-11-20T13:42:05.123Z`. Later times than the year 9999 become the
/// end of 9999.
pub fn rfc3339(unix_ms: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ms) * 1_000_000);
    let end = if unix_ms < 0 { PrimitiveDateTime::MIN } else { PrimitiveDateTime::MAX };
    let at = at.unwrap_or(end.assume_utc());
    let (hour, minute, second, ms) = at.time().as_hms_milli();
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Parses a time into milliseconds since 1970. The fraction is optional; the zone is `Z` or an offset; a
/// space may replace the `T`.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(&text.replacen(' ', "T", 1), &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_round_trips_over_leap_years() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(i64::MAX), "9999-12-31T23:59:59.999Z");
        for ms in [0, 951_782_400_001, 1_795_181_663_219] {
            assert_eq!(parse_rfc3339(&rfc3339(ms)), Some(ms));
        }
        assert_eq!(parse_rfc3339("2000-02-29t01:00:00+01:00"), Some(951_782_400_000));
        for wrong in ["10000-01-01T00:00:00Z", "-1-01-01T00:00:00Z", "2001-02-29T00:00:00Z", "2026-11-20"] {
            assert_eq!(parse_rfc3339(wrong), None, "{wrong}");
        }
    }
}
