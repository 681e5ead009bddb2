//! Log filters: a level, or directives such as `info,rowlock_consensus::raft=debug`.

use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::exit::{Failure, USAGE};

/// Parses `filter` into targets and levels.
///
/// # Errors
/// A directive is neither a level nor `target=level`: tracing would read that text as a target and silence
/// all further targets.
pub fn check(filter: &str) -> Result<Targets, Failure> {
    let wrong = |why: &str| {
        let use_these = "use error, warn, info, debug, trace or off, or directives such as info,rowlock_coordinator=debug";
        Failure::new(USAGE, format!("log level \"{filter}\" is not valid ({why}); {use_these}"))
    };
    for directive in filter.split(',').map(str::trim) {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        // An empty word would parse as `error`.
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(wrong(&format!("\"{level}\" is no level")));
        }
    }
    let directives = match filter {
        "debug" | "trace" => format!("{filter},openraft=info"),
        _ if !filter.contains(['=', ',']) => format!("{filter},openraft=error"),
        _ => filter.to_owned(),
    };
    directives.parse().map_err(|e| wrong(&format!("{e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_other_than_levels_are_refused() {
        for filter in ["info", "OFF", "info,rowlock_consensus::raft=debug", "a=warn, b=trace"] {
            assert!(check(filter).is_ok(), "{filter}");
        }
        for filter in ["inof", "", "info,", "a=inof", "rowlock_coordinator", "info,openraft"] {
            assert_eq!(check(filter).unwrap_err().code, USAGE, "{filter}");
        }
    }
}
