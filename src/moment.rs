//! Times and durations as people write and read them. Always UTC: nodes, clients and readers may be anywhere.

use std::time::Duration;

const DAY_S: i64 = 86_400;

/// `2026-11-20T13:42:05.123Z`
pub fn rfc3339(unix_ms: i64) -> String {
    let (seconds, ms) = (unix_ms.div_euclid(1_000), unix_ms.rem_euclid(1_000));
    let (days, second) = (seconds.div_euclid(DAY_S), seconds.rem_euclid(DAY_S));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// `0.25 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`: the two largest units.
pub fn span(ms: i64) -> String {
    let seconds = ms / 1_000;
    let of = |size: i64, unit: &str, rest: i64, small: &str| match rest {
        0 => format!("{} {unit}", seconds / size),
        rest => format!("{} {unit} {rest} {small}", seconds / size),
    };
    match seconds {
        s if s < 10 => format!("{}.{:02} s", s, ms % 1_000 / 10),
        s if s < 60 => format!("{s} s"),
        s if s < 3_600 => of(60, "min", s % 60, "s"),
        s if s < DAY_S => of(3_600, "h", s % 3_600 / 60, "min"),
        s => of(DAY_S, "d", s % DAY_S / 3_600, "h"),
    }
}

/// What a person means by a point in the past: `10m` ago (s, m, h, d), `2026-11-20T13:42:05Z`, seconds since
/// 1970.
pub fn past(text: &str, now_ms: i64) -> Result<i64, String> {
    let wrong = || format!("{text}: use 10m (s, m, h, d), 2026-11-20T13:42:05Z, or seconds since 1970");
    if let Some(ago) = ago(text) {
        return Ok(now_ms.saturating_sub(i64::try_from(ago.as_millis()).unwrap_or(i64::MAX)));
    }
    if let Ok(seconds) = text.parse::<f64>() {
        let ms = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?.as_millis();
        return i64::try_from(ms).map_err(|_| wrong());
    }
    parse_rfc3339(text).ok_or_else(wrong)
}

fn ago(text: &str) -> Option<Duration> {
    let unit = match text.bytes().last()? {
        b's' => 1.0,
        b'm' => 60.0,
        b'h' => 3_600.0,
        b'd' => DAY_S as f64,
        _ => return None,
    };
    let number: f64 = text[..text.len() - 1].parse().ok()?;
    Duration::try_from_secs_f64(number * unit).ok()
}

/// With a fraction or without; with `Z` or an offset; a blank may stand for the `T`.
fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let offset_s = match &time[zone..] {
        "Z" | "z" => 0,
        offset => {
            let (hours, minutes) = offset[1..].split_once(':')?;
            let seconds = hours.parse::<i64>().ok()? * 3_600 + minutes.parse::<i64>().ok()? * 60;
            if offset.starts_with('-') { -seconds } else { seconds }
        }
    };
    let mut parts = time[..zone].splitn(3, ':');
    let (hour, minute) = (parts.next()?.parse::<i64>().ok()?, parts.next()?.parse::<i64>().ok()?);
    let second: f64 = parts.next()?.parse().ok()?;
    let in_range = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..61.0).contains(&second);
    let days = days(year, month, day);
    let ms = (second * 1_000.0).round() as i64;
    in_range.then(|| (days * DAY_S + hour * 3_600 + minute * 60 - offset_s) * 1_000 + ms)
}

/// Year, month, day of a day since 1970-01-01; Howard Hinnant's `civil_from_days`. Years begin in March
/// there, so that the leap day is their last.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The opposite of [`date`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = (month + 9) % 12;
    let of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    era * 146_097 + of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_go_there_and_back_over_leap_years() {
        for day in -200_000..200_000 {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month, of_month), day);
        }
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999Z");
        for ms in [0, 951_782_400_001, 1_795_181_663_219] {
            assert_eq!(parse_rfc3339(&rfc3339(ms)), Some(ms));
        }
    }

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
