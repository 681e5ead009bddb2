//! `rowlock backup save`: fetches the state from a node, piece by piece, and writes the file.

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_backup::file::Target;
use rowlock_backup::file::{Header, Writer};
use rowlock_client::{Client, Error};
use rowlock_proto::ErrorCode;
use serde_json::Value;

use super::{described, document};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::{DATA_FOLDER, Failure, IO, LOST, REFUSED};
use crate::member::connect_to;
use crate::print::print;
use crate::superuser;
use crate::znode::{Output, print_json};

/// Save a backup of the cluster to a file
///
/// The file holds everything that was committed before the command began. Nodes keep serving meanwhile. Needs
/// a superuser: ROWLOCK_AUTH, or a certificate of x509_superusers.
#[derive(clap::Args)]
pub struct Save {
    /// Output file, created with mode 0600
    file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Node to read from, for example a follower [default: the first that is reached]
    #[arg(long, value_name = "ID")]
    from: Option<u64>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Save {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let target = Target::create(&self.file, self.force).map_err(|e| {
            let hint = if e.kind() == ErrorKind::AlreadyExists {
                "; name another, or replace it with --force"
            } else {
                ""
            };
            Failure::new(DATA_FOLDER, format!("{}: {e}{hint}", self.file.display()))
        })?;
        let client = match self.from {
            None => self.cluster.connect().await?,
            Some(node) => connect_to(&self.cluster, node).await?,
        };
        let saved = save(&client, target).await;
        leave(&client).await;
        let header = saved?;
        match self.output {
            Output::Simple => {
                print(format!("{}saved to  {}\n", described(&header), self.file.display()).as_bytes())?
            }
            Output::Json => print_json(&document(&header, &self.file))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn save(client: &Client, target: Target) -> Result<Header, Failure> {
    // Syncs: the node then has everything committed before.
    client.sync("/").await.map_err(|e| failed("sync", &e))?;
    let started = fetch(client, "/v1/backup").await?;
    let backup = started["backup"].as_str().unwrap_or_default();
    let header: Header = serde_json::from_value(started["header"].clone())
        .map_err(|e| Failure::new(LOST, format!("the node's answer cannot be read: {e}")))?;
    let disk = |e| Failure::new(IO, format!("the file could not be written: {e}"));
    let mut writer = Writer::begin(target, &header).map_err(disk)?;
    let mut offset = 0;
    while offset < header.state_bytes {
        let piece = fetch(client, &format!("/v1/backup?backup={backup}&offset={offset}")).await?;
        let data = piece["data"].as_str().and_then(|text| STANDARD.decode(text).ok());
        let data = data.filter(|data| !data.is_empty());
        let data = data.ok_or_else(|| Failure::new(LOST, "the node's answer cannot be read"))?;
        writer.write_all(&data).map_err(disk)?;
        offset += data.len() as u64;
    }
    writer.finish().and_then(Target::keep).map_err(disk)?;
    Ok(header)
}

async fn fetch(client: &Client, query: &str) -> Result<Value, Failure> {
    let text = client.report(query).await.map_err(|e| match e {
        Error::Rejected(ErrorCode::NoAuth) => Failure::new(REFUSED, superuser::REMEDY),
        Error::Rejected(ErrorCode::ThrottledOp) => {
            Failure::new(LOST, "the node is busy with other backups or reports; try again")
        }
        Error::Rejected(ErrorCode::NoNode) => Failure::new(
            LOST,
            "the connection has moved to another node, or the backup waited too long; try again",
        ),
        Error::Rejected(ErrorCode::BadArguments) => {
            Failure::new(REFUSED, "the node does not support backups: it runs an older release")
        }
        e => failed("backup", &e),
    })?;
    serde_json::from_str(&text)
        .map_err(|e| Failure::new(LOST, format!("the node's answer cannot be read: {e}")))
}
