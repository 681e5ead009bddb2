//! Text for stdout and stderr. The reader may leave early (`| head -1`). That is no failure of this process,
//! and no reason to stop other work, such as running a command under a lock.
//!
//! Invariant: nothing here panics, as `println!` and `eprintln!` do when the reader is gone.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

use tokio::sync::Notify;

use crate::exit::{Failure, IO};

/// What follows ESC in them.
const COLORS: [&str; 5] = ["[0m", "[1m", "[2m", "[31m", "[32m"];

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

/// Writes a message to stderr; see `errln!`. Messages quote text of servers, clients and files.
pub fn say(text: Arguments<'_>) {
    // A message that cannot be written has no reader.
    let _ = std::io::stderr().lock().write_all(without_codes(&text.to_string()).as_bytes());
}

/// Foreign text (of clients, servers, files) for one line, without what a terminal obeys: control characters,
/// and characters that hide text or turn its direction, are blanks.
pub fn safe(text: &str) -> String {
    text.chars().map(|letter| if is_obeyed(letter) { ' ' } else { letter }).collect()
}

/// The same for several lines.
pub fn safe_lines(text: &str) -> String {
    text.chars().map(|letter| if letter != '\n' && is_obeyed(letter) { ' ' } else { letter }).collect()
}

/// JSON text with these characters as escapes, which its readers take for the same.
pub fn safe_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        // Control characters can only be blanks between values here.
        match letter {
            letter if is_obeyed(letter) && !letter.is_ascii() => {
                // All of them have four digits. Writing to a String cannot fail.
                let _ = std::fmt::Write::write_fmt(&mut out, format_args!("\\u{:04x}", u32::from(letter)));
            }
            letter => out.push(letter),
        }
    }
    out
}

/// Several lines with no escape codes but our own colors ([`crate::paint::Paint`]).
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

fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(u32::from(letter), 0x61c | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_speak_to_the_terminal() {
        assert_eq!(safe("a\x1b[2Jb\tc\nd\u{202e}e\u{2066}f\u{9b}g"), "a [2Jb c d e f g");
        assert_eq!(safe_lines("a\n\u{202e}b"), "a\n b");
        assert_eq!(safe("żółw 龜 🐢"), "żółw 龜 🐢");
    }

    #[test]
    fn json_means_the_same_and_hides_nothing() {
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
