//! Moments as people write and read them (RFC 3339). Always UTC: nodes, clients and readers may be anywhere.

const DAY_S: i64 = 86_400;
/// What [`rfc3339`] can write: four digits of a year.
const YEARS: std::ops::RangeInclusive<i64> = 0..=9_999;

/// `2026-11-20T13:42:05.123Z`
pub fn rfc3339(unix_ms: i64) -> String {
    let (seconds, ms) = (unix_ms.div_euclid(1_000), unix_ms.rem_euclid(1_000));
    let (days, second) = (seconds.div_euclid(DAY_S), seconds.rem_euclid(DAY_S));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// With a fraction or without; with `Z` or an offset; a blank may stand for the `T`.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let offset_s = match &time[zone..] {
        "Z" | "z" => 0,
        offset => {
            let (hours, minutes) = offset[1..].split_once(':')?;
            let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
            let seconds = i64::from(hours) * 3_600 + i64::from(minutes) * 60;
            if offset.starts_with('-') { -seconds } else { seconds }
        }
    };
    let mut parts = time[..zone].splitn(3, ':');
    let (hour, minute) = (parts.next()?.parse::<i64>().ok()?, parts.next()?.parse::<i64>().ok()?);
    let second: f64 = parts.next()?.parse().ok()?;
    let in_range = YEARS.contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..61.0).contains(&second);
    let ms = (second * 1_000.0).round() as i64;
    in_range.then(|| (days(year, month, day) * DAY_S + hour * 3_600 + minute * 60 - offset_s) * 1_000 + ms)
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
        for far in ["10000-01-01T00:00:00Z", "9223372036854775807-01-01T00:00:00Z", "-1-01-01T00:00:00Z"] {
            assert_eq!(parse_rfc3339(far), None);
        }
    }
}
