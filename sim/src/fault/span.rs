//! Durations as people write them: `12.5s`, `400ms`. Exact to the nanosecond in both directions.

use std::time::Duration;

const UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Writes the duration in the largest unit of s, ms, us, ns with a value of at least 1.
pub fn show(span: Duration) -> String {
    let nanos = span.as_nanos();
    let (unit, size) = UNITS[..4]
        .iter()
        .rev()
        .find(|(_, size)| nanos >= u128::from(*size))
        .copied()
        .unwrap_or(("s", 1_000_000_000));
    let size = u128::from(size);
    let (whole, rest) = (nanos / size, nanos % size);
    if rest == 0 {
        return format!("{whole}{unit}");
    }
    let digits = size.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    format!("{whole}.{}{unit}", fraction.trim_end_matches('0'))
}

/// Reads the output of [`show`], and minutes and hours too. The error names the mistake and a right form.
pub fn read(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no length of time; write for example 4s, 2.5s, 400ms, 10m");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let (_, size) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let nanos = parts(whole, fraction, *size).ok_or_else(wrong)?;
    Ok(Duration::from_nanos(nanos))
}

/// Returns nanoseconds; `None` for text that is not a number, or is too large or too precise.
fn parts(whole: &str, fraction: &str, size: u64) -> Option<u64> {
    let whole: u64 = whole.parse().ok()?;
    if fraction.is_empty() || fraction.len() > 12 || fraction.contains('.') {
        return None;
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction = u128::from(fraction.parse::<u64>().ok()?) * u128::from(size);
    if fraction % scale != 0 {
        return None;
    }
    whole.checked_mul(size)?.checked_add(u64::try_from(fraction / scale).ok()?)
}
