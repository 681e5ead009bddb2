//! `rowlock __exec`: first stage of a command under a lock. The process ties its life to the `rowlock lock`
//! that started it, stops itself until that process has instructed the warden and continues it, and then
//! becomes the command. A `rowlock lock` that is killed or stopped never leaves a command running without a
//! lock.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::exit::{Failure, LOST, NOT_EXECUTABLE, NOT_FOUND, SOFTWARE, USAGE};

/// Become a command that ends with its parent
#[derive(clap::Args)]
pub struct Exec {
    /// Process id of the starting `rowlock lock`
    parent: i32,
    /// Command with its arguments
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

impl Exec {
    /// Replaces this process by the command. Returns only if the command cannot be executed.
    pub fn run(self) -> Result<ExitCode, Failure> {
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|e| Failure::new(SOFTWARE, format!("cannot be tied to process {}: {e}", self.parent)))?;
        // The parent may have ended between the start of this process and the line above.
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
