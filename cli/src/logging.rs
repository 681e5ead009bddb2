//! Structured logs of a node: level by flag, environment, file or an operator's wish, as text or JSON lines.
//! A node's way to stderr is `log_sink`.

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

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Aligned columns, for people.
    #[default]
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// The filter of this process, which can be changed while it runs.
pub struct Switch {
    handle: Handle<Targets, Registry>,
    filters: Mutex<Filters>,
}

struct Filters {
    /// By flag, environment or file.
    usual: String,
    /// What an operator has put in its place.
    wished: Option<String>,
}

impl Switch {
    /// The file says something else now. What an operator has put in its place stays.
    pub fn set_usual(&self, filter: &str) -> Result<(), Failure> {
        let targets = check(filter)?;
        let mut filters = self.filters.lock();
        filter.clone_into(&mut filters.usual);
        if filters.wished.is_none() {
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
        filters.wished = filter.map(str::to_owned);
        self.reload(targets);
        Ok(())
    }

    fn current(&self) -> String {
        let filters = self.filters.lock();
        filters.wished.clone().unwrap_or_else(|| filters.usual.clone())
    }
}

/// Starts logging at `filter`: a level, or directives such as `info,rowlock_consensus::raft=debug`.
///
/// A bare level means our own crates; openraft, which logs every step at info, stays at warn.
///
/// Lines go to `writer`, one in each call.
pub fn start<W>(filter: &str, format: LogFormat, writer: W) -> Result<Arc<Switch>, Failure>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (targets, handle) = reload::Layer::new(check(filter)?);
    // The log's reader may go: the node goes on, and cannot report it anywhere.
    let lines = tracing_subscriber::fmt::layer();
    let lines = lines.with_writer(writer).log_internal_errors(false);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(Paint::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
    let filters = Mutex::new(Filters { usual: filter.to_owned(), wished: None });
    Ok(Arc::new(Switch { handle, filters }))
}
