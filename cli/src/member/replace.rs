//! `rowlock member replace`: replaces a lost node by a new one.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, NodeId};
use rowlock_env::time::{self, Instant};
use rowlock_proto::ErrorCode;

use super::change::{PlannedChange, Retry, address, apply, joined, member, report, table_of};
use super::membership;
use super::server::Server;
use super::wait::until_serving;
use crate::cluster::{Cluster, leave, seconds};
use crate::exit::Failure;
use crate::print::errln;
use crate::znode::Output;

/// Errors while the new node catches up or while another change is in progress.
pub(super) const RETRYABLE: [ErrorCode; 3] =
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
    /// Give up if the new node does not serve after this many seconds
    #[arg(long, value_name = "SEC", value_parser = seconds, default_value = "300")]
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
