//! `rowlock member add`, `promote`, `demote`, `set` and `remove`: each makes one membership change; `replace`
//! replaces a lost node by a new one.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, Error, NodeId, Reconfig};
use rowlock_env::time::{self, Instant};
use rowlock_proto::ErrorCode;
use serde_json::json;

use super::list::query_all;
use super::membership;
use super::server::stanza;
use super::server::{MemberList, Server};
use super::until_serving;
use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, LOST, REFUSED, USAGE};
use crate::member::list::voters_up;
use crate::moment::duration;
use crate::print::{errln, print};
use crate::superuser;
use crate::znode::{Output, print_json};

/// Longest search for the outcome of a change with a lost reply.
const CONFIRM_MAX: Duration = Duration::from_secs(15);
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Add a node as a learner, which replicates without a vote. Prints its part of cluster.toml
#[derive(clap::Args)]
pub struct Add {
    /// Id of the new node, never used before
    node: u64,
    /// Address for the other nodes
    #[arg(long, value_name = "HOST:PORT")]
    peer: String,
    /// Address that clients connect to
    #[arg(long, value_name = "HOST:PORT")]
    client: String,
    /// Wait until the node has caught up, then make it a voter. Safe to repeat
    #[arg(long)]
    promote: bool,
    /// With --promote: time of uninterrupted service before the node votes
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s", requires = "promote")]
    stable: Duration,
    /// With --promote: give up if the node does not serve after this time
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "300s", requires = "promote")]
    timeout: Duration,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Make a learner a voter. It must be running and caught up
#[derive(clap::Args)]
pub struct Promote {
    /// Id of the node
    node: u64,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Make a voter a learner
#[derive(clap::Args)]
pub struct Demote {
    /// Id of the node
    node: u64,
    /// Proceed even if the remaining voters could then lose none
    #[arg(long)]
    force: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Change the addresses of a member
#[derive(clap::Args)]
pub struct Set {
    /// Id of the node
    node: u64,
    /// Address for the other nodes
    #[arg(long, value_name = "HOST:PORT")]
    peer: Option<String>,
    /// Address that clients connect to
    #[arg(long, value_name = "HOST:PORT")]
    client: Option<String>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Remove a member for good. Do not use its id again; stop its process afterwards
#[derive(clap::Args)]
pub struct Remove {
    /// Id of the node
    node: u64,
    /// Proceed even if the remaining voters could then lose none
    #[arg(long)]
    force: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Add {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let node = self.node;
        let server = Server { peer: address(&self.peer)?, client: address(&self.client)?, votes: false };
        if self.promote {
            return self.add_and_promote(server).await;
        }
        change(&self.cluster, async |members| {
            if members.servers.contains_key(&node) {
                return Err(Failure::new(REFUSED, format!("node {node} is a member already")));
            }
            joined(members, node, server.clone())
        })
        .await?;
        let table = table_of(&self.cluster, node, &server)?;
        let text = format!(
            "node {node} is a learner. In cluster.toml of all nodes:\n{table}\nStart it with an empty data folder, then: \
             rowlock member promote {node}\n"
        );
        report(self.output, node, "learner", text.trim_end())
    }

    /// Runs each step again safely: a person repeats an interrupted command.
    async fn add_and_promote(&self, server: Server) -> Result<ExitCode, Failure> {
        let (node, deadline) = (self.node, time::now() + self.timeout);
        let client = self.cluster.connect().await?;
        let done = async {
            let retry = Retry { codes: &RETRYABLE, deadline };
            apply(&client, retry, async |members| {
                let known = members.servers.get(&node).unwrap_or(&server);
                joined(members, node, known.clone())
            })
            .await?;
            let table = table_of(&self.cluster, node, &server)?;
            errln!("rowlock: start node {node} with an empty data folder and this in cluster.toml:{table}");
            until_serving(&self.cluster, node, &server, self.stable, deadline).await?;
            apply(&client, retry, async |members| {
                joined(members, node, Server { votes: true, ..member(members, node)? })
            })
            .await
        }
        .await;
        leave(&client).await;
        done?;
        report(self.output, node, "voter", &format!("node {node} votes"))
    }
}

impl Promote {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let node = self.node;
        change(&self.cluster, async |members| {
            joined(members, node, Server { votes: true, ..member(members, node)? })
        })
        .await?;
        report(self.output, node, "voter", &format!("node {node} votes"))
    }
}

impl Demote {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let (node, force, cluster) = (self.node, self.force, &self.cluster);
        change(cluster, async |members| {
            let server = Server { votes: false, ..member(members, node)? };
            check_tolerance(cluster, members, node, force).await?;
            joined(members, node, server)
        })
        .await?;
        report(self.output, node, "learner", &format!("node {node} is a learner"))
    }
}

impl Set {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let node = self.node;
        if self.peer.is_none() && self.client.is_none() {
            return Err(Failure::new(USAGE, "no address given; use --peer HOST:PORT or --client HOST:PORT"));
        }
        let (peer, client) = (self.peer.as_deref().map(address), self.client.as_deref().map(address));
        let (peer, client) = (peer.transpose()?, client.transpose()?);
        change(&self.cluster, async |members| {
            let old = member(members, node)?;
            let (peer, client) = (peer.clone().unwrap_or(old.peer), client.clone().unwrap_or(old.client));
            joined(members, node, Server { peer, client, votes: old.votes })
        })
        .await?;
        let text =
            format!("node {node} has new addresses; write them into cluster.toml, and restart it there");
        report(self.output, node, "member", &text)
    }
}

