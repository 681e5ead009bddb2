//! Colors at a terminal, plain text anywhere else.

use crate::print::{out, outln};
use std::io::IsTerminal;

/// Escape codes for a stream, if the stream takes any.
#[derive(Clone, Copy)]
pub struct Paint {
    terminal: bool,
}

impl Paint {
    /// Creates the paint for this process's stdout.
    pub fn stdout() -> Self {
        Paint::of(&std::io::stdout())
    }

    /// Creates the paint for this process's stderr.
    pub fn stderr() -> Self {
        Paint::of(&std::io::stderr())
    }

    /// NO_COLOR (<https://no-color.org>) turns colors off.
    fn of(stream: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Paint { terminal: stream.is_terminal() && !refused }
    }

    /// Returns true at a terminal: a person watches, and lines can be overwritten.
    pub fn is_terminal(self) -> bool {
        self.terminal
    }

    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Paints failures and injected faults.
    pub fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Paints details that a reader may skip.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.terminal { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Progress line, overwritten by each update; without a terminal, one line per change.
pub struct Progress {
    paint: Paint,
    last: String,
}

impl Progress {
    pub fn new(paint: Paint) -> Self {
        Progress { paint, last: String::new() }
    }

    pub fn show(&mut self, line: &str) {
        use std::io::Write;
        if line == self.last {
            return;
        }
        self.last = line.to_owned();
        if self.paint.terminal {
            out!("\r\x1b[K  {line}");
            // The next real output detects a vanished terminal.
            let _ = std::io::stdout().flush();
        } else {
            outln!("  {line}");
        }
    }

    /// Clears the progress line: following output starts on an empty line.
    pub fn done(self) {
        if self.paint.terminal {
            out!("\r\x1b[K");
        }
    }
}
