//! Output to stdout and stderr for readers that may leave early (`| head -1`). A closed pipe is no failure of
//! this process and no reason to stop other work, such as running a command under a lock.
//!
//! Invariant: nothing here panics, unlike `println!` and `eprintln!` with a closed pipe.

use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, Write};

use tokio::sync::Notify;

use crate::exit::{Failure, IO};

/// Color codes of this program, after ESC.
const COLORS: [&str; 5] = ["[0m", "[1m", "[2m", "[31m", "[32m"];

static READER_GONE: Notify = Notify::const_new();

/// Writes an answer to stdout. If the reader is gone, returns a failure without a message.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::new(IO, format!("cannot write the answer: {e}")),
    })
}

/// Writes optional output to stdout; see `out!` and `outln!`. Errors are ignored, but reported to
/// [`reader_gone`].
pub fn write_out(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if out.write_fmt(text).and_then(|()| out.flush()).is_err() {
        READER_GONE.notify_one();
    }
}

/// Writes a message to stderr; see `errln!`. Sanitizes the text, which may quote servers, clients and files.
pub fn write_err(text: Arguments<'_>) {
    // Ignores a failed write: no reader is left.
    let _ = std::io::stderr().lock().write_all(without_codes(&text.to_string()).as_bytes());
}

/// Sanitizes foreign text (of clients, servers, files) for one line: replaces control characters, and
/// characters that hide or reorder text, by blanks.
pub fn safe(text: &str) -> String {
    text.chars().map(|letter| if is_control(letter) { ' ' } else { letter }).collect()
}

/// Formats a number with its noun: `1 session`, `2 sessions`, `0 entries`.
pub fn count(number: impl Display, noun: &str) -> String {
    let number = number.to_string();
    match noun.strip_suffix('y') {
        _ if number == "1" => format!("{number} {noun}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {noun}s"),
    }
}

/// Sanitizes several lines as [`safe`] does.
pub fn safe_lines(text: &str) -> String {
    text.chars().map(|letter| if letter != '\n' && is_control(letter) { ' ' } else { letter }).collect()
}

/// Escapes such characters in JSON text without a change of meaning.
pub fn safe_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        // In JSON text a control character can only be a blank between values.
        match letter {
            letter if is_control(letter) && !letter.is_ascii() => {
                // All such characters have four digits. Writing to a String cannot fail.
                let _ = std::fmt::Write::write_fmt(&mut out, format_args!("\\u{:04x}", u32::from(letter)));
            }
            letter => out.push(letter),
        }
    }
    out
}

/// Removes all escape codes from several lines except our own colors ([`crate::paint::Paint`]).
fn without_codes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut pieces = text.split('\x1b');
    out.push_str(&safe_lines(pieces.next().unwrap_or_default()));
    for piece in pieces {
        let color = COLORS.iter().find(|color| piece.starts_with(**color));
        out.push(if color.is_some() { '\x1b' } else { ' ' });
        out.push_str(&safe_lines(piece));
    }
    out
}

fn is_control(letter: char) -> bool {
    letter.is_control()
        || matches!(u32::from(letter), 0x61c | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff)
}

/// Returns after a failed write of optional output.
pub async fn reader_gone() {
    READER_GONE.notified().await;
}

/// Same as `print!`, but ignores a closed stdout.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::print::write_out(format_args!($($text)*)) };
}

/// Same as `println!`, but ignores a closed stdout.
#[macro_export]
macro_rules! outln {
    () => { $crate::print::write_out(format_args!("\n")) };
    ($($text:tt)*) => { $crate::print::write_out(format_args!("{}\n", format_args!($($text)*))) };
}

/// Same as `eprintln!`, but ignores a closed stderr.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::print::write_err(format_args!("{}\n", format_args!($($text)*))) };
}

pub use crate::{errln, out, outln};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        assert_eq!(safe("a\x1b[2Jb\tc\nd\u{202e}e\u{2066}f\u{9b}g"), "a [2Jb c d e f g");
        assert_eq!(safe_lines("a\n\u{202e}b"), "a\n b");
        assert_eq!(safe("żółw 龜 🐢"), "żółw 龜 🐢");
    }

    #[test]
    fn one_thing_is_singular() {
        let all = [("session", 1), ("session", 0), ("entry", 2)].map(|(noun, number)| count(number, noun));
        assert_eq!(all, ["1 session", "0 sessions", "2 entries"]);
    }

    #[test]
    fn escaped_json_means_the_same_and_hides_nothing() {
        let json = "{\"a\":\"x\u{202e}y\u{feff}\"}\n";
        assert_eq!(safe_json(json), "{\"a\":\"x\\u202ey\\ufeff\"}\n");
    }

    #[test]
    fn messages_keep_our_own_colors_alone() {
        assert_eq!(
            without_codes("\x1b[31mbad\x1b[0m\n\x1b[2J\x1b]0;t\x07"),
            "\x1b[31mbad\x1b[0m\n [2J ]0;t "
        );
    }
}
