//! Structured logs of a node: level by flag, environment, file or an operator's command, as text or JSON
//! lines. The sink carries the lines to stderr: a bounded queue, and a thread that writes.
//!
//! A reader of stderr that stops (a full pipe, a hung collector) blocks this thread and nothing else. The
//! sink drops and counts lines while the queue is full; the thread logs the count as soon as there is room,
//! and a metric has it too. Invariant: logging never waits for stderr. Only the end of the process waits, up
//! to a deadline.
//!
//! Not `tracing-appender`: its queue bounds lines instead of bytes (a line may be as long as a client's
//! path), and a panic cannot bypass its queue.

use std::io;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rowlock_coordinator::LogSwitch;
use rowlock_coordinator::limits::LOG_QUEUE_MAX_BYTES;
use rowlock_metrics::Metrics;
use rowlock_terminal::log_filter::check;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;

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

/// Longest wait for the last lines at the end of the process.
const END_DEADLINE: Duration = Duration::from_secs(1);
/// Longest wait after a panic. Other threads go on meanwhile.
const PANIC_DEADLINE: Duration = Duration::from_millis(200);
/// Pause before another write to a full, nonblocking stderr.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// Largest buffer reused for the next lines; a larger one is shrunk.
const KEPT_BYTES: usize = 64 << 10;

/// Receiver of log lines. Clones share one queue.
#[derive(Clone)]
pub struct LogSink {
    shared: Arc<SinkState>,
}

struct SinkState {
    queue: Mutex<LineQueue>,
    filled: Condvar,
    drained: Condvar,
    max_bytes: usize,
}

#[derive(Default)]
struct LineQueue {
    lines: Vec<u8>,
    /// True while the thread writes taken lines.
    is_writing: bool,
    /// Lines dropped since the last report.
    dropped: u64,
    /// Lines dropped before `metrics` was set.
    uncounted: u64,
    metrics: Option<Arc<Metrics>>,
}

impl LogSink {
    pub fn start() -> LogSink {
        LogSink::to(LOG_QUEUE_MAX_BYTES, |bytes| rustix::io::write(rustix::stdio::stderr(), bytes))
    }

    fn to(
        max_bytes: usize,
        write: impl FnMut(&[u8]) -> rustix::io::Result<usize> + Send + 'static,
    ) -> LogSink {
        let (queue, filled, drained) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(SinkState { queue, filled, drained, max_bytes });
        let sink = LogSink { shared: shared.clone() };
        std::thread::Builder::new()
            .name("rowlock-log".to_owned())
            .spawn(move || shared.write_all(write))
            .expect("the system can start a thread while the node starts");
        sink
    }

    /// Counts dropped lines in `metrics`, including earlier ones.
    pub fn set_metrics(&self, metrics: Arc<Metrics>) {
        let mut queue = self.shared.queue.lock();
        metrics.log_lines_dropped_total.add(take(&mut queue.uncounted));
        queue.metrics = Some(metrics);
    }

    /// Queues the last line of the process, even if the queue is full, and waits until the queue is written,
    /// at most [`END_DEADLINE`].
    pub fn end(&self, line: &[u8]) {
        let mut queue = self.shared.queue.lock();
        queue.lines.extend_from_slice(line);
        self.shared.flush(&mut queue, END_DEADLINE);
    }

    /// Writes panics to this sink and ends the process: the default hook would wait for stderr.
    pub fn take_panics(&self) {
        let shared = self.shared.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or("<unnamed>");
            let backtrace = std::backtrace::Backtrace::capture();
            let text = match backtrace.status() {
                std::backtrace::BacktraceStatus::Captured => {
                    format!("thread '{thread}' {panic}\n{backtrace}\n")
                }
                _ => format!("thread '{thread}' {panic}\n"),
            };
            // The panicking thread may hold the lock.
            if let Some(mut queue) = shared.queue.try_lock_for(PANIC_DEADLINE) {
                queue.lines.extend_from_slice(text.as_bytes());
                shared.flush(&mut queue, PANIC_DEADLINE);
            }
            std::process::abort();
        }));
    }
}

