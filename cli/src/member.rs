//! `rowlock member`: shows the members and changes the membership while the cluster serves.
//!
//! Every change is one `reconfig`, conditional on the membership version read by the command: two operators
//! cannot overwrite each other's changes. `transfer-leader` makes another voter the leader; `wait` waits
//! until every member serves.

mod change;
mod list;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::Client;
use rowlock_env::time::{self, Instant};
use rowlock_proto::ErrorCode;

use self::list::query_all;
use self::server::{MemberList, Server};
use crate::cluster::{Cluster, failed, leave, open};
use crate::exit::{Failure, LOST, REFUSED, UNAVAILABLE};
use crate::moment::duration;
use crate::operate::{OperateError, operate};
use crate::print::print;
use crate::znode::{Output, print_json};

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
    Replace(change::Replace),
    TransferLeader(TransferLeader),
    Wait(Wait),
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

/// Transfer leadership to a voter [default: the one with the longest log]
#[derive(clap::Args)]
struct TransferLeader {
    /// Id of the node
    node: Option<u64>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl TransferLeader {
    /// Exits with 1 if the node is no voter or is not alive, with 75 if no voter has taken over.
    async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let operation = match self.node {
            Some(node) => format!("/v1/hand-over?to={node}"),
            None => "/v1/hand-over".to_owned(),
        };
        let answer = operate(&client, &operation).await;
        leave(&client).await;
        let document = answer.map_err(|refusal| match (refusal, self.node) {
            (OperateError::Code(ErrorCode::BadArguments), Some(node)) => {
                Failure::new(REFUSED, format!("node {node} is no voter; rowlock member ls shows them"))
            }
            (OperateError::Code(ErrorCode::NewConfigNoQuorum), Some(node)) => {
                Failure::new(REFUSED, format!("node {node} does not answer the leader; nothing was changed"))
            }
            (OperateError::Code(ErrorCode::NewConfigNoQuorum), None) => {
                Failure::new(REFUSED, "no other voter answers the leader; nothing was changed")
            }
            (refusal, _) => refusal.into(),
        })?;
        match self.output {
            Output::Json => print_json(&document)?,
            Output::Simple => print(format!("node {} leads\n", document["leader"]).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

const POLL_PAUSE: Duration = Duration::from_millis(500);

/// Wait until every member serves
#[derive(clap::Args)]
pub struct Wait {
    /// Give up after this time
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60s")]
    timeout: Duration,
    #[command(flatten)]
    cluster: Cluster,
}

impl Wait {
    /// Exits with 69 if some members do not serve in time.
    async fn run(self) -> Result<ExitCode, Failure> {
        let deadline = time::now() + self.timeout;
        loop {
            let missing = match time::timeout_at(deadline, self.missing()).await {
                Ok(Ok(missing)) if missing.is_empty() => return Ok(ExitCode::SUCCESS),
                Ok(Ok(missing)) => missing.join(", "),
                Ok(Err(failure)) if failure.code == UNAVAILABLE => failure.message,
                Ok(Err(failure)) => return Err(failure),
                Err(_) => "no server has answered in time".to_owned(),
            };
            if time::now() + POLL_PAUSE > deadline {
                return Err(Failure::new(UNAVAILABLE, format!("not all members serve: {missing}")));
            }
            time::sleep(POLL_PAUSE).await;
        }
    }

    async fn missing(&self) -> Result<Vec<String>, Failure> {
        let client = self.cluster.connect().await?;
        let found = membership(&client).await;
        leave(&client).await;
        let states = query_all(&self.cluster, &found?).await?;
        let missing = states.iter().filter(|(_, state)| !state.is_up());
        Ok(missing.map(|(id, state)| format!("node {id}: {}", state.text())).collect())
    }
}

/// Waits until a new node has served for `stable` without a gap between polls.
async fn until_serving(
    cluster: &Cluster,
    node: u64,
    server: &Server,
    stable: Duration,
    deadline: Instant,
) -> Result<(), Failure> {
    let alone = MemberList { servers: [(node, server.clone())].into(), version: 0 };
    let mut since: Option<Instant> = None;
    loop {
        let states = query_all(cluster, &alone).await?;
        let state = &states[&node];
        since = state.is_up().then(|| since.unwrap_or_else(time::now));
        if since.is_some_and(|since| since.elapsed() >= stable) {
            return Ok(());
        }
        if time::now() >= deadline {
            let why = state.text();
            let problem =
                format!("node {node} does not serve: {why}; it is a learner now; run the command again");
            return Err(Failure::new(UNAVAILABLE, problem));
        }
        time::sleep(POLL_PAUSE).await;
    }
}
