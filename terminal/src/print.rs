//! Text for stdout and stderr. The reader may leave early (`| head -1`). That is no failure of this process,
//! and no reason to stop other work, such as running a command under a lock.
//!
//! Invariant: nothing here panics, as `println!` and `eprintln!` do when the reader is gone.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

use tokio::sync::Notify;

use crate::exit::{Failure, IO};

static READER_GONE: Notify = Notify::const_new();

/// Writes an answer to stdout. If its reader is gone, the failure prints no message.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::new(IO, format!("cannot write the answer: {e}")),
    })
}

/// Writes output that no reader is needed for; see `out!` and `outln!`.
pub fn tell(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if out.write_fmt(text).and_then(|()| out.flush()).is_err() {
        READER_GONE.notify_one();
    }
}

/// Writes a message to stderr; see `errln!`.
pub fn say(text: Arguments<'_>) {
    // A message that cannot be written has no reader.
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Returns once output could not be written.
pub async fn reader_gone() {
    READER_GONE.notified().await;
}

/// `print!` that ignores a reader who is gone.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::print::tell(format_args!($($text)*)) };
}

/// `println!` that ignores a reader who is gone.
#[macro_export]
macro_rules! outln {
    () => { $crate::print::tell(format_args!("\n")) };
    ($($text:tt)*) => { $crate::print::tell(format_args!("{}\n", format_args!($($text)*))) };
}

/// `eprintln!` that ignores a reader who is gone.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::print::say(format_args!("{}\n", format_args!($($text)*))) };
}

pub use crate::{errln, out, outln};
