//! `rowlock elect`: runs a command while this process leads, or reports who leads.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, Election, Error, Leader, Leadership};
use rowlock_proto::Right;
use serde_json::json;

use super::options::{self, Asking, Ties, Work};
use super::passed::Passed;
use super::sign::{self, Sign};
use super::under::{self, Around, Over, Setting};
use crate::acl;
use crate::cluster::{failed, leave, seconds};
use crate::exit::{Failure, REFUSED};
use crate::name::Name;
use crate::print::{print, safe};
use crate::znode::{Output, print_json};

/// Run a command while leading an election, or follow who leads
#[derive(clap::Args)]
pub struct Elect {
    #[command(flatten)]
    name: Name,
    /// Value that other candidates and listeners see, e.g. a name or an address
    #[arg(required_unless_present = "listen")]
    value: Option<String>,
    /// Do not stand for election: print the leader now and at every change; an empty line means none
    #[arg(short, long, conflicts_with_all = ["value", "shell", "words", "timeout"])]
    listen: bool,
    /// Format of the output
    #[arg(short = 'o', long = "output", value_enum, default_value_t, requires = "listen")]
    output: Output,
    /// Serve HTTP at this address: 200 while leading, otherwise 503 with the leader's value. :PORT listens
    /// on loopback only, 0.0.0.0:PORT on all interfaces. Requests must be for an IP address, localhost or
    /// HOST
    #[arg(long, value_name = "ADDR", conflicts_with = "listen", value_parser = sign::address)]
    http: Option<String>,
    /// Give up if not elected after this many seconds
    #[arg(short = 'w', long, visible_alias = "wait", value_name = "SEC", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Exit code after giving up
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = REFUSED)]
    conflict_exit_code: u8,
    #[command(flatten)]
    ties: Ties,
    #[command(flatten)]
    work: Work,
    /// The command: program and arguments
    #[arg(last = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Elect {
    /// Exits with the command's code; a listener ends with a signal, and 0.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut passed = Passed::listen()?;
        // Before there is a session: who asks meanwhile is told that we do not lead.
        let sign = match &self.http {
            Some(addr) => Some(Sign::put_up(addr).await?),
            None => None,
        };
        let asking = Asking::begin(self.timeout);
        let connecting = asking.bound(self.ties.connect(self.value.as_deref(), &asking));
        let client = match passed.unless(connecting).await {
            Ok(connected) => connected?,
            Err(_) if self.listen => return Ok(ExitCode::SUCCESS),
            Err(signal) => return Ok(ExitCode::from(under::shell_code(signal))),
        };
        let election = self.name.election(&client);
        let ended = if self.listen {
            passed.unless(self.follow(&election)).await.unwrap_or(Ok(Over::Code(0)))
        } else {
            let work = self.lead(&client, &election, &asking, &mut passed, sign.as_ref());
            match &sign {
                None => work.await,
                Some(sign) => {
                    self.work.say(&format!("{}: says at {} who leads", self.name.as_said(), sign.addr()));
                    tokio::select! {
                        biased;
                        ended = work => ended,
                        () = sign.follow(&client, &election) => unreachable!("it never returns"),
                    }
                }
            }
        };
        leave(&client).await;
        ended.map(Over::exit)
    }

    async fn follow(&self, election: &Election) -> Result<Over, Failure> {
        let mut observer = election.observe();
        loop {
            let leader = observer.next().await.map_err(|e| failed(self.name.as_said(), &e))?;
            match self.output {
                Output::Json => print_json(&leader.map_or(serde_json::Value::Null, |leader| json(&leader)))?,
                Output::Simple => print(
                    format!("{}\n", safe(&leader.map(|leader| leader.value).unwrap_or_default())).as_bytes(),
                )?,
            }
        }
    }

    async fn lead(
        &self,
        client: &Client,
        election: &Election,
        asking: &Asking,
        passed: &mut Passed,
        sign: Option<&Sign>,
    ) -> Result<Over, Failure> {
        let campaign = async {
            let owner = options::owner(client).await?;
            match self.campaign(&election.of_owner(owner), asking).await {
                Ok(leadership) => Ok((owner, leadership)),
                Err(e) => Err(acl::refused(
                    client,
                    (self.name.as_said(), &client.mutex_at(election.path()).server_path()),
                    Right::Take,
                    &e,
                )
                .await),
            }
        };
        let (owner, leadership) = match passed.unless(asking.bound(campaign)).await {
            Ok(campaigned) => campaigned?,
            // The candidacy ends with the session.
            Err(signal) => return Ok(Over::Code(under::shell_code(signal))),
        };
        let Some(leadership) = leadership else {
            return Ok(Over::Code(self.conflict_exit_code));
        };
        if let Some(sign) = sign {
            sign.leads(&leadership, client, self.value.as_deref().unwrap_or_default());
        }
        let setting = Setting {
            client,
            name: self.name.as_said(),
            work: &self.work,
            words: self.work.command(&self.words),
            owner,
            way: self.ties.cluster.arguments()?,
            may_be_followed_at_once: true,
            around: Around::Nothing,
        };
        under::run(leadership, setting, passed).await
    }

    async fn campaign(&self, election: &Election, asking: &Asking) -> Result<Option<Leadership>, Error> {
        let value = self.value.clone().unwrap_or_default();
        let say = |text: &str| self.work.say(&format!("{}: {text}", self.name.as_said()));
        let campaign = match asking.left() {
            Some(limit) => election.campaign_timeout(value, limit).await,
            None => election.campaign(value).await,
        };
        match campaign {
            Ok(leadership) => {
                say(&format!("leads with token {}", leadership.token()));
                Ok(Some(leadership))
            }
            Err(e @ Error::Timeout { .. }) => {
                say(&e.to_string());
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

pub(super) fn json(leader: &Leader) -> serde_json::Value {
    json!({
        "value": leader.value,
        "token": leader.token.0,
        "session": leader.session.to_string(),
        "key": leader.path,
    })
}
