//! `rowlock fence`: files that a late holder cannot overwrite. docs/fencing.md, "Files".
//!
//! `FILE.fence` has the largest token that came, as 20 digits and a line end, written in one piece. Its lock
//! (flock) is held while a token is compared, and until the command that writes FILE has ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::exit::{DATA_FOLDER, Failure, IO, NOT_EXECUTABLE, NOT_FOUND, REFUSED};

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
    #[arg(long, value_name = "N", env = "ROWLOCK_LOCK_TOKEN")]
    token: u64,
    /// Command that writes the file, with its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Fence {
    /// Returns the exit code of the command, if there is one.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let Subcommand::Check(check) = self.command;
        check.run()
    }
}

impl CheckToken {
    fn run(self) -> Result<ExitCode, Failure> {
        let mut path = self.file.into_os_string();
        path.push(".fence");
        let path = PathBuf::from(path);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = open(&path, flags, Mode::from_raw_mode(0o666));
        let file = File::from(file.map_err(|e| failed(DATA_FOLDER, "open", &path, &e.into()))?);
        flock(&file, FlockOperation::LockExclusive).map_err(|e| failed(IO, "lock", &path, &e.into()))?;
        let seen = seen(&file, &path)?;
        if self.token < seen {
            let what = format!("{}: stale token {}", path.display(), self.token);
            let why = format!("a holder with token {seen} has been here, so the lock is lost");
            return Err(Failure::new(REFUSED, format!("{what}: {why}; nothing was changed")));
        }
        if self.token > seen {
            let written = file.write_all_at(format!("{:020}\n", self.token).as_bytes(), 0);
            written.and_then(|()| file.sync_data()).map_err(|e| failed(IO, "write", &path, &e))?;
        }
        match self.command.split_first() {
            None => Ok(ExitCode::SUCCESS),
            Some((program, arguments)) => {
                // The command keeps the flock, so that it is guarded even if this process is killed.
                fcntl_setfd(&file, FdFlags::empty()).map_err(|e| failed(IO, "pass on", &path, &e.into()))?;
                execute(program, arguments)
            }
        }
    }
}

/// The largest token so far; 0 in a file that is new.
fn seen(file: &File, path: &Path) -> Result<u64, Failure> {
    let mut text = [0; 32];
    let length = file.read_at(&mut text, 0).map_err(|e| failed(IO, "read", path, &e))?;
    let text = String::from_utf8_lossy(&text[..length]);
    if text.is_empty() {
        return Ok(0);
    }
    let digits = text.strip_suffix('\n').and_then(|digits| digits.parse().ok());
    digits.ok_or_else(|| {
        let what = format!("{} has no token; remove it if no holder of the lock is alive", path.display());
        Failure::new(DATA_FOLDER, what)
    })
}

fn execute(program: &OsString, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let shown = program.to_string_lossy();
    match Command::new(program).args(arguments).status() {
        Ok(status) => {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Err(Failure::new(NOT_FOUND, format!("{shown}: no such command")))
        }
        Err(e) => Err(Failure::new(NOT_EXECUTABLE, format!("{shown} cannot be executed: {e}"))),
    }
}

fn failed(code: u8, verb: &str, path: &Path, e: &std::io::Error) -> Failure {
    Failure::new(code, format!("cannot {verb} {}: {e}", path.display()))
}
