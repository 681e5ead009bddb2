//! `rowlock elect`: runs a command while this process leads, or prints the leader.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, Election, Error, Leader, Leadership};
use rowlock_proto::Right;
use serde_json::json;

use super::options::{self, SessionOptions, TimeLimit, Work};
use super::passed::ForwardedSignals;
use super::sign::{self, LeaderEndpoint};
use super::under::{self, CommandMode, ProcessEnd, RunContext};
use crate::acl::{self, LockRef};
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
    session: SessionOptions,
    #[command(flatten)]
    work: Work,
    /// Command with its arguments
    #[arg(last = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Elect {
    /// Exits with the command's code; a listener exits with 0 at a signal.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut signals = ForwardedSignals::listen()?;
        // Listens before there is a session: requests until then get 503.
        let endpoint = match &self.http {
            Some(addr) => Some(LeaderEndpoint::start(addr).await?),
            None => None,
        };
        let limit = TimeLimit::begin(self.timeout);
        let connecting = limit.bound(self.session.connect(self.value.as_deref(), &limit));
        let client = match signals.unless(connecting).await {
            Ok(connected) => connected?,
            Err(_) if self.listen => return Ok(ExitCode::SUCCESS),
            Err(signal) => return Ok(ExitCode::from(under::shell_code(signal))),
        };
        let election = self.name.election(&client);
        let ended = if self.listen {
            signals.unless(self.follow(&election)).await.unwrap_or(Ok(ProcessEnd::Code(0)))
        } else {
            let work = self.lead(&client, &election, &limit, &mut signals, endpoint.as_ref());
            match &endpoint {
                None => work.await,
                Some(endpoint) => {
                    self.work.report(&format!(
                        "{}: serves the leadership at {}",
                        self.name.as_typed(),
                        endpoint.addr()
                    ));
                    tokio::select! {
                        biased;
                        ended = work => ended,
                        () = endpoint.follow(&client, &election) => unreachable!("follow never returns"),
                    }
                }
            }
        };
        leave(&client).await;
        ended.map(ProcessEnd::exit)
    }

    async fn follow(&self, election: &Election) -> Result<ProcessEnd, Failure> {
        let mut observer = election.observe();
        loop {
            let leader = observer.next().await.map_err(|e| failed(self.name.as_typed(), &e))?;
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
        limit: &TimeLimit,
        signals: &mut ForwardedSignals,
        endpoint: Option<&LeaderEndpoint>,
    ) -> Result<ProcessEnd, Failure> {
        let campaign = async {
            let owner = options::owner(client).await?;
            match self.campaign(&election.of_owner(owner), limit).await {
                Ok(leadership) => Ok((owner, leadership)),
                Err(e) => Err(acl::refused(
                    client,
                    LockRef {
                        name: self.name.as_typed(),
                        path: &client.mutex_at(election.path()).server_path(),
                    },
                    Right::Take,
                    &e,
                )
                .await),
            }
        };
        let (owner, leadership) = match signals.unless(limit.bound(campaign)).await {
            Ok(campaigned) => campaigned?,
            // The candidacy ends with the session.
            Err(signal) => return Ok(ProcessEnd::Code(under::shell_code(signal))),
        };
        let Some(leadership) = leadership else {
            return Ok(ProcessEnd::Code(self.conflict_exit_code));
        };
        if let Some(endpoint) = endpoint {
            endpoint.set_leadership(&leadership, client, self.value.as_deref().unwrap_or_default());
        }
        let context = RunContext {
            client,
            name: self.name.as_typed(),
            work: &self.work,
            words: self.work.command(&self.words),
            owner,
            cluster_flags: self.session.cluster.arguments()?,
            ends_session_on_death: true,
            mode: CommandMode::Plain,
        };
        under::run(leadership, context, signals).await
    }

    async fn campaign(&self, election: &Election, limit: &TimeLimit) -> Result<Option<Leadership>, Error> {
        let value = self.value.clone().unwrap_or_default();
        let report = |text: &str| self.work.report(&format!("{}: {text}", self.name.as_typed()));
        let campaign = match limit.left() {
            Some(limit) => election.campaign_timeout(value, limit).await,
            None => election.campaign(value).await,
        };
        match campaign {
            Ok(leadership) => {
                report(&format!("leads with token {}", leadership.token()));
                Ok(Some(leadership))
            }
            Err(e @ Error::Timeout { .. }) => {
                report(&e.to_string());
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
