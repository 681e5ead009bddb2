//! Colour at a terminal, plain text anywhere else.

use crate::print::{out, outln};
use std::io::IsTerminal;

/// Whether a stream takes escape codes.
#[derive(Clone, Copy)]
pub struct Paint {
    terminal: bool,
}

impl Paint {
    /// For this process's stdout.
    pub fn stdout() -> Self {
        Paint::of(&std::io::stdout())
    }

    /// For this process's stderr.
    pub fn stderr() -> Self {
        Paint::of(&std::io::stderr())
    }

    /// NO_COLOR (<https://no-color.org>) turns colours off.
    fn of(stream: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Paint { terminal: stream.is_terminal() && !refused }
    }

    /// Whether this is a terminal: a person watches, and lines can be overwritten.
    pub fn is_terminal(self) -> bool {
        self.terminal
    }

    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Failures, and what was broken on purpose.
    pub fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Details that a reader may skip.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.terminal { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// One line that is overwritten while something goes on; without a terminal, one line per change.
pub struct Progress {
    paint: Paint,
    last: String,
}

impl Progress {
    pub fn new(paint: Paint) -> Self {
        Progress { paint, last: String::new() }
    }

    /// Shows `line`, unless it is there already.
    pub fn show(&mut self, line: &str) {
        use std::io::Write;
        if line == self.last {
            return;
        }
        self.last = line.to_owned();
        if self.paint.terminal {
            out!("\r\x1b[K  {line}");
            // A terminal that is gone is noticed by the next real output.
            let _ = std::io::stdout().flush();
        } else {
            outln!("  {line}");
        }
    }

    /// The work is done: what follows starts on an empty line.
    pub fn done(self) {
        if self.paint.terminal {
            out!("\r\x1b[K");
        }
    }
}
