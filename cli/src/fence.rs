//! `rowlock fence`: keeps late holders from overwriting files. docs/fencing.md, "Files".
//!
//! `FILE.fence` has the largest token so far, as 20 digits and a line end, written by one write. The file's
//! lock (flock) is held during the comparison, and until the end of the command that writes FILE. Processes
//! left behind by the command do not hold the lock.
//!
//! A command adds a second process: a guard that compares, holds the lock and waits for the command. The
//! command stays guarded if this process is killed.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::getpgrp;

use crate::exit::{DATA_FOLDER, Failure, IO, NOT_EXECUTABLE, NOT_FOUND, REFUSED, SOFTWARE};
use crate::lock::SELF_EXE;

/// Largest possible token: a position in the log.
const TOKEN_MAX: u64 = i64::MAX as u64;

/// Keep late holders of a lock from writing a file
#[derive(clap::Args)]
pub struct Fence {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    #[command(after_help = crate::help::FENCE)]
    Check(CheckToken),
}

/// Compare a fencing token with the largest one in FILE.fence, and store it there
///
/// With a command, keeps FILE.fence locked until it ends, so that compare and write are one step.
#[derive(clap::Args)]
struct CheckToken {
    /// File that the lock guards; it need not exist
    file: PathBuf,
    /// Fencing token of the lock
    #[arg(long, value_name = "TOKEN", env = "ROWLOCK_LOCK_TOKEN", value_parser = clap::value_parser!(u64).range(..=TOKEN_MAX))]
    token: u64,
    /// This is the guard, and its command belongs to this process group
    #[arg(long, value_name = "PGID", hide = true)]
    guard: Option<i32>,
    /// Command that writes the file, with its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Fence {
    /// Returns the exit code of the command, if any.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let Subcommand::Check(check) = self.command;
        check.run()
    }
}

impl CheckToken {
    fn run(self) -> Result<ExitCode, Failure> {
        if self.guard.is_none() && !self.command.is_empty() {
            return self.start_guard();
        }
        let fence = FenceFile::open(&self.file)?;
        flock(&fence.file, FlockOperation::LockExclusive).map_err(|e| fence.not_locked(e))?;
        fence.admit(self.token)?;
        match self.command.split_first() {
            None => Ok(ExitCode::SUCCESS),
            Some((program, arguments)) => execute(program, arguments, self.guard),
        }
    }

    /// Compares and runs the command in a process with its own group, out of reach of signals to this group.
    fn start_guard(self) -> Result<ExitCode, Failure> {
        let mut guard = Command::new(SELF_EXE);
        guard.arg0("rowlock").args(["fence", "check"]).arg(self.file);
        guard.args(["--token", &self.token.to_string()]);
        guard.args(["--guard", &getpgrp().as_raw_nonzero().to_string(), "--"]).args(self.command);
        let status = guard.process_group(0).status();
        let status = status.map_err(|e| Failure::new(SOFTWARE, format!("cannot start {SELF_EXE}: {e}")))?;
        Ok(code_of(status))
    }
}

/// FILE.fence of a guarded file, open for a check.
pub struct FenceFile {
    file: File,
    path: PathBuf,
}

impl FenceFile {
    /// Opens FILE.fence of the file, or creates it.
    pub fn open(guarded: &Path) -> Result<FenceFile, Failure> {
        let mut path = guarded.as_os_str().to_owned();
        path.push(".fence");
        let path = PathBuf::from(path);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let file = open(&path, flags, Mode::from_raw_mode(0o666)).map_err(|e| not_opened(&path, e))?;
        let file = File::from(file);
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(not_opened(&path, Errno::LOOP));
        }
        Ok(FenceFile { file, path })
    }

    /// Locks the file until `self` is dropped, without waiting. Returns false if another process has the
    /// lock.
    pub fn try_lock(&self) -> Result<bool, Failure> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(self.not_locked(e)),
        }
    }

    /// Refuses a token below the largest one so far, and stores a larger one. The file must be locked.
    pub fn admit(&self, token: u64) -> Result<(), Failure> {
        let path = &self.path;
        let seen = largest_token(&self.file, path)?;
        if token < seen {
            let problem = format!("{}: stale token {token}", path.display());
            let why = format!("a holder with token {seen} has been here, so the lock is lost");
            return Err(Failure::new(REFUSED, format!("{problem}: {why}; nothing was changed")));
        }
        if token > seen {
            let written = self.file.write_all_at(format!("{token:020}\n").as_bytes(), 0);
            written.and_then(|()| self.file.sync_data()).map_err(|e| failed(IO, "write", path, &e))?;
        }
        Ok(())
    }

    fn not_locked(&self, e: Errno) -> Failure {
        failed(IO, "lock", &self.path, &e.into())
    }
}

/// Reports a FILE.fence that cannot be used.
fn not_opened(path: &Path, e: Errno) -> Failure {
    if e != Errno::LOOP {
        return failed(DATA_FOLDER, "open", path, &e.into());
    }
    let problem = format!("{} is a link, or no regular file", path.display());
    Failure::new(DATA_FOLDER, format!("{problem}, so that a write could end elsewhere; remove it"))
}

/// Returns the largest token so far; 0 for a new file.
fn largest_token(file: &File, path: &Path) -> Result<u64, Failure> {
    let mut text = [0; 32];
    let length = file.read_at(&mut text, 0).map_err(|e| failed(IO, "read", path, &e))?;
    let text = String::from_utf8_lossy(&text[..length]);
    if text.is_empty() {
        return Ok(0);
    }
    let digits = text.strip_suffix('\n').and_then(|digits| digits.parse().ok());
    let digits = digits.filter(|token| *token <= TOKEN_MAX);
    digits.ok_or_else(|| {
        let problem = format!("{} has no token; remove it if no holder of the lock is alive", path.display());
        Failure::new(DATA_FOLDER, problem)
    })
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Runs the command in the process group `group` and waits for its end.
fn execute(program: &OsString, arguments: &[OsString], group: Option<i32>) -> Result<ExitCode, Failure> {
    let shown = program.to_string_lossy();
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(group) = group {
        command.process_group(group);
    }
    match command.status() {
        Ok(status) => Ok(code_of(status)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Err(Failure::new(NOT_FOUND, format!("{shown}: no such command")))
        }
        Err(e) => Err(Failure::new(NOT_EXECUTABLE, format!("{shown} cannot be executed: {e}"))),
    }
}

fn failed(code: u8, verb: &str, path: &Path, e: &std::io::Error) -> Failure {
    Failure::new(code, format!("cannot {verb} {}: {e}", path.display()))
}
