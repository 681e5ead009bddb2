//! Errors of numbers in arguments: what the argument is, and an example, in place of the parser's reason.

use std::error::Error as _;
use std::num::ParseIntError;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Placeholders of arguments, each with the description of its numbers.
const NUMBERS: [(&str, &str); 8] = [
    ("TOKEN", "use a fencing token, a whole number that `rowlock queue` shows, such as 42"),
    ("ID", "use the id of a node in cluster.toml, such as 2"),
    ("NODE", "use the id of a node in cluster.toml, such as 2"),
    ("OLD", "use the id of a node in cluster.toml, such as 2"),
    ("NEW", "use an id that no node has had, such as 4"),
    ("PORT", "use a port from 1 to 65535, such as 2181"),
    ("CODE", "use an exit code from 0 to 255"),
    ("INDEX", "use the index of a log entry, such as 1200"),
];
const OTHER: &str = "use a whole number, such as 10";

/// Replaces the reason of a number's refusal by what to write. Returns other errors as they are.
pub fn explained(error: Error) -> Error {
    let (Some(ContextValue::String(argument)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return error;
    };
    let Some(remedy) = remedy(&error, argument) else { return error };
    let problem = format!("invalid value '{value}' for '{argument}': {remedy}");
    Error::raw(ErrorKind::ValueValidation, format!("{problem}\n\nFor more information, try '--help'.\n"))
}

fn remedy(error: &Error, argument: &str) -> Option<String> {
    let placeholder =
        argument.rsplit_once('<').map_or("", |(_, name)| name.trim_end_matches(['>', '.', ']']));
    let named = NUMBERS.iter().find(|(name, _)| *name == placeholder).map(|(_, text)| (*text).to_owned());
    let source = error.source()?;
    if source.is::<ParseIntError>() {
        return Some(named.unwrap_or_else(|| OTHER.to_owned()));
    }
    let reason = source.to_string();
    let (least, most) = reason.split_once(" is not in ")?.1.split_once("..=")?;
    // The largest value of a type is no limit that a person would choose.
    let is_of_type =
        [u32::MAX.into(), i64::MAX.unsigned_abs(), u64::MAX].iter().any(|max| most == max.to_string());
    named.or_else(|| {
        Some(match is_of_type {
            true => format!("use a whole number from {least}"),
            false => format!("use a whole number from {least} to {most}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn a_refused_number_says_what_to_write() {
        let said = |words: &str| {
            let words = ["rowlock"].into_iter().chain(words.split(' '));
            let error = crate::Cli::command().try_get_matches_from(words).unwrap_err();
            explained(error).to_string().lines().next().unwrap().to_owned()
        };
        for (words, remedy) in [
            (
                "release l --token x",
                "'--token <TOKEN>': use a fencing token, a whole number that `rowlock queue`",
            ),
            ("fence check f --token 18446744073709551616", "'--token <TOKEN>': use a fencing token"),
            ("queue l --limit many", "'--limit <N>': use a whole number, such as 10"),
            ("sem s -n x", "'--limit <N>': use a whole number, such as 10"),
            ("sem s -n 0", "'--limit <N>': use a whole number from 1"),
            ("drain x", "'<NODE>': use the id of a node in cluster.toml, such as 2"),
            ("rebalance --percent 101", "'--percent <N>': use a whole number from 1 to 100"),
            ("rebalance --percent 5 --node x", "'--node <ID>': use the id of a node"),
            ("up --base-port 70000", "'--base-port <PORT>': use a port from 1 to 65535"),
            ("lock l -E 256", "'--conflict-exit-code <CODE>': use an exit code from 0 to 255"),
            ("up --nodes 2", "'--nodes <N>': use 1, 3 or 5"),
        ] {
            let said = said(words);
            assert!(said.starts_with("error: invalid value '") && said.contains(remedy), "{said}");
        }
    }
}
