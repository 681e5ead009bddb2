//! `rowlock __exec`: the first stage of a command under a lock. It ties itself to the `rowlock lock` that
//! started it, stops until that process, having told the warden, continues it, and then becomes the command.
//! So a `rowlock lock` that is killed or stopped never leaves a command that works without a lock.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::exit::{Failure, LOST, NOT_EXECUTABLE, NOT_FOUND, SOFTWARE, USAGE};

/// Become a command that ends with its parent
#[derive(clap::Args)]
pub struct Exec {
    /// The `rowlock lock` that started this
    parent: i32,
    /// The command: program and arguments
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

impl Exec {
    /// Returns only if the command cannot be executed.
    pub fn run(self) -> Result<ExitCode, Failure> {
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|e| Failure::new(SOFTWARE, format!("cannot be tied to process {}: {e}", self.parent)))?;
        // It may have ended between our start and the line above.
        if getppid() != Pid::from_raw(self.parent) {
            return Err(Failure::new(LOST, "the lock's process has ended: the command is not started"));
        }
        let Some((program, arguments)) = self.words.split_first() else {
            return Err(Failure::new(USAGE, "no command is given"));
        };
        kill_process(getpid(), Signal::STOP)
            .map_err(|e| Failure::new(SOFTWARE, format!("cannot wait for process {}: {e}", self.parent)))?;
        let e = Command::new(program).args(arguments).exec();
        let program = program.to_string_lossy();
        Err(match e.kind() {
            ErrorKind::NotFound => Failure::new(NOT_FOUND, format!("{program}: no such command")),
            _ => Failure::new(NOT_EXECUTABLE, format!("{program} cannot be executed: {e}")),
        })
    }
}
