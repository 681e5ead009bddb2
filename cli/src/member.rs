//! `rowlock member`: shows the members and changes the membership while the cluster serves.
//!
//! Every change is one `reconfig`, conditional on the membership version read by the command: two operators
//! cannot overwrite each other's changes.

mod change;
mod list;
mod replace;
mod server;
mod stanza;
mod state;
mod transfer;
mod wait;

use std::process::ExitCode;

use rowlock_client::Client;

use self::server::MemberList;
use crate::cluster::{Cluster, failed, leave, open};
use crate::exit::{Failure, LOST, REFUSED};

/// Show and change the members of a running cluster
///
/// Changes need a superuser: ROWLOCK_AUTH, or a certificate of x509_superusers.
#[derive(clap::Args)]
pub struct Member {
    #[command(subcommand)]
    command: MemberCommand,
}

#[derive(clap::Subcommand)]
enum MemberCommand {
    Ls(list::Ls),
    Add(change::Add),
    Promote(change::Promote),
    Demote(change::Demote),
    Set(change::Set),
    Remove(change::Remove),
    Replace(replace::Replace),
    TransferLeader(transfer::TransferLeader),
    Wait(wait::Wait),
}

impl Member {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            MemberCommand::Ls(ls) => ls.run().await,
            MemberCommand::Add(add) => add.run().await,
            MemberCommand::Promote(promote) => promote.run().await,
            MemberCommand::Demote(demote) => demote.run().await,
            MemberCommand::Set(set) => set.run().await,
            MemberCommand::Remove(remove) => remove.run().await,
            MemberCommand::Replace(replace) => replace.run().await,
            MemberCommand::TransferLeader(transfer) => transfer.run().await,
            MemberCommand::Wait(wait) => wait.run().await,
        }
    }
}

pub async fn membership(client: &Client) -> Result<MemberList, Failure> {
    const PATH: &str = "/zookeeper/config";
    client.sync(PATH).await.map_err(|e| failed("members", &e))?;
    let found = client.get(PATH).await.map_err(|e| failed("members", &e))?;
    let text = found.data.map(|data| String::from_utf8_lossy(&data).into_owned()).unwrap_or_default();
    MemberList::parse(&text).ok_or_else(|| Failure::new(LOST, format!("{PATH} cannot be read: {text:?}")))
}

/// Opens a session with this member and with no other member.
///
/// # Errors
/// The cluster or the member cannot be reached, or there is no such member.
pub async fn connect_to(cluster: &Cluster, node: u64) -> Result<Client, Failure> {
    let client = cluster.connect().await?;
    let found = membership(&client).await;
    leave(&client).await;
    let found = found?;
    let server = found.servers.get(&node).ok_or_else(|| {
        let ids: Vec<String> = found.servers.keys().map(u64::to_string).collect();
        Failure::new(REFUSED, format!("node {node} is no member; there are {}", ids.join(", ")))
    })?;
    open(cluster.client()?.endpoints(&server.client)).await
}
