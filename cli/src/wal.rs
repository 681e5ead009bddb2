//! `rowlock wal`: shows the log of a data folder. Works offline and changes nothing.

mod dump;
pub mod inspect;
mod words;

use std::path::Path;
use std::process::ExitCode;

use crate::exit::{Failure, IO};

/// Inspect the log of a data folder, even a damaged one
///
/// Works offline, changes nothing, and reports unreadable records with file and offset. The end of a running
/// node's log may look unfinished.
#[derive(clap::Args)]
pub struct Wal {
    #[command(subcommand)]
    command: WalCommand,
}

#[derive(clap::Subcommand)]
enum WalCommand {
    Inspect(inspect::Inspect),
    Dump(dump::Dump),
}

impl Wal {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            WalCommand::Inspect(inspect) => inspect.run(),
            WalCommand::Dump(dump) => dump.run(),
        }
    }
}

/// Failure to open or read the log in `folder`.
fn unreadable(folder: &Path, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => "; name the data folder of a node, in which `wal` is",
        _ => "",
    };
    Failure::new(IO, format!("{}: {error}{hint}", folder.display()))
}
