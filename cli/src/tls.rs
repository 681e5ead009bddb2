//! `rowlock tls`: authorities and certificates of one's own, made, renewed and looked at. docs/tls.md.
//!
//! Two authorities, each with a certificate and a key: one signs nodes, the other clients. So a client's
//! certificate never makes it a node.

mod check;
mod client;
mod folder;
mod init;
mod judge;
mod node;
mod plan;
mod renew;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_coordinator::config::{ClusterConfig, TlsFiles};
use rowlock_env::time;
use rowlock_tls::Certificate;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::found;

const DAY_S: i64 = 86_400;
const DAY_MS: i64 = DAY_S * 1_000;
/// How long certificates count, and authorities.
const DAYS: i64 = 365;
const CA_DAYS: i64 = 3_650;
/// Folder of certificates unless `--dir` names another.
const DIR: &str = "tls";

/// Create and inspect certificates of nodes and clients
#[derive(clap::Args)]
pub struct Tls {
    #[command(subcommand)]
    what: TlsCommand,
}

#[derive(clap::Subcommand)]
enum TlsCommand {
    Init(init::Init),
    Node(node::Node),
    Client(client::ClientCertificate),
    Renew(renew::Renew),
    Check(check::Check),
}

/// Options of every command that works on a folder of certificates.
#[derive(clap::Args)]
struct FolderOptions {
    /// Folder of certificates and keys [default: tls]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl FolderOptions {
    fn dir(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new(DIR))
    }

    /// The same, refused if other users can have put keys into a folder that no option names.
    fn trusted_dir(&self) -> Result<&Path, Failure> {
        if self.dir.is_none() {
            found::check(Path::new(DIR), "--dir")?;
        }
        Ok(self.dir())
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Aligned columns, for people.
    #[default]
    Text,
    /// One JSON document, for programs.
    Json,
}

impl Tls {
    /// Runs the subcommand. Touches files only, and speaks with no node.
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.what {
            TlsCommand::Init(init) => init.run(),
            TlsCommand::Node(node) => node.run(),
            TlsCommand::Client(client) => client.run(),
            TlsCommand::Renew(renew) => renew.run(),
            TlsCommand::Check(check) => check.run(),
        }
    }
}

/// The client's files in a folder of certificates: the authority of the nodes, its certificate, its key.
pub fn client_files(dir: &Path, client: &str) -> [PathBuf; 3] {
    let stem = folder::client(client);
    [format!("{}.pem", folder::PEERS), format!("{stem}.pem"), format!("{stem}.key")]
        .map(|file| dir.join(file))
}

/// What `cluster.toml` says of the files in a folder of certificates.
pub fn node_files(dir: &Path) -> TlsFiles {
    let file = |stem: &str, end: &str| dir.join(format!("{stem}.{end}"));
    TlsFiles {
        cert: file("node-{id}", "pem"),
        key: file("node-{id}", "key"),
        peer_ca: Some(file(folder::PEERS, "pem")),
        client_ca: Some(file(folder::CLIENTS, "pem")),
        crl: None,
    }
}

/// Makes what the nodes of a cluster and one client need, in a folder without any of it.
pub fn make(dir: &Path, config: &ClusterConfig, client: &str) -> Result<(), Failure> {
    let plan = plan::plan(&plan::Wishes { cluster: None, nodes: None, hosts: &[] }, Some(config))?;
    init::make(dir, &plan, DAYS, CA_DAYS)?;
    let folder = folder::Folder::open(dir)?;
    let issued = folder.signer(folder::CLIENTS)?.sign(client, &[], None, DAYS)?;
    folder.keep(&folder::client(client), &issued.cert_pem, &issued.key_pem)
}

/// A number of days, at least one, that a calendar has.
fn days(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(days @ 1..=36_500) => Ok(days),
        _ => Err("use a number of days from 1 to 36500".to_owned()),
    }
}

/// The `2027-11-23` of a moment.
fn date(unix_ms: i64) -> String {
    let text = crate::moment::rfc3339(unix_ms);
    text.split_once('T').map_or(text.clone(), |(date, _)| date.to_owned())
}

/// Whole days from now on; below 0 if it is over.
fn days_left(expires_ms: i64) -> i64 {
    (expires_ms - time::wall_ms()).div_euclid(DAY_MS)
}

fn described(certificate: &Certificate) -> Value {
    json!({
        "subject": certificate.subject,
        "hosts": certificate.hosts,
        "uris": certificate.uris,
        "is_authority": certificate.is_authority,
        "serial": certificate.serial,
        "expires_ms": certificate.expires_ms,
        "days_left": days_left(certificate.expires_ms),
    })
}
