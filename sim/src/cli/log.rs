//! Logs of simulated nodes and clients on stderr, with the simulated time and the host of each line.

use std::fmt;

use rowlock_env::world;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::Failure;
use crate::paint::Paint;

/// Simulated time and current host; wall-clock time outside of a world.
struct When;

impl FormatTime for When {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        match world::place() {
            Some(place) => line.write_str(&place),
            None => SystemTime.format_time(line),
        }
    }
}

/// Starts logging at `filter`: a level, or directives such as `info,rowlock_consensus::raft=debug`.
///
/// # Errors
/// `filter` contains a word that is neither a level nor a directive.
pub fn start(filter: &str) -> Result<(), Failure> {
    let targets = rowlock_terminal::log_filter::check(filter)?;
    let lines = tracing_subscriber::fmt::layer().with_timer(When).with_writer(std::io::stderr);
    let lines = lines.with_ansi(Paint::stderr().is_terminal()).log_internal_errors(false);
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
    Ok(())
}
