//! Conditions on the figures of the table, as text: `zk.windows = 0 and redis.lost > 2 * script.lost`. Claims
//! and predictions consist of them.

use std::time::Duration;

use crate::table::Summary;

/// Value of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    /// `None`: the event never happened.
    Time(Option<Duration>),
}

impl Value {
    /// Returns a number to compare: times in seconds.
    fn number(self) -> Option<f64> {
        match self {
            Value::Number(number) => Some(number),
            Value::Time(time) => time.map(|time| time.as_secs_f64()),
        }
    }
}

/// Figures of one or several runs, added up.
pub type Cell<'a> = Vec<&'a Summary>;

/// Returns a figure by its name; `None`: no figure has the name.
pub fn figure(cell: &[&Summary], name: &str) -> Option<Value> {
    let sum = |of: fn(&Summary) -> f64| Some(Value::Number(cell.iter().map(|m| of(m)).sum()));
    let longest =
        |of: fn(&Summary) -> Option<Duration>| Some(Value::Time(cell.iter().map(|m| of(m)).max().flatten()));
    match name {
        "runs" => sum(|m| m.runs as f64),
        "grants" => sum(|m| m.grants as f64),
        "windows" => sum(|m| m.windows as f64),
        "lost" => sum(|m| m.lost_plain as f64),
        "lost-fenced" => sum(|m| m.lost_fenced as f64),
        "refused" => sum(|m| m.refused as f64),
        "stuck" => sum(|m| m.stuck as f64),
        "starved" => sum(|m| m.starved as f64),
        "unserved" => sum(|m| (m.stuck + m.starved) as f64),
        "overtakes" => sum(|m| m.overtakes as f64),
        "renewals-refused" => sum(|m| m.renewals_refused as f64),
        "told" => sum(|m| m.told as f64),
        "messages" => sum(Summary::messages_per_release),
        "wasted" => sum(Summary::wasted_per_release),
        "scenarios" => sum(|_| 1.0),
        "bad-scenarios" => sum(|m| f64::from(m.windows > 0 || m.stuck > 0)),
        "wait-p50" => longest(|m| Some(m.wait_p50)),
        "recovery" => longest(|m| m.recovery),
        "unavailable" => longest(|m| Some(m.unavailable)),
        _ => None,
    }
}

/// Comparisons, all of which must hold.
#[derive(Clone, Debug)]
pub struct Condition(Vec<(Side, String, Side)>);

/// Sum of terms: each a factor, and a figure as cell and name, if any.
type Side = Vec<(f64, Option<(String, String)>)>;

impl Condition {
    /// Parses comparisons. A figure without a cell's name belongs to the cell `""`.
    ///
    /// # Errors
    /// The text is not a condition; the error names the part.
    pub fn parse(text: &str) -> Result<Condition, String> {
        let comparison = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let is_operator = |word: &&str| ["=", "<", ">", ">="].contains(word);
            let at = words.iter().position(is_operator).ok_or(format!("no comparison in {text:?}"))?;
            Ok((side(&words[..at])?, words[at].to_owned(), side(&words[at + 1..])?))
        };
        text.split(" and ").map(comparison).collect::<Result<_, String>>().map(Condition)
    }

    /// Compares. `None`: a figure is absent.
    pub fn holds<'a>(&self, cell: impl Fn(&str) -> Option<Cell<'a>>) -> Option<bool> {
        // A time that never came meets no comparison.
        let sum = |side: &Side| -> Option<Option<f64>> {
            let mut sum = Some(0.0);
            for (factor, of) in side {
                let value = match of {
                    Some((of, name)) => figure(&cell(of)?, name)?.number(),
                    None => Some(1.0),
                };
                sum = sum.zip(value).map(|(sum, value)| sum + factor * value);
            }
            Some(sum)
        };
        let mut all = true;
        for (left, operator, right) in &self.0 {
            all &= sum(left)?.zip(sum(right)?).is_some_and(|(left, right)| match operator.as_str() {
                "=" => left == right,
                "<" => left < right,
                ">" => left > right,
                _ => left >= right,
            });
        }
        Some(all)
    }
}

fn side(words: &[&str]) -> Result<Side, String> {
    let term = |words: &[&str]| match words {
        [number] if number.parse::<f64>().is_ok() => Ok((number.parse().unwrap_or_default(), None)),
        [figure] => Ok((1.0, Some(named(figure)))),
        [factor, "*", figure] => {
            let factor = factor.parse().map_err(|e| format!("{factor:?} is not a number: {e}"))?;
            Ok((factor, Some(named(figure))))
        }
        _ => Err(format!("{words:?} is neither a number nor a figure")),
    };
    words.split(|word| *word == "+").map(term).collect()
}

/// Splits a figure into the cell's name and the figure's.
pub fn named(figure: &str) -> (String, String) {
    let (cell, name) = figure.split_once('.').unwrap_or(("", figure));
    (cell.to_owned(), name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_compares_sums_of_figures() {
        let one = Summary { windows: 3, recovery: Some(Duration::from_secs(9)), ..Summary::default() };
        let other = Summary { windows: 2, ..Summary::default() };
        let holds = |text: &str| {
            let cell = |name: &str| match name {
                "a" => Some(vec![&one]),
                "b" => Some(vec![&other]),
                "all" => Some(vec![&one, &other]),
                _ => None,
            };
            Condition::parse(text).expect("is a condition").holds(cell)
        };
        assert_eq!(holds("a.windows = 3"), Some(true));
        assert_eq!(holds("a.windows + b.windows = all.windows and a.windows > b.windows + 1"), Some(false));
        assert_eq!(holds("a.windows < 2 * b.windows and a.recovery >= 9"), Some(true));
        assert_eq!(holds("b.recovery >= 0"), Some(false), "what never came meets no comparison");
        assert_eq!(holds("c.windows = 0"), None);
        assert_eq!(holds("a.nothing = 0"), None);
        assert!(Condition::parse("a.windows").is_err() && Condition::parse("a b > 1").is_err());
    }
}
