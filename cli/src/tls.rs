//! `rowlock tls`: creates, renews and checks certificates of own CAs. docs/tls.md.
//!
//! Two CAs, each with a certificate and a key: one signs nodes, the other clients. A client's certificate
//! never authenticates a node.

mod check;
mod client;
mod finding;
mod folder;
mod init;
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
const DAYS: i64 = 365;
const CA_DAYS: i64 = 3_650;
const DIR: &str = "tls";

/// Create and inspect certificates of nodes and clients
#[derive(clap::Args)]
pub struct Tls {
    #[command(subcommand)]
    command: TlsCommand,
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

    /// Returns the folder. Refuses the default folder if another user can have placed keys there.
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
    /// Runs the subcommand on files only, without any connection.
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            TlsCommand::Init(init) => init.run(),
            TlsCommand::Node(node) => node.run(),
            TlsCommand::Client(client) => client.run(),
            TlsCommand::Renew(renew) => renew.run(),
            TlsCommand::Check(check) => check.run(),
        }
    }
}

/// Returns a client's files in a folder of certificates: the nodes' CA, its certificate, its key.
pub fn client_files(dir: &Path, client: &str) -> [PathBuf; 3] {
    let stem = folder::client(client);
    [format!("{}.pem", folder::PEERS), format!("{stem}.pem"), format!("{stem}.key")]
        .map(|file| dir.join(file))
}

/// Returns `[tls]` of cluster.toml for a folder of certificates.
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

/// Creates the certificates of all nodes and of one client in an empty folder.
pub fn make(dir: &Path, config: &ClusterConfig, client: &str) -> Result<(), Failure> {
    let plan = plan::plan(&plan::PlanOptions { cluster: None, nodes: None, hosts: &[] }, Some(config))?;
    init::make(dir, &plan, DAYS, CA_DAYS)?;
    let folder = folder::Folder::open(dir)?;
    let issued = folder.signer(folder::CLIENTS)?.sign(client, &[], None, DAYS)?;
    folder.keep(&folder::client(client), &issued.cert_pem, &issued.key_pem)
}

/// Parses a number of days from 1 to 36,500.
fn days(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(days @ 1..=36_500) => Ok(days),
        _ => Err("use a number of days from 1 to 36500".to_owned()),
    }
}

/// Formats a time as `2027-11-23`.
fn date(unix_ms: i64) -> String {
    let text = crate::moment::rfc3339(unix_ms);
    text.split_once('T').map_or(text.clone(), |(date, _)| date.to_owned())
}

/// Returns whole days until `expires_ms`; negative after the expiry.
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
