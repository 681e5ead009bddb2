//! `rowlock create` and `rowlock set`: create a znode, and replace its data.

use std::ffi::OsString;
use std::process::ExitCode;

use rowlock_client::{Client, Created, Error};
use rowlock_coordinator::access::api::acl_entry;
use rowlock_proto::acl::Acl;
use rowlock_proto::{CreateMode, ErrorCode, path};
use serde_json::json;

use super::refused::{CallKind, FailedAt, ZnodeCall};
use super::{Output, check_path, condition, data, json_stat, no_path, print_json, tree};
use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, LOST, REFUSED};
use crate::print::{errln, print};
use crate::signals::{Stop, shell_code};

/// Create a znode and print its path
#[derive(clap::Args)]
pub struct Create {
    /// Path of the znode; without -p its parent must exist
    path: String,
    /// Data; `-` reads stdin
    data: Option<OsString>,
    /// Make the znode ephemeral: deleted when this command ends by a signal
    #[arg(short, long)]
    ephemeral: bool,
    /// Append a sequence number to the name
    #[arg(short, long)]
    sequential: bool,
    /// Create missing parents without data
    #[arg(short, long)]
    parents: bool,
    /// ACL entry, e.g. x509:CN=ci:crw or world:anyone:r; repeat it [default: world:anyone:cdrwa]
    #[arg(long = "acl", value_name = "SCHEME:ID:PERMS", value_parser = acl_entry)]
    acl: Vec<Acl>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Create {
    /// Prints the created path, with the sequence number of a sequential znode.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        self.check_path()?;
        let data = match &self.data {
            Some(_) => data(self.data.clone())?,
            None => Vec::new(),
        };
        let mode = match (self.ephemeral, self.sequential) {
            (false, false) => CreateMode::Persistent,
            (true, false) => CreateMode::Ephemeral,
            (false, true) => CreateMode::PersistentSequential,
            (true, true) => CreateMode::EphemeralSequential,
        };
        let mut stop = Stop::listen()?;
        // Before there is anything to clean up, a signal ends the process.
        let client = tokio::select! {
            client = self.cluster.connect() => client?,
            signal = stop.signal() => return Ok(ExitCode::from(shell_code(signal))),
        };
        let Created { path, stat } = match self.create(&client, data, mode).await {
            Ok(made) => made,
            Err(failed) => {
                let refused = refused(&client, &failed).await;
                leave(&client).await;
                return Err(refused);
            }
        };
        match self.output {
            Output::Json => print_json(&json!({"path": path, "stat": json_stat(&stat)}))?,
            Output::Simple => print(format!("{path}\n").as_bytes())?,
        }
        if self.ephemeral {
            errln!("rowlock: {path} lives until Ctrl-C");
            tokio::select! {
                _ = stop.signal() => {}
                () = ended(&client) => {
                    return Err(Failure::new(LOST, format!("{path}: the session has ended, and the znode with it")));
                }
            }
        }
        leave(&client).await;
        Ok(ExitCode::SUCCESS)
    }

    fn check_path(&self) -> Result<(), Failure> {
        let checked = match self.sequential {
            true => path::validate_sequential(&self.path),
            false => path::validate(&self.path),
        };
        checked.map_err(|e| no_path(&self.path, e))
    }

    async fn create(&self, client: &Client, data: Vec<u8>, mode: CreateMode) -> Result<Created, FailedAt> {
        if self.parents {
            tree::create_parents(client, &self.path).await?;
        }
        let acl = if self.acl.is_empty() { Acl::open() } else { self.acl.clone() };
        let kind = if self.sequential { CallKind::CreateSequential } else { CallKind::Create };
        let created = client.create(&self.path, Some(data.into()), mode, acl).await;
        created.map_err(|error| FailedAt { path: self.path.clone(), kind, error })
    }
}

/// Names the missing parent: `no such znode` would seem to mean the new znode.
async fn refused(client: &Client, failed: &FailedAt) -> Failure {
    let FailedAt { path, kind, error } = failed;
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    match error {
        Error::Rejected(ErrorCode::NoNode) if !parent.is_empty() => {
            let problem = format!("{path}: its parent {parent} does not exist");
            Failure::new(
                REFUSED,
                format!("{problem}; create it first, or use -p to create all missing parents"),
            )
        }
        error => ZnodeCall { path, kind: *kind }.refused(client, error).await,
    }
}

/// Waits for the end of the session.
async fn ended(client: &rowlock_client::Client) {
    let mut states = client.states();
    while states.next().await.is_some() {}
}

/// Replace the data of a znode
#[derive(clap::Args)]
pub struct Set {
    /// Path of the znode
    path: String,
    /// New data [default: stdin]; `-` reads stdin
    data: Option<OsString>,
    /// Only if the znode has this version
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    version: Option<i32>,
    /// Output format; simple prints nothing
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Set {
    /// Prints nothing, or the new Stat as JSON.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        check_path(&self.path)?;
        let data = data(self.data)?;
        let client = self.cluster.connect().await?;
        let answer = client.set(&self.path, Some(data.into()), condition(self.version)).await;
        let answer = match answer {
            Ok(stat) => Ok(stat),
            Err(e) => Err(ZnodeCall { path: &self.path, kind: CallKind::Set }.refused(&client, &e).await),
        };
        leave(&client).await;
        let stat = answer?;
        if self.output == Output::Json {
            print_json(&json_stat(&stat))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
