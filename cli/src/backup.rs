//! `rowlock backup`: saves a cluster's state to a file, inspects and verifies such a file, and creates a new
//! cluster from one.

mod export;
pub mod restore;

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_backup::file::{self, BackupError, Header, Writer};
use rowlock_backup::file::{Source, Target};
use rowlock_client::{Client, Error};
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use crate::cluster::{Cluster, failed, leave};
use crate::exit::{DATA_FOLDER, Failure, IO, LOST, REFUSED};
use crate::member::connect_to;
use crate::print::{count, print, safe_lines};
use crate::znode::{Output, print_json};
use crate::{moment, superuser};

/// Back up a cluster to a file, and restore a new cluster from one
///
/// A backup holds everything in the tree: protect it like the cluster's secrets. docs/operations.md says what
/// a restore means for locks.
#[derive(clap::Args)]
pub struct Backup {
    #[command(subcommand)]
    command: BackupCommand,
}

#[derive(clap::Subcommand)]
enum BackupCommand {
    Save(Save),
    Inspect(Inspect),
    Verify(Verify),
    Restore(restore::Restore),
    Export(export::Export),
}

impl Backup {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            BackupCommand::Save(save) => save.run().await,
            BackupCommand::Inspect(inspect) => inspect.run(),
            BackupCommand::Verify(verify) => verify.run(),
            BackupCommand::Restore(restore) => restore.run(),
            BackupCommand::Export(export) => export.run(),
        }
    }
}

/// Describes a backup by its header, line by line.
fn described(header: &Header) -> String {
    let id = header.cluster_id.as_deref().unwrap_or("none yet");
    let members: Vec<&str> = header.members.lines().filter(|line| line.starts_with("server.")).collect();
    let mut out = format!(
        "cluster   {} ({id})\ntaken at  {}\nzxid      {:#x}, term {}\nholds     {}, {}, {}\n\
         digest    {}\nrelease   {}\n",
        header.cluster,
        moment::rfc3339(header.time_ms),
        header.zxid,
        header.term,
        count(header.znodes, "znode"),
        count(header.sessions, "session"),
        count(header.state_bytes, "byte"),
        header.digest,
        header.release,
    );
    for (at, member) in members.iter().enumerate() {
        out.push_str(&format!("{}{member}\n", if at == 0 { "members   " } else { "          " }));
    }
    // The text comes from an untrusted file.
    safe_lines(&out)
}

fn document(header: &Header, path: &std::path::Path) -> Value {
    json!({ "file": path, "header": header })
}

/// Save a backup of the cluster to a file
///
/// The file holds everything that was committed before the command began. Nodes keep serving meanwhile. Needs
/// a superuser: ROWLOCK_AUTH, or a certificate of x509_superusers.
#[derive(clap::Args)]
struct Save {
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
    async fn run(self) -> Result<ExitCode, Failure> {
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

/// Show a backup's header. `verify` reads the rest
#[derive(clap::Args)]
pub struct Inspect {
    #[command(flatten)]
    options: InspectOptions,
}

/// Check every byte of a backup and build its state
#[derive(clap::Args)]
pub struct Verify {
    #[command(flatten)]
    options: InspectOptions,
}

#[derive(clap::Args)]
struct InspectOptions {
    /// Path of the backup file
    file: PathBuf,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Inspect {
    fn run(self) -> Result<ExitCode, Failure> {
        let header = file::inspect(open(&self.options.file)?).map_err(|e| refused(&self.options.file, &e))?;
        match self.options.output {
            Output::Simple => print(described(&header).as_bytes())?,
            Output::Json => print_json(&document(&header, &self.options.file))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Verify {
    fn run(self) -> Result<ExitCode, Failure> {
        let read = file::read(open(&self.options.file)?);
        let (header, _) = read.map_err(|e| refused(&self.options.file, &e))?;
        match self.options.output {
            Output::Simple => {
                print(format!("{}every byte is as it was written\n", described(&header)).as_bytes())?
            }
            Output::Json => print_json(&document(&header, &self.options.file))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn open(path: &std::path::Path) -> Result<Source, Failure> {
    Source::open(path).map_err(|e| Failure::new(IO, format!("{}: {e}", path.display())))
}

fn refused(path: &std::path::Path, error: &BackupError) -> Failure {
    let code = if matches!(error, BackupError::Io(_)) { IO } else { REFUSED };
    Failure::new(code, format!("{} {error}", path.display()))
}
