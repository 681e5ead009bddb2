//! `rowlock member replace`: a new node in the place of one that is lost.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Error, NodeId, Reconfig};
use rowlock_env::time;
use rowlock_proto::ErrorCode;

use super::change::{Wanted, address, ask, look, member, refused, table_of};
use super::membership;
use super::server::Server;
use super::state::ask_all;
use crate::cluster::{Cluster, leave, seconds};
use crate::exit::{Failure, REFUSED, UNAVAILABLE};
use crate::print::{errln, print};

/// How often the new node is asked whether it serves.
const EVERY: Duration = Duration::from_millis(500);

/// Put a new node in the place of one that is lost: takes it in, waits until it runs and has caught up, lets
/// it vote and takes the old one out in one change
#[derive(clap::Args)]
pub struct Replace {
    /// The number of the old one
    old: u64,
    /// The number of the new one, which no node has had before
    new: u64,
    /// Where the other nodes find the new one
    #[arg(long, value_name = "HOST:PORT")]
    peer: String,
    /// Where clients find the new one
    #[arg(long, value_name = "HOST:PORT")]
    client: String,
    /// Give up when the new one does not serve after so long
    #[arg(long, value_name = "SEC", value_parser = seconds, default_value = "300")]
    timeout: Duration,
    #[command(flatten)]
    cluster: Cluster,
}

impl Replace {
    /// Each step is repeated safely: a command that was cut off is given again.
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let server = Server { peer: address(&self.peer)?, client: address(&self.client)?, votes: false };
        let deadline = time::now() + self.timeout;
        let client = self.cluster.connect().await?;
        let replaced = async {
            let members = membership(&client).await?;
            let votes = member(&members, self.old)?.votes;
            if !members.servers.contains_key(&self.new) {
                let line =
                    server.line(self.new).ok_or_else(|| Failure::new(REFUSED, "the address has no port"))?;
                let mut then = members.servers.clone();
                then.insert(self.new, server.clone());
                ask(&client, async |_| {
                    Ok(Wanted { change: Reconfig::new().join(line.clone()), then: then.clone() })
                })
                .await?;
            }
            errln!(
                "rowlock: start node {} with an empty data folder and this in cluster.toml:{}",
                self.new,
                table_of(self.new, &server)
            );
            self.wait_until_it_serves(deadline).await?;
            let server = Server { votes, ..server.clone() };
            loop {
                let members = membership(&client).await?;
                let line =
                    server.line(self.new).ok_or_else(|| Failure::new(REFUSED, "the address has no port"))?;
                let mut then = members.servers.clone();
                then.remove(&self.old);
                then.insert(self.new, server.clone());
                let change = Reconfig::new().join(line).leave(NodeId(self.old)).if_version(members.version);
                match client.reconfig(&change).await {
                    Ok(_) => return Ok(()),
                    Err(Error::ConnectionLoss) => return look(&client, &then).await,
                    // It has not caught up yet, or another change is not done.
                    Err(Error::Rejected(
                        ErrorCode::NewConfigNoQuorum | ErrorCode::ReconfigInProgress | ErrorCode::BadVersion,
                    )) if time::now() < deadline => {}
                    Err(e) => return Err(refused(&e)),
                }
                time::sleep(EVERY).await;
            }
        }
        .await;
        leave(&client).await;
        replaced?;
        print(format!("node {} is in the place of node {}\n", self.new, self.old).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn wait_until_it_serves(&self, deadline: time::Instant) -> Result<(), Failure> {
        loop {
            let server = Server { peer: self.peer.clone(), client: self.client.clone(), votes: false };
            let alone = super::server::Membership { servers: [(self.new, server)].into(), version: 0 };
            let states = ask_all(&self.cluster, &alone).await?;
            if states[&self.new].is_up() {
                return Ok(());
            }
            if time::now() >= deadline {
                let why = states[&self.new].text();
                let what = format!(
                    "node {} does not serve: {why}; it is a learner now, give the command again",
                    self.new
                );
                return Err(Failure::new(UNAVAILABLE, what));
            }
            time::sleep(EVERY).await;
        }
    }
}