impl Remove {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let (node, force, cluster) = (self.node, self.force, &self.cluster);
        change(cluster, async |members| {
            member(members, node)?;
            check_tolerance(cluster, members, node, force).await?;
            let mut then = members.servers.clone();
            then.remove(&node);
            Ok(PlannedChange { change: Reconfig::new().leave(NodeId(node)), then })
        })
        .await?;
        let text = format!("node {node} is no member any more; stop it, and take it out of cluster.toml");
        report(self.output, node, "none", &text)
    }
}

/// Returns the part of cluster.toml for a new learner.
fn table_of(cluster: &Cluster, node: u64, server: &Server) -> Result<String, Failure> {
    Ok(stanza(node, server, cluster.file()?.as_ref(), cluster.tls.is_enabled()))
}

/// Prints the result and the node's new role.
fn report(output: Output, node: u64, role: &str, text: &str) -> Result<ExitCode, Failure> {
    match output {
        Output::Simple => print(format!("{text}\n").as_bytes())?,
        Output::Json => print_json(&json!({ "node": node, "role": role, "message": text }))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn member(members: &MemberList, node: u64) -> Result<Server, Failure> {
    let found = members.servers.get(&node).cloned();
    found.ok_or_else(|| {
        Failure::new(REFUSED, format!("node {node} is no member; rowlock member ls shows them"))
    })
}

/// Returns the change that adds a server or replaces its entry.
fn joined(members: &MemberList, node: u64, server: Server) -> Result<PlannedChange, Failure> {
    let line = server.line(node);
    let line = line.ok_or_else(|| Failure::new(USAGE, format!("{} is no HOST:PORT", server.peer)))?;
    let mut then = members.servers.clone();
    then.insert(node, server);
    Ok(PlannedChange { change: Reconfig::new().join(line), then })
}

/// Checks an address before the address becomes part of the membership's text.
fn address(text: &str) -> Result<String, Failure> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        // Characters that would end the address in that text.
        Some(Ok(1..)) if !text.contains([',', ';', '=', ' ', '\n']) => Ok(text.to_owned()),
        _ => Err(Failure::new(USAGE, format!("{text:?} is no address; use HOST:PORT"))),
    }
}

/// Refuses a change after which the cluster tolerates no failure, if the cluster tolerates one now.
async fn check_tolerance(
    cluster: &Cluster,
    members: &MemberList,
    node: u64,
    force: bool,
) -> Result<(), Failure> {
    if force || !members.servers[&node].votes {
        return Ok(());
    }
    let mut left = members.clone();
    left.servers.remove(&node);
    let states = query_all(cluster, members).await?;
    let now = members.tolerates(voters_up(members, &states));
    let then = left.tolerates(voters_up(&left, &states));
    if then.unwrap_or(0) == 0 && now.unwrap_or(0) > 0 {
        let problem = format!(
            "without node {node} the cluster tolerates no failure; add another voter first, or use --force"
        );
        return Err(Failure::new(REFUSED, problem));
    }
    Ok(())
}

/// Requested change, and the membership after the change.
struct PlannedChange {
    pub(super) change: Reconfig,
    pub(super) then: BTreeMap<u64, Server>,
}

/// Connects and makes the change that `decide` derives from the present members.
async fn change(
    cluster: &Cluster,
    decide: impl AsyncFn(&MemberList) -> Result<PlannedChange, Failure>,
) -> Result<(), Failure> {
    let client = cluster.connect().await?;
    // The membership's znode may lag behind the membership.
    let retry = Retry { codes: &[ErrorCode::BadVersion], deadline: time::now() + CONFIRM_MAX };
    let changed = apply(&client, retry, decide).await;
    leave(&client).await;
    changed
}

