//! Query parameters of a request: duplicate and unknown parameters are errors.

use crate::access::api::Refusal;
use crate::access::report::question::decoded;

pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the query of a URL.
    ///
    /// # Errors
    /// [`Refusal::Bad`]: a percent-encoded part is not UTF-8.
    pub(super) fn parse(query: &str) -> Result<Query, Refusal> {
        let parts = query.split('&').filter(|part| !part.is_empty());
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let wrong = || Refusal::Bad(format!("`{part}` is not percent-encoded UTF-8"));
            Ok((decoded(name).ok_or_else(wrong)?, decoded(value).ok_or_else(wrong)?))
        };
        parts.map(pair).collect::<Result<_, _>>().map(Query)
    }

    /// Removes and returns the value of a single parameter.
    ///
    /// # Errors
    /// [`Refusal::Bad`]: duplicate parameter.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        let mut found = self.take_all(name);
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(Refusal::Bad(format!("`{name}` is given twice"))),
        }
    }

    /// Removes and returns all values of a repeatable parameter.
    pub(super) fn take_all(&mut self, name: &str) -> Vec<String> {
        self.0.extract_if(.., |(given, _)| given == name).map(|(_, value)| value).collect()
    }

    /// Removes a flag and returns its value; a flag without a value is true.
    ///
    /// # Errors
    /// [`Refusal::Bad`]: the value is neither `true` nor `false`.
    pub(super) fn take_flag(&mut self, name: &str) -> Result<bool, Refusal> {
        match self.take(name)?.as_deref() {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(other) => Err(Refusal::Bad(format!("{name}={other} is not {name}, or {name}=true"))),
        }
    }

    /// Removes and returns a number within bounds.
    ///
    /// # Errors
    /// [`Refusal::Bad`].
    pub(super) fn take_number(&mut self, name: &str, bounds: (i64, i64)) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let (least, most) = bounds;
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let wrong = || Refusal::Bad(format!("{name}={text} is not a number from {least} to {most}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// Refuses parameters that no caller has read.
    ///
    /// # Errors
    /// [`Refusal::Bad`].
    pub(super) fn end(self) -> Result<(), Refusal> {
        match self.0.first() {
            Some((name, _)) => Err(Refusal::Bad(format!("there is no parameter `{name}` here"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_once_and_leftovers_are_refused() {
        let mut query = Query::parse("a=1&flag&b=%2Fx&b=y&n=7").unwrap();
        assert_eq!(query.take("a"), Ok(Some("1".to_owned())));
        assert_eq!(query.take("a"), Ok(None));
        assert_eq!((query.take_flag("flag"), query.take_flag("none")), (Ok(true), Ok(false)));
        assert_eq!(query.take_number("n", (0, 7)), Ok(Some(7)));
        assert_eq!(query.take_all("b"), ["/x", "y"]);
        assert_eq!(query.end(), Ok(()));
        let twice = Query::parse("b=1&b=2").unwrap().take("b");
        assert_eq!(twice, Err(Refusal::Bad("`b` is given twice".to_owned())));
        assert!(Query::parse("n=8").unwrap().take_number("n", (0, 7)).is_err());
        assert!(Query::parse("f=1").unwrap().take_flag("f").is_err());
        assert!(Query::parse("x=%ff").is_err() && Query::parse("x=1").unwrap().end().is_err());
    }
}
