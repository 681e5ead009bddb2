//! `rowlock tls`: creates, renews and checks certificates of own CAs. docs/tls.md.
//!
//! Two CAs, each with a certificate and a key: one signs nodes, the other clients. A client's certificate
//! never authenticates a node.

mod check;
mod folder;
mod init;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_coordinator::config::{ClusterConfig, TlsFiles};
use rowlock_env::time;
use rowlock_tls::{Certificate, inspect};
use serde_json::{Value, json};

use self::folder::{CLIENTS, Folder, PEERS, Signer};
use crate::exit::{CONFIG, Failure, USAGE};
use crate::found;
use crate::print::{out, outln};
use crate::znode::print_json;

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
    Node(Node),
    Client(ClientCertificate),
    Renew(Renew),
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
    let plan = init::plan(&init::PlanOptions { cluster: None, nodes: None, hosts: &[] }, Some(config))?;
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

/// Longest common name of a certificate (X.520).
const NAME_MAX: usize = 64;

/// Create a client certificate
#[derive(clap::Args)]
struct ClientCertificate {
    /// Name of the client: letters, digits, `.`, `_`, `-`, `@`. Its identity in ACLs is x509:CN=NAME
    #[arg(value_parser = name)]
    name: String,
    /// Validity period in days
    #[arg(long, value_name = "DAYS", value_parser = days, default_value_t = DAYS)]
    days: i64,
    #[command(flatten)]
    folder: FolderOptions,
}

fn name(text: &str) -> Result<String, String> {
    let is_good = |letter: char| letter.is_ascii_alphanumeric() || "._-@".contains(letter);
    if text.is_empty() || text.len() > NAME_MAX || !text.chars().all(is_good) {
        return Err(format!("use at most {NAME_MAX} letters, digits, dots, dashes, _ and @"));
    }
    Ok(text.to_owned())
}

impl ClientCertificate {
    /// Creates both files, or none if one of the files exists.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let folder = Folder::open(self.folder.trusted_dir()?)?;
        let stem = folder::client(&self.name);
        folder.refuse_taken([stem.as_str()])?;
        let issued = folder.signer(CLIENTS)?.sign(&self.name, &[], None, self.days);
        let issued = issued.map_err(|failure| Failure::new(USAGE, failure))?;
        folder.keep(&stem, &issued.cert_pem, &issued.key_pem)?;
        let (ca, cert, key) = (folder.cert(PEERS), folder.cert(&stem), folder.key(&stem));
        if self.folder.output == Output::Json {
            let mut all = described(&issued.certificate);
            (all["ca"], all["cert"], all["key"]) = (json!(ca), json!(cert), json!(key));
            print_json(&all)?;
            return Ok(ExitCode::SUCCESS);
        }
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        let certificate = &issued.certificate;
        let (subject, until) = (&certificate.subject, date(certificate.expires_ms));
        out!(
            "made {cert} and {key} for {subject}, until {until}

the client needs both, and {ca} to know the nodes:
  export ROWLOCK_TLS_CA={ca} ROWLOCK_TLS_CERT={cert} ROWLOCK_TLS_KEY={key}
in ACLs it is x509:{subject}
"
        );
        Ok(ExitCode::SUCCESS)
    }
}

/// Create the certificate of another node
#[derive(clap::Args)]
pub struct Node {
    /// Node id in cluster.toml
    #[arg(value_parser = clap::value_parser!(u64).range(1..=254))]
    id: u64,
    /// Host names and addresses of the node, joined by `+`
    #[arg(long, value_name = "HOSTS")]
    hosts: String,
    /// Cluster name [default: that in the certificates of the other nodes]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Validity period in days
    #[arg(long, value_name = "DAYS", value_parser = days, default_value_t = DAYS)]
    days: i64,
    #[command(flatten)]
    folder: FolderOptions,
}

