//! `rowlock lock`: runs a command under a lock, in the manner of flock(1).
//!
//! connect -> wait in the queue -> run the command -> release. While the command runs, `supervise` watches
//! the lock's deadline: the command gets SIGTERM shortly before the deadline and SIGKILL at the deadline,
//! before the cluster grants the lock to the next client.
//!
//! `options`: flags; `queued`: the common part of `lock`, `sem` and `once`; `under`: runs a command under
//! anything held (`held`); `supervise` waits for the command; `job` is the command's process, `exec` and
//! `warden` tie the command to this process, `terminal` is job control, `passed` forwards signals; `sign`
//! serves the leadership over HTTP, `terraform` answers Terraform's requests (`loopback`).

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
use options::{TimeLimit, request_on_terms};
pub use processes::SELF_EXE;
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
        let acquire = async |client: &Client, owner, limit: &TimeLimit| {
            let mut request = self.name.mutex(client).request();
            if self.shared {
                request = request.shared();
            }
            request_on_terms!(request, self.queued.terms, owner, limit)
        };
        self.queued.run(&self.name, self.nonblock, acquire).await
    }
}
