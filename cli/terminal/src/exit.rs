//! Exit codes for scripts, from sysexits.h where possible, and the failure printed as one line on stderr.
//!
//! Every subcommand returns `Result<ExitCode, Failure>`; only `main` prints a failure.

use std::fmt;

/// The cluster answered with a refusal: no such znode, wrong version, lock busy.
pub const REFUSED: u8 = 1;
/// EX_USAGE: the command line is wrong.
pub const USAGE: u8 = 64;
/// EX_UNAVAILABLE: no node could be reached in time, or a port is in use.
pub const UNAVAILABLE: u8 = 69;
pub const SOFTWARE: u8 = 70;
/// EX_CANTCREAT: the data folder cannot be used, or a file to be created exists.
pub const DATA_FOLDER: u8 = 73;
/// EX_IOERR: the disk, the network or another file failed.
pub const IO: u8 = 74;
/// EX_TEMPFAIL: the lock or the session was lost, or the outcome is unknown. Trying again may help.
pub const LOST: u8 = 75;
/// EX_CONFIG: cluster.toml or a certificate is wrong.
pub const CONFIG: u8 = 78;
/// A deadlock: waiting would close a cycle, so the client did not enter the queue. Follows the numbers of
/// sysexits.h.
pub const DEADLOCK: u8 = 79;
/// `rowlock once`: the command has run in this interval, or is running, on another host.
pub const RAN_ELSEWHERE: u8 = 80;
/// The command exists but cannot be executed. Same code as in shells.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist. Same code as in shells.
pub const NOT_FOUND: u8 = 127;

/// Failure of a command: the cause and, after a semicolon, the remedy.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    /// One line for a person. Empty: prints nothing.
    pub message: String,
}

impl Failure {
    pub fn new(code: u8, message: impl fmt::Display) -> Self {
        Failure { code, message: message.to_string() }
    }

    /// Returns the result for a closed stdout (`| head -1`): nothing failed, and no message is printed.
    pub fn reader_gone() -> Self {
        Failure { code: 0, message: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