impl Node {
    /// Creates both files, or none if one of the files exists.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let folder = Folder::open(self.folder.trusted_dir()?)?;
        let stem = folder::node(self.id);
        folder.refuse_taken([stem.as_str()])?;
        let cluster = match &self.cluster {
            Some(name) => name.clone(),
            None => cluster_of(&folder)?,
        };
        let uri = rowlock_tls::node_uri(&cluster, self.id);
        let hosts = init::split(&self.hosts)?;
        let issued = folder.signer(PEERS)?.sign(&stem, &hosts, Some(&uri), self.days)?;
        folder.keep(&stem, &issued.cert_pem, &issued.key_pem)?;
        if self.folder.output == Output::Json {
            let mut all = described(&issued.certificate);
            all["cert"] = json!(folder.cert(&stem));
            all["key"] = json!(folder.key(&stem));
            print_json(&all)?;
        } else {
            let (cert, key) = (folder.cert(&stem), folder.key(&stem));
            let until = date(issued.certificate.expires_ms);
            outln!(
                "made {} and {} for node {} of {cluster:?}, until {until}",
                cert.display(),
                key.display(),
                self.id
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the cluster name in the certificates of the folder's nodes.
fn cluster_of(folder: &Folder) -> Result<String, Failure> {
    for stem in folder.stems()?.iter().filter(|stem| stem.starts_with("node-")) {
        let read = rowlock_tls::inspect::certificates(&folder.cert(stem));
        let read = read.map_err(|e| Failure::new(CONFIG, e))?;
        let uris = read.into_iter().take(1).flat_map(|certificate| certificate.uris);
        let name = |uri: String| {
            uri.strip_prefix("rowlock://")?.rsplit_once("/node/").map(|(name, _)| name.to_owned())
        };
        if let Some(name) = uris.into_iter().find_map(name) {
            return Ok(name);
        }
    }
    Err(Failure::new(CONFIG, "cannot find the cluster's name: there is no node certificate; use --cluster"))
}

/// Renew certificates with new keys; running nodes load them within 10 s
#[derive(clap::Args)]
struct Renew {
    /// Certificates to renew, e.g. node-1 or client-alice [default: all but the CAs]
    names: Vec<String>,
    /// Renew only certificates that expire within this many days
    #[arg(long, value_name = "DAYS", value_parser = days)]
    within: Option<i64>,
    /// Validity of the new certificates in days
    #[arg(long, value_name = "DAYS", value_parser = days, default_value_t = DAYS)]
    days: i64,
    #[command(flatten)]
    folder: FolderOptions,
}

impl Renew {
    /// Renews one certificate after another; stops at the first failure.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let folder = Folder::open(self.folder.trusted_dir()?)?;
        let mut renewed: Vec<Value> = Vec::new();
        for stem in self.stems(&folder)? {
            let cert = folder.cert(&stem);
            let read = inspect::certificates(&cert).map_err(|e| Failure::new(CONFIG, e))?;
            let Some(old) = read.first().filter(|one| !one.is_authority) else {
                // Without names, skips CAs: peers would not trust a new CA by themselves.
                if self.names.is_empty() {
                    continue;
                }
                let problem =
                    format!("{} is a CA: renewing it would invalidate its certificates", cert.display());
                return Err(Failure::new(CONFIG, format!("{problem}; see docs/tls.md on how to replace it")));
            };
            if self.within.is_some_and(|days| days_left(old.expires_ms) >= days) {
                continue;
            }
            let new = self.renew(&folder, &stem, old)?;
            if self.folder.output == Output::Text {
                outln!("renewed {} for {}, until {}", cert.display(), new.subject, date(new.expires_ms));
            }
            let mut all = described(&new);
            all["cert"] = json!(cert);
            renewed.push(all);
        }
        match self.folder.output {
            Output::Json => print_json(&json!(renewed))?,
            Output::Text if renewed.is_empty() => {
                outln!("nothing to renew in {}", self.folder.dir().display())
            }
            Output::Text => {}
        }
        Ok(ExitCode::SUCCESS)
    }

    fn stems(&self, folder: &Folder) -> Result<Vec<String>, Failure> {
        let all = folder.stems()?;
        if self.names.is_empty() {
            let is_leaf = |stem: &String| stem.starts_with("node-") || stem.starts_with("client-");
            return Ok(all.into_iter().filter(is_leaf).collect());
        }
        match self.names.iter().find(|name| !all.contains(name)) {
            None => Ok(self.names.clone()),
            Some(absent) => {
                let problem = format!("there is no {}", folder.cert(absent).display());
                Err(Failure::new(
                    CONFIG,
                    format!("{problem}; name it without its ending, for instance node-1"),
                ))
            }
        }
    }

    fn renew(&self, folder: &Folder, stem: &str, old: &Certificate) -> Result<Certificate, Failure> {
        let foreign = || {
            let problem = format!("{} was not made by Rowlock", folder.cert(stem).display());
            Failure::new(CONFIG, format!("{problem}; renew it where it was made"))
        };
        let plain = |name: &&str| !name.contains([',', '+', '\\', '#', '=']);
        let name = old.subject.strip_prefix("CN=").filter(plain).ok_or_else(foreign)?;
        let ([] | [_]) = old.uris.as_slice() else { return Err(foreign()) };
        let uri = old.uris.first().map(String::as_str);
        let signer: Signer = folder.signer(if uri.is_some() { PEERS } else { CLIENTS })?;
        let new = signer.sign(name, &old.hosts, uri, self.days)?;
        folder.replace(stem, &new)?;
        Ok(new.certificate)
    }
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn a_name_is_no_path_and_needs_no_escape_in_a_subject() {
        for good in ["alice", "a.b-c_d@e", "7"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", "../x", "a b", "a,b", "wörker", &"x".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
