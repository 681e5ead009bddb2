//! `rowlock sem`: a command under permits of a semaphore, so that only so many run at once.

use std::ffi::OsString;
use std::process::ExitCode;

use rowlock_client::{Client, Owner, Permits};

use super::options::{self, Asking, Patience, Terms, Ties, Work, ask_on_terms};
use super::passed::Passed;
use super::under::{self, Over, Setting};
use crate::cluster::{failed, leave};
use crate::exit::Failure;
use crate::name::Name;

/// Run a command under permits of a semaphore; without one, hold them until a signal
#[derive(clap::Args)]
pub struct Sem {
    #[command(flatten)]
    name: Name,
    /// How many permits the semaphore has: the first who says so decides, whoever says another number is refused.
    /// Without it: as many as it has
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// How many the command takes
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    permits: u32,
    /// Do not wait: fail if there are not enough
    #[arg(long, visible_alias = "nb", conflicts_with = "timeout")]
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

impl Sem {
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
        let Some(permits) = acquired else { return Ok(Over::Code(self.patience.conflict_exit_code)) };
        let setting = Setting {
            client,
            name: self.name.as_said(),
            work: &self.work,
            words: self.work.command(&self.words),
            environment: vec![options::owner_in_environment(owner, permits.path())],
            endpoints: self.ties.cluster.endpoints()?,
            may_be_followed_at_once: self.terms.may_be_followed_at_once(),
        };
        under::run(permits, setting, passed).await
    }

    async fn acquire(&self, client: &Client, asking: &Asking) -> Result<(Owner, Option<Permits>), Failure> {
        let owner = options::owner(client).await?;
        let request = self.name.semaphore(client, self.limit.unwrap_or(0)).request(self.permits);
        let say = |text: &str| self.work.say(&format!("{}: {text}", self.name.as_said()));
        let asked = ask_on_terms!(request, self.terms, owner, asking);
        let granted = Patience::judge(asked, say).map_err(|e| failed(self.name.as_said(), &e))?;
        if let Some(permits) = &granted {
            say(&options::granted(permits.token(), permits.wait_stats()));
        }
        Ok((owner, granted))
    }
}