impl io::Write for LogSink {
    /// Queues one line per call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.shared.queue.lock();
        if queue.lines.len() + line.len() > self.shared.max_bytes {
            queue.dropped += 1;
            queue.count(1);
        } else {
            queue.lines.extend_from_slice(line);
            self.shared.filled.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LineQueue {
    fn count(&mut self, count: u64) {
        match &self.metrics {
            Some(metrics) => metrics.log_lines_dropped_total.add(count),
            None => self.uncounted += count,
        }
    }
}

impl SinkState {
    fn flush(&self, queue: &mut parking_lot::MutexGuard<'_, LineQueue>, deadline: Duration) {
        self.filled.notify_one();
        let is_left = |queue: &mut LineQueue| queue.is_writing || !queue.lines.is_empty();
        // Past the deadline the lines are lost with the process.
        let _ = self.drained.wait_while_for(queue, is_left, deadline);
    }

    /// Body of the thread. Never returns: lines may come until the process ends.
    fn write_all(&self, mut write: impl FnMut(&[u8]) -> rustix::io::Result<usize>) {
        loop {
            let mut queue = self.queue.lock();
            queue.is_writing = false;
            if queue.lines.is_empty() {
                self.drained.notify_all();
                self.filled.wait_while(&mut queue, |queue| queue.lines.is_empty());
            }
            queue.is_writing = true;
            let (mut lines, dropped) = (take(&mut queue.lines), take(&mut queue.dropped));
            drop(queue);
            if dropped > 0 {
                // The queue was just emptied: this line fits, and follows the lines before the gap.
                tracing::warn!(dropped, "log lines were dropped: the reader of stderr was too slow");
            }
            let lost = write_lines(&mut write, &lines);
            lines.clear();
            lines.shrink_to(KEPT_BYTES);
            let mut queue = self.queue.lock();
            queue.count(lost);
            if queue.lines.is_empty() {
                queue.lines = lines;
            }
        }
    }
}

/// Writes all lines; returns the number of lines refused by stderr for good.
fn write_lines(write: &mut impl FnMut(&[u8]) -> rustix::io::Result<usize>, lines: &[u8]) -> u64 {
    let mut rest = lines;
    while !rest.is_empty() {
        match write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(rustix::io::Errno::INTR) => {}
            // Another program has made the terminal nonblocking.
            Err(rustix::io::Errno::AGAIN) => rowlock_env::worker::pause(FULL_PAUSE),
            Err(_) => return rest.iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc;

    use super::*;

    /// Returns a sink of 30 bytes whose reader accepts one write per message.
    fn hanging() -> (LogSink, mpsc::Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (reads, read) = mpsc::channel::<()>();
        let written = Arc::new(Mutex::new(Vec::new()));
        let output = written.clone();
        let sink = LogSink::to(30, move |bytes| {
            let _ = read.recv();
            output.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        });
        (sink, reads, written)
    }

    #[test]
    fn a_hung_reader_drops_and_counts_lines_and_keeps_earlier_ones() {
        let (mut sink, reads, written) = hanging();
        let before: Arc<Metrics> = Arc::default();
        let mut queued = Vec::new();
        // At most 30 bytes are with the thread, and 30 are queued.
        for n in 0..10 {
            let line = format!("line {n:04}\n");
            sink.write_all(line.as_bytes()).unwrap();
            let queue = sink.shared.queue.lock();
            if queue.uncounted == 0 {
                queued.push(line);
            }
        }
        sink.set_metrics(before.clone());
        let dropped = before.log_lines_dropped_total.get();
        assert!((4..=7).contains(&dropped), "{dropped} of ten are dropped");
        drop(reads);
        sink.end(b"the last\n");
        let text = String::from_utf8(written.lock().clone()).unwrap();
        assert!(text.starts_with(&queued.concat()), "{text}");
        assert!(text.ends_with("the last\n"), "{text}");
        assert_eq!(before.log_lines_dropped_total.get(), dropped);
    }

    #[test]
    fn the_end_waits_for_a_reader_that_hangs_until_its_deadline() {
        let (mut sink, _reads, written) = hanging();
        sink.write_all(b"one\n").unwrap();
        sink.end(b"two\n");
        assert!(written.lock().is_empty(), "the reader has not moved, and the end came");
    }

    #[test]
    fn a_closed_stream_counts_lines_and_a_full_one_is_retried() {
        let mut answers = [Err(rustix::io::Errno::AGAIN), Ok(2), Err(rustix::io::Errno::PIPE)].into_iter();
        let mut write = |_: &[u8]| answers.next().unwrap();
        assert_eq!(write_lines(&mut write, b"a\nb\nc\n"), 2);
    }
}
