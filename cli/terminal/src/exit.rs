//! How the command ends: one line on stderr and an exit code that scripts can rely on (from sysexits.h where
//! it has one).
//!
//! Every subcommand returns `Result<ExitCode, Failure>`; only `main` prints a failure.

use std::fmt;

/// The cluster answered, and the answer is no: no such znode, wrong version, lock busy.
pub const REFUSED: u8 = 1;
/// EX_USAGE: the command line is wrong.
pub const USAGE: u8 = 64;
/// EX_UNAVAILABLE: no node could be reached in time, or a port is taken.
pub const UNAVAILABLE: u8 = 69;
pub const SOFTWARE: u8 = 70;
/// EX_CANTCREAT: the data folder cannot be used, or a file that is to be made exists.
pub const DATA_FOLDER: u8 = 73;
/// EX_IOERR: the disk, the network or another file failed.
pub const IO: u8 = 74;
/// EX_TEMPFAIL: the lock or the session was lost, or the outcome is unknown. Trying again may help.
pub const LOST: u8 = 75;
/// EX_CONFIG: cluster.toml or a certificate is wrong.
pub const CONFIG: u8 = 78;
/// Waiting would have closed a circle: the queue was not entered. The number follows those of sysexits.h.
pub const DEADLOCK: u8 = 79;
/// `rowlock once`: the command has run in this interval, or is running, on another host.
pub const RAN_ELSEWHERE: u8 = 80;
/// As shells do: the command was found and could not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// As shells do: there is no such command.
pub const NOT_FOUND: u8 = 127;

/// Why the command failed: what happened and, after a semicolon, what to do about it.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    /// One line for a person. Empty: there is nothing to say.
    pub message: String,
}

impl Failure {
    pub fn new(code: u8, message: impl fmt::Display) -> Self {
        Failure { code, message: message.to_string() }
    }

    /// The reader of our output has left (`| head -1`): nothing failed, and no message is printed.
    pub fn reader_gone() -> Self {
        Failure { code: 0, message: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
