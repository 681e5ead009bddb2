//! Structured logs of a node: level by flag, environment, file or an operator's command, as text or JSON
//! lines. `log_sink` carries the lines to stderr.

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_coordinator::LogSwitch;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;

use rowlock_terminal::log_filter::check;

use crate::exit::Failure;
use crate::paint::Paint;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Aligned columns, for people.
    #[default]
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// Log filter of this process, replaceable while the process runs.
pub struct Switch {
    handle: Handle<Targets, Registry>,
    filters: Mutex<Filters>,
}

struct Filters {
    /// Filter from flag, environment or file.
    usual: String,
    /// Temporary filter of an operator.
    operator: Option<String>,
}

impl Switch {
    /// Replaces the usual filter after the file has changed. An operator's filter stays in force.
    pub fn set_usual(&self, filter: &str) -> Result<(), Failure> {
        let targets = check(filter)?;
        let mut filters = self.filters.lock();
        filter.clone_into(&mut filters.usual);
        if filters.operator.is_none() {
            self.reload(targets);
        }
        Ok(())
    }

    fn reload(&self, targets: Targets) {
        self.handle.reload(targets).expect("Invariant: the subscriber lives as long as the process");
    }
}

impl LogSwitch for Switch {
    fn set(&self, filter: Option<&str>) -> Result<(), String> {
        let mut filters = self.filters.lock();
        let targets = check(filter.unwrap_or(&filters.usual)).map_err(|refused| refused.message)?;
        filters.operator = filter.map(str::to_owned);
        self.reload(targets);
        Ok(())
    }

    fn current(&self) -> String {
        let filters = self.filters.lock();
        filters.operator.clone().unwrap_or_else(|| filters.usual.clone())
    }
}

/// Starts logging at `filter`: a level, or directives such as `info,rowlock_consensus::raft=debug`.
///
/// A bare level applies to our own crates; openraft, with a line per step at info, stays at warn.
///
/// Each line is one call of `writer`.
pub fn start<W>(filter: &str, format: LogFormat, writer: W) -> Result<Arc<Switch>, Failure>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (targets, handle) = reload::Layer::new(check(filter)?);
    // The reader of the log may vanish: the node goes on and has nowhere to report the loss.
    let lines = tracing_subscriber::fmt::layer();
    let lines = lines.with_writer(writer).log_internal_errors(false);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(Paint::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
    let filters = Mutex::new(Filters { usual: filter.to_owned(), operator: None });
    Ok(Arc::new(Switch { handle, filters }))
}
