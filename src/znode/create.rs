//! `rowlock create`: makes a znode.

use std::ffi::OsString;
use std::process::ExitCode;

use rowlock_client::Created;
use rowlock_proto::CreateMode;
use rowlock_proto::acl::Acl;
use serde_json::json;

use super::{Output, data, json_stat, print_json};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, LOST};
use crate::print::errln;
use crate::print::print;
use crate::signals::{Stop, shell_code};

/// Make a znode and print its path
#[derive(clap::Args)]
pub struct Create {
    /// Path of the znode; its parent must exist
    path: String,
    /// Its data; with - what stdin has
    data: Option<OsString>,
    /// It lives as long as this command, which then runs until a signal
    #[arg(short, long)]
    ephemeral: bool,
    /// The server appends a number to the name
    #[arg(short, long)]
    sequential: bool,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Create {
    /// Prints the path that was made, with its number if it is sequential.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let data = match self.data {
            Some(_) => data(self.data)?,
            None => Vec::new(),
        };
        let mode = match (self.ephemeral, self.sequential) {
            (false, false) => CreateMode::Persistent,
            (true, false) => CreateMode::Ephemeral,
            (false, true) => CreateMode::PersistentSequential,
            (true, true) => CreateMode::EphemeralSequential,
        };
        let mut stop = Stop::listen()?;
        // Until there is something to be left in order, a signal simply ends us.
        let client = tokio::select! {
            client = self.cluster.connect() => client?,
            signal = stop.signal() => return Ok(ExitCode::from(shell_code(signal))),
        };
        let answer = client.create(&self.path, Some(data.into()), mode, Acl::open()).await;
        let Created { path, stat } = match answer {
            Ok(made) => made,
            Err(e) => {
                leave(&client).await;
                return Err(failed(&self.path, &e));
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
}

/// Waits for the end of the session.
async fn ended(client: &rowlock_client::Client) {
    let mut states = client.states();
    while states.next().await.is_some() {}
}
