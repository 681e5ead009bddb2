//! `rowlock lock`: a command under a lock, in the manner of flock(1).
//!
//! connect -> wait in the queue -> run the command -> release. While the command runs, the lock's deadline is watched:
//! the command is asked to end (SIGTERM) when the deadline comes near, and ended (SIGKILL) when it is there, which is
//! before the cluster grants the lock to the next.
//!
//! `options` flags; `under` what is common to all that a command can run under (`held`); `attend` stays with the
//! command; `job` the process, `exec` and `warden` its ties to us, `terminal` job control, `passed` signals.

mod attend;
pub mod exec;
mod held;
mod job;
mod options;
mod passed;
mod terminal;
mod under;
pub mod warden;

use std::process::ExitCode;

use rowlock_client::{Client, Error, Guard, Mutex};

use crate::cluster::{Cluster, failed};
use crate::exit::Failure;
use options::{Patience, Work};
use passed::Passed;
use under::Over;

/// Run a command under a lock; without one, hold the lock until a signal
#[derive(clap::Args)]
pub struct Lock {
    /// Name of the lock; a name with a leading slash is the path of its znode
    name: String,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    work: Work,
}

impl Lock {
    /// Exits with the command's code.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut passed = Passed::listen()?;
        let client = self.cluster.connect().await?;
        let acquired = tokio::select! {
            acquired = self.acquire(&client) => acquired,
            signal = passed.next() => {
                // The queue is left with the session.
                leave(&client).await;
                return Ok(ExitCode::from(under::shell_code(signal)));
            }
        };
        let ended = match acquired {
            Ok(Some(guard)) => under::run(&client, guard, &self.name, &self.work, &mut passed).await,
            Ok(None) => Ok(Over::Code(self.patience.conflict_exit_code)),
            Err(e) => Err(e),
        };
        leave(&client).await;
        ended.map(Over::exit)
    }

    async fn acquire(&self, client: &Client) -> Result<Option<Guard>, Failure> {
        let mutex = self.mutex(client);
        let asked = match (self.patience.nonblock, self.patience.timeout) {
            (true, _) => mutex.try_lock().await,
            (false, Some(patience)) => mutex.lock_timeout(patience).await.map(Some),
            (false, None) => mutex.lock().await.map(Some),
        };
        match asked {
            Ok(Some(guard)) => {
                let stats = guard.wait_stats();
                self.work.say(&format!(
                    "got {} with token {} after {:.3} s (place {} in the queue)",
                    self.name,
                    guard.token(),
                    stats.waited.as_secs_f64(),
                    stats.position + 1
                ));
                Ok(Some(guard))
            }
            Ok(None) => {
                self.work.say(&format!("{} is busy", self.name));
                Ok(None)
            }
            Err(e @ Error::Timeout { .. }) => {
                self.work.say(&format!("{}: {e}", self.name));
                Ok(None)
            }
            Err(e) => Err(failed(&self.name, &e)),
        }
    }

    fn mutex(&self, client: &Client) -> Mutex {
        if self.name.starts_with('/') { client.mutex_at(&self.name) } else { client.mutex(&self.name) }
    }
}

/// Ends the session at once rather than by its timeout. If no server can be told, it ends by itself.
async fn leave(client: &Client) {
    let _ = client.close().await;
}
