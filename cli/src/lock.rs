//! `rowlock lock`: runs a command under a lock, in the manner of flock(1).
//!
//! connect -> wait in the queue -> run the command -> release. While the command runs, the lock's deadline is
//! watched: the command is asked to end (SIGTERM) shortly before the deadline and killed (SIGKILL) at it,
//! which is before the cluster grants the lock to the next.
//!
//! `options`: flags; `queued`: what `lock`, `sem` and `once` share; `under`: running a command under anything
//! that is held (`held`); `supervise` waits for the command; `job` is its process, `exec` and `warden` tie it
//! to this process, `terminal` is job control, `passed` forwards signals; `sign` tells by HTTP whether it
//! leads, `terraform` answers its command (`loopback`).

pub mod elect;
pub mod exec;
mod held;
mod http_server;
mod job;
pub mod once;
mod options;
mod passed;
mod processes;
mod queued;
pub mod sem;
mod sign;
mod supervise;
mod terminal;
pub mod terraform;
mod under;
pub mod warden;

use std::process::ExitCode;

use rowlock_client::Client;

use crate::exit::Failure;
use crate::name::Name;
use options::{Asking, ask_on_terms};
pub use processes::OURSELVES;
use queued::Queued;

/// Run a command under a lock, or hold the lock until a signal
#[derive(clap::Args)]
pub struct Lock {
    #[command(flatten)]
    name: Name,
    /// Share the lock with other holders in shared mode
    #[arg(short, long, overrides_with = "exclusive")]
    shared: bool,
    /// Hold the lock exclusively (the default)
    #[arg(short = 'x', long, short_alias = 'e', overrides_with = "shared")]
    exclusive: bool,
    /// Accepted for compatibility with flock; has no effect
    #[arg(short = 'o', long, hide = true)]
    close: bool,
    /// Fail instead of waiting if the lock is busy
    #[arg(short, long, visible_alias = "nb", conflicts_with = "timeout")]
    nonblock: bool,
    #[command(flatten)]
    queued: Queued,
}

impl Lock {
    /// Exits with the command's code.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let ask = async |client: &Client, owner, asking: &Asking| {
            let mut request = self.name.mutex(client).request();
            if self.shared {
                request = request.shared();
            }
            ask_on_terms!(request, self.queued.terms, owner, asking)
        };
        self.queued.run(&self.name, self.nonblock, ask).await
    }
}