/// Retries of a change refused with one of `codes`, until `deadline`.
#[derive(Clone, Copy)]
struct Retry<'a> {
    pub(super) codes: &'a [ErrorCode],
    pub(super) deadline: Instant,
}

/// Makes a change on an open connection.
async fn apply(
    client: &Client,
    retry: Retry<'_>,
    decide: impl AsyncFn(&MemberList) -> Result<PlannedChange, Failure>,
) -> Result<(), Failure> {
    loop {
        let members = membership(client).await?;
        let PlannedChange { change, then } = decide(&members).await?;
        match client.reconfig(&change.if_version(members.version)).await {
            Ok(_) => return Ok(()),
            // The connected node may be the removed node, which closes its connections.
            Err(Error::ConnectionLoss) => return confirm(client, &then).await,
            Err(Error::Rejected(code)) if retry.codes.contains(&code) && time::now() < retry.deadline => {}
            Err(e) => return Err(refused(&e)),
        }
        time::sleep(RETRY_PAUSE).await;
    }
}

/// Waits until another node confirms the membership `then`.
async fn confirm(client: &Client, then: &BTreeMap<u64, Server>) -> Result<(), Failure> {
    let deadline = time::now() + CONFIRM_MAX;
    while time::now() < deadline {
        if membership(client).await.is_ok_and(|members| members.servers == *then) {
            return Ok(());
        }
        time::sleep(RETRY_PAUSE).await;
    }
    Err(Failure::new(
        LOST,
        "the connection was lost: the change may have happened; rowlock member ls shows it",
    ))
}

fn refused(error: &Error) -> Failure {
    let Error::Rejected(code) = error else { return failed("members", error) };
    let (exit, text) = match code {
        ErrorCode::NoAuth => (REFUSED, superuser::REMEDY),
        ErrorCode::ReconfigDisabled => {
            (REFUSED, "changes of the members are switched off: client.reconfig = false in cluster.toml")
        }
        ErrorCode::NewConfigNoQuorum => (
            REFUSED,
            "a new voter, or a majority of all voters, does not answer or has not caught up; nothing was changed",
        ),
        ErrorCode::BadVersion => {
            (LOST, "another client changed the members meanwhile; check rowlock member ls, and try again")
        }
        ErrorCode::ReconfigInProgress => (LOST, "another change of the members is in progress; try again"),
        _ => return failed("members", error),
    };
    Failure::new(exit, text)
}

/// Errors while the new node catches up or while another change is in progress.
const RETRYABLE: [ErrorCode; 3] =
    [ErrorCode::NewConfigNoQuorum, ErrorCode::ReconfigInProgress, ErrorCode::BadVersion];

/// Replace a lost node: add the new one, wait until it has caught up, then swap them in one change
#[derive(clap::Args)]
pub struct Replace {
    /// Id of the lost node
    old: u64,
    /// Id of the new node, never used before
    new: u64,
    /// Address of the new node for the other nodes
    #[arg(long, value_name = "HOST:PORT")]
    peer: String,
    /// Address of the new node for clients
    #[arg(long, value_name = "HOST:PORT")]
    client: String,
    /// Give up if the new node does not serve after this time
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "300s")]
    timeout: Duration,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Replace {
    /// Runs each step again safely: a person repeats an interrupted command.
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let server = Server { peer: address(&self.peer)?, client: address(&self.client)?, votes: false };
        let deadline = time::now() + self.timeout;
        let client = self.cluster.connect().await?;
        let replaced = self.replace(&client, server, deadline).await;
        leave(&client).await;
        let votes = replaced?;
        let text = format!("node {} is in the place of node {}", self.new, self.old);
        report(self.output, self.new, if votes { "voter" } else { "learner" }, &text)
    }

    /// Replaces the node. Returns true if the new node votes, as the old node did.
    async fn replace(&self, client: &Client, server: Server, deadline: Instant) -> Result<bool, Failure> {
        let votes = member(&membership(client).await?, self.old)?.votes;
        let retry = Retry { codes: &RETRYABLE, deadline };
        apply(client, retry, async |members| {
            let server = members.servers.get(&self.new).unwrap_or(&server);
            joined(members, self.new, server.clone())
        })
        .await?;
        let table = table_of(&self.cluster, self.new, &server)?;
        errln!("rowlock: start node {} with an empty data folder and this in cluster.toml:{table}", self.new);
        until_serving(&self.cluster, self.new, &server, Duration::ZERO, deadline).await?;
        let server = Server { votes, ..server };
        apply(client, retry, async |members| {
            let PlannedChange { change, mut then } = joined(members, self.new, server.clone())?;
            then.remove(&self.old);
            Ok(PlannedChange { change: change.leave(NodeId(self.old)), then })
        })
        .await?;
        Ok(votes)
    }
}
