//! What `lock` and `sem` share: wait in a queue, run the command under what was granted, leave.

use std::ffi::OsString;
use std::process::ExitCode;

use rowlock_client::{Client, Error, Owner};

use super::held::Held;
use super::options::{self, Asking, Terms, Ties, Waiting, Work};
use super::passed::Passed;
use super::under::{self, Over, Setting};
use crate::cluster::{failed, leave};
use crate::exit::Failure;
use crate::name::Name;

/// How long to wait, on which terms to hold, what to run.
#[derive(clap::Args)]
pub struct Queued {
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    pub terms: Terms,
    #[command(flatten)]
    ties: Ties,
    #[command(flatten)]
    work: Work,
    /// Program and arguments; everything from here on is the program's
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Queued {
    /// Runs the command under what `ask` is granted; `None`: it was busy. Exits with the command's code.
    pub async fn run<H: Held>(
        &self,
        name: &Name,
        nonblock: bool,
        ask: impl AsyncFnOnce(&Client, Owner, &Asking) -> Result<Option<H>, Error>,
    ) -> Result<ExitCode, Failure> {
        let mut passed = Passed::listen()?;
        let asking = self.waiting.begin(nonblock);
        let label = self.terms.label.as_deref();
        let client = match passed.unless(asking.bound(self.ties.connect(label, &asking))).await {
            Ok(connected) => connected?,
            Err(signal) => return Ok(ExitCode::from(under::shell_code(signal))),
        };
        let acquire = async {
            let owner = options::owner(&client).await?;
            let asked = ask(&client, owner, &asking).await;
            Ok((owner, self.judge(name, asked)?))
        };
        let ended = match passed.unless(asking.bound(acquire)).await {
            Ok(Ok((owner, Some(held)))) => self.hold(name, &client, owner, held, &mut passed).await,
            Ok(Ok((_, None))) => Ok(Over::Code(self.waiting.conflict_exit_code)),
            Ok(Err(failure)) => Err(failure),
            Err(signal) => Ok(Over::Code(under::shell_code(signal))),
        };
        // This also leaves the queue.
        leave(&client).await;
        ended.map(Over::exit)
    }

    fn judge<H: Held>(&self, name: &Name, asked: Result<Option<H>, Error>) -> Result<Option<H>, Failure> {
        let say = |text: &str| self.work.say(&format!("{}: {text}", name.as_said()));
        let granted = Waiting::judge(asked, say).map_err(|e| failed(name.as_said(), &e))?;
        if let Some(held) = &granted {
            say(&options::granted(held.token(), held.wait_stats()));
        }
        Ok(granted)
    }

    async fn hold<H: Held>(
        &self,
        name: &Name,
        client: &Client,
        owner: Owner,
        held: H,
        passed: &mut Passed,
    ) -> Result<Over, Failure> {
        let setting = Setting {
            client,
            name: name.as_said(),
            work: &self.work,
            words: self.work.command(&self.words),
            owner,
            way: self.ties.cluster.arguments()?,
            may_be_followed_at_once: self.terms.may_be_followed_at_once(),
        };
        under::run(held, setting, passed).await
    }
}
