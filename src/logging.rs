//! Structured logs of a node on stderr: level by flag, environment or file, as text or JSON lines.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::{Failure, USAGE};

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// Starts logging at `filter`: a level, or directives such as `info,rowlock_coordinator::raft=debug`.
///
/// A bare level means our own crates; openraft, which says every step at info, stays at warn.
pub fn start(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let bare_level = !filter.contains(['=', ',']);
    let directives = match filter {
        "debug" | "trace" => format!("{filter},openraft=info"),
        _ if bare_level => format!("{filter},openraft=error"),
        _ => filter.to_owned(),
    };
    let filter: Targets = directives.parse().map_err(|e| {
        Failure::new(
            USAGE,
            format!("log level \"{filter}\" is not valid ({e}); use error, warn, info, debug or trace"),
        )
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Ok(())
}
