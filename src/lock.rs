//! `rowlock lock`: a command under a lock, in the manner of flock(1).
//!
//! connect -> wait in the queue -> run the command -> release. While the command runs, the lock's deadline is watched:
//! the command is asked to end (SIGTERM) when the deadline comes near, and ended (SIGKILL) when it is there, which is
//! before the cluster grants the lock to the next.
//!
//! `options` flags; `under` what is common to all that a command can run under (`held`); `attend` stays with the
//! command; `job` the process, `exec` and `warden` its ties to us, `terminal` job control, `passed` signals.

mod attend;
pub mod elect;
pub mod exec;
mod held;
mod job;
mod options;
mod passed;
mod processes;
pub mod sem;
mod terminal;
mod under;
pub mod warden;

use std::ffi::OsString;
use std::process::ExitCode;

use rowlock_client::{Client, Guard, Owner};

use crate::cluster::{failed, leave};
use crate::exit::Failure;
use crate::name::Name;
use options::{Asking, Patience, Terms, Ties, Work, ask_on_terms};
use passed::Passed;
pub use processes::OURSELVES;
use under::{Over, Setting};

/// Run a command under a lock; without one, hold the lock until a signal
#[derive(clap::Args)]
pub struct Lock {
    #[command(flatten)]
    name: Name,
    /// Hold it with others who share it
    #[arg(short, long, overrides_with = "exclusive")]
    shared: bool,
    /// Hold it alone, which is the default
    #[arg(short = 'x', long, short_alias = 'e', overrides_with = "shared")]
    exclusive: bool,
    /// For flock's users: what we hold is never passed on to the command, so there is nothing to close
    #[arg(short = 'o', long, hide = true)]
    close: bool,
    /// Do not wait: fail if it is busy
    #[arg(short, long, visible_alias = "nb", conflicts_with = "timeout")]
    nonblock: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    ties: Ties,
    #[command(flatten)]
    work: Work,
    /// Program and arguments; everything from here on is the program's
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Lock {
    /// Exits with the command's code.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut passed = Passed::listen()?;
        let asking = self.patience.begin(self.nonblock);
        let label = self.terms.label.as_deref();
        let client = match passed.unless(asking.bound(self.ties.connect(label, &asking))).await {
            Ok(connected) => connected?,
            Err(signal) => return Ok(ExitCode::from(under::shell_code(signal))),
        };
        let ended = self.acquire_and_run(&client, &asking, &mut passed).await;
        // This also leaves the queue.
        leave(&client).await;
        ended.map(Over::exit)
    }

    async fn acquire_and_run(
        &self,
        client: &Client,
        asking: &Asking,
        passed: &mut Passed,
    ) -> Result<Over, Failure> {
        let (owner, acquired) = match passed.unless(asking.bound(self.acquire(client, asking))).await {
            Ok(acquired) => acquired?,
            Err(signal) => return Ok(Over::Code(under::shell_code(signal))),
        };
        let Some(guard) = acquired else { return Ok(Over::Code(self.patience.conflict_exit_code)) };
        let setting = Setting {
            client,
            name: self.name.as_said(),
            work: &self.work,
            words: self.work.command(&self.words),
            environment: vec![options::owner_in_environment(owner, guard.path())],
            endpoints: self.ties.cluster.endpoints()?,
            may_be_followed_at_once: self.terms.may_be_followed_at_once(),
        };
        under::run(guard, setting, passed).await
    }

    async fn acquire(&self, client: &Client, asking: &Asking) -> Result<(Owner, Option<Guard>), Failure> {
        let owner = options::owner(client).await?;
        let mut request = self.name.mutex(client).request();
        if self.shared {
            request = request.shared();
        }
        let say = |text: &str| self.work.say(&format!("{}: {text}", self.name.as_said()));
        let asked = ask_on_terms!(request, self.terms, owner, asking);
        let granted = Patience::judge(asked, say).map_err(|e| failed(self.name.as_said(), &e))?;
        if let Some(guard) = &granted {
            say(&options::granted(guard.token(), guard.wait_stats()));
        }
        Ok((owner, granted))
    }
}
