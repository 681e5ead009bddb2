//! `rowlock tls check`: shows the content and expiry of files, and the problems that nodes and clients would
//! report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_coordinator::config::{ClusterConfig, TlsFiles};
use rowlock_env::disk::Dir;
use rowlock_tls::{Certificate, ClientAuth, Material, TlsError, inspect, node_uri};
use serde_json::{Value, json};

use super::folder::Folder;
use super::{FolderOptions, Output, date, days_left, described};
use crate::exit::{CONFIG, Failure};
use crate::found;
use crate::print::{errln, print, safe};
use crate::table::table;

/// Check certificates and keys as nodes and clients do
#[derive(clap::Args)]
pub struct Check {
    /// Certificate files [default: those that cluster.toml names, else all in the folder]
    files: Vec<PathBuf>,
    /// Path of cluster.toml [default: ./cluster.toml if it exists]
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    config: Option<PathBuf>,
    /// Report certificates with fewer days left as a problem
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    min_days: i64,
    #[command(flatten)]
    folder: FolderOptions,
}

impl Check {
    /// Prints a line for each file and each problem. Exits with 0 without problems, else with 78.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let found = check(&self.candidates()?, self.min_days);
        match self.folder.output {
            Output::Json => {
                let all: Vec<Value> = found.iter().map(document).collect();
                print(format!("{:#}\n", json!(all)).as_bytes())?;
            }
            Output::Text => {
                let head = ["file", "for", "names", "until", "days", "signed by"];
                let rows: Vec<[String; 6]> = found.iter().map(row).collect();
                print(table(head, &rows).as_bytes())?;
            }
        }
        let mut code = ExitCode::SUCCESS;
        for (finding, problem) in
            found.iter().flat_map(|one| one.problems.iter().map(move |problem| (one, problem)))
        {
            errln!("rowlock: {}: {problem}", finding.file.display());
            code = ExitCode::from(CONFIG);
        }
        Ok(code)
    }

    fn candidates(&self) -> Result<Vec<Candidate>, Failure> {
        if !self.files.is_empty() {
            return Ok(self.files.iter().cloned().map(Candidate::any).collect());
        }
        if self.folder.dir.is_none()
            && let Some(config) = found::cluster_file_if_any(self.config.as_deref())?
            && config.tls.is_some()
        {
            return configured(&config);
        }
        if self.config.is_some() {
            return Err(Failure::new(
                CONFIG,
                "the cluster's file has no [tls]; name files, or a folder with --dir",
            ));
        }
        self.in_folder()
    }

    fn in_folder(&self) -> Result<Vec<Candidate>, Failure> {
        let folder = Folder::open(self.folder.trusted_dir()?)?;
        let files: Vec<Candidate> =
            folder.stems()?.iter().map(|stem| Candidate::any(folder.cert(stem))).collect();
        if files.is_empty() {
            let problem = format!("there is no certificate in {}", self.folder.dir().display());
            return Err(Failure::new(CONFIG, format!("{problem}; make some with `rowlock tls init`")));
        }
        Ok(files)
    }
}

/// Returns the files of all nodes whose certificate is on this machine, and the CAs.
fn configured(config: &ClusterConfig) -> Result<Vec<Candidate>, Failure> {
    let mut found: Vec<Candidate> = Vec::new();
    let mut authorities: Vec<PathBuf> = Vec::new();
    for node in &config.nodes {
        let Some(files) = config.node(node.id).and_then(|node| node.tls.clone()) else { continue };
        for file in files.peer_ca.iter().chain(&files.client_ca) {
            if !authorities.contains(file) {
                authorities.push(file.clone());
            }
        }
        if files.cert.exists() {
            found.push(Candidate {
                file: files.cert.clone(),
                key: files.key.clone(),
                role: Role::Node { id: node.id.0, cluster: config.name.clone(), files },
            });
        }
    }
    if found.is_empty() {
        let problem = "no certificate that the cluster's file names is here";
        return Err(Failure::new(CONFIG, format!("{problem}; make them with `rowlock tls init`")));
    }
    let authorities =
        authorities.into_iter().map(|file| Candidate { role: Role::Authorities, ..Candidate::any(file) });
    Ok(authorities.chain(found).collect())
}

fn row(finding: &Finding) -> [String; 6] {
    let certificate = finding.kind.certificate();
    let dash = || "-".to_owned();
    let names = certificate.map_or_else(dash, |one| match &finding.kind {
        FileKind::Node { .. } => one.hosts.join(" "),
        _ => one.subject.clone(),
    });
    let signed_by = match &finding.kind {
        FileKind::Authorities(_) => "itself".to_owned(),
        _ => finding.signed_by.as_ref().map_or_else(dash, |path| path.display().to_string()),
    };
    [
        finding.file.display().to_string(),
        finding.kind.text(),
        safe(&names),
        certificate.map_or_else(dash, |one| date(one.expires_ms)),
        certificate.map_or_else(dash, |one| days_left(one.expires_ms).to_string()),
        signed_by,
    ]
}

fn document(finding: &Finding) -> Value {
    let mut all = finding.kind.certificate().map_or_else(|| json!({}), described);
    all["file"] = json!(finding.file);
    all["for"] = json!(match &finding.kind {
        FileKind::Authorities(_) => "authority",
        FileKind::Node { .. } => "node",
        FileKind::Client(_) => "client",
        FileKind::Revocations => "revocations",
        FileKind::Unknown => "unknown",
    });
    if let FileKind::Node { id, cluster, .. } = &finding.kind {
        (all["node"], all["cluster"]) = (json!(id), json!(cluster));
    }
    (all["signed_by"], all["has_key"]) = (json!(finding.signed_by), json!(finding.has_key));
    all["problems"] = json!(finding.problems);
    all
}

struct Candidate {
    pub file: PathBuf,
    /// Path of the certificate's key, if on this machine.
    pub key: PathBuf,
    pub role: Role,
}

enum Role {
    Any,
    /// Certificate of this node of this cluster, with the node's files.
    Node {
        id: u64,
        cluster: String,
        files: TlsFiles,
    },
    Authorities,
}

struct Finding {
    pub file: PathBuf,
    pub kind: FileKind,
    /// CA file that contains the signer. `None` for a CA, and for an unknown signer.
    pub signed_by: Option<PathBuf>,
    pub has_key: bool,
    /// Reasons for a refusal by a peer.
    pub problems: Vec<String>,
}

enum FileKind {
    /// One or more CAs.
    Authorities(Vec<Certificate>),
    Node {
        id: u64,
        cluster: String,
        certificate: Certificate,
    },
    /// Certificate that names no node.
    Client(Certificate),
    Revocations,
    /// Unreadable, or of another kind.
    Unknown,
}

impl FileKind {
    /// Returns the certificate; among several CAs, the certificate that expires first.
    pub fn certificate(&self) -> Option<&Certificate> {
        match self {
            FileKind::Authorities(all) => all.iter().min_by_key(|one| one.expires_ms),
            FileKind::Node { certificate, .. } | FileKind::Client(certificate) => Some(certificate),
            FileKind::Revocations | FileKind::Unknown => None,
        }
    }

    pub fn text(&self) -> String {
        match self {
            FileKind::Authorities(_) => "authority".to_owned(),
            FileKind::Node { id, cluster, .. } => format!("node {id} of {cluster}"),
            FileKind::Client(_) => "client".to_owned(),
            FileKind::Revocations => "revoked".to_owned(),
            FileKind::Unknown => "-".to_owned(),
        }
    }
}

impl Candidate {
    /// Creates a candidate of unknown purpose, with its key beside the file.
    pub fn any(file: PathBuf) -> Candidate {
        Candidate { key: file.with_extension("key"), file, role: Role::Any }
    }
}

/// Checks files together: certificates against the CAs among the files, and against their keys. Fewer than
/// `min_days` until the expiry is a problem.
fn check(candidates: &[Candidate], min_days: i64) -> Vec<Finding> {
    let mut found: Vec<Finding> = candidates.iter().map(|one| read(&one.file)).collect();
    let is_authority = |finding: &&Finding| matches!(finding.kind, FileKind::Authorities(_));
    let authorities: Vec<PathBuf> = found.iter().filter(is_authority).map(|one| one.file.clone()).collect();
    for (finding, candidate) in found.iter_mut().zip(candidates) {
        let mut trusted = authorities.clone();
        if let Role::Node { files: TlsFiles { peer_ca: Some(ca), .. }, .. } = &candidate.role {
            trusted = vec![ca.clone()];
        }
        if matches!(finding.kind, FileKind::Node { .. } | FileKind::Client(_)) {
            match signer(&finding.file, &trusted) {
                Ok(authority) => finding.signed_by = Some(authority),
                Err(problem) => finding.problems.push(problem),
            }
        }
        check_days(finding, min_days);
        check_key(finding, &candidate.key);
        check_role(finding, &candidate.role);
    }
    found.sort_by_key(|finding| !matches!(finding.kind, FileKind::Authorities(_)));
    found
}

fn read(file: &Path) -> Finding {
    let (kind, problem) = match inspect::certificates(file) {
        Ok(read) => classify(read),
        Err(_) if is_revocations(file) => (FileKind::Revocations, None),
        Err(error) => (FileKind::Unknown, Some(without_file(error))),
    };
    Finding {
        file: file.to_owned(),
        kind,
        signed_by: None,
        has_key: false,
        problems: problem.into_iter().collect(),
    }
}

fn classify(read: Vec<Certificate>) -> (FileKind, Option<String>) {
    let first = read.first().expect("Invariant: a file without certificates was refused");
    if first.is_authority {
        return (FileKind::Authorities(read), None);
    }
    let first = first.clone();
    let mut nodes = first.uris.iter().filter_map(|uri| uri.strip_prefix("rowlock://")?.rsplit_once("/node/"));
    let Some((cluster, _)) = nodes.next() else { return (FileKind::Client(first), None) };
    match first.node_of(cluster) {
        Some(id) => (FileKind::Node { id, cluster: cluster.to_owned(), certificate: first }, None),
        None => {
            let problem = format!("it does not name one node: {}", first.uris.join(", "));
            (FileKind::Client(first), Some(problem))
        }
    }
}

fn is_revocations(file: &Path) -> bool {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return false;
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let text = Dir::open(folder).and_then(|dir| dir.read(name)).unwrap_or_default();
    text.windows(14).any(|part| part == b"BEGIN X509 CRL")
}

/// Returns the CA that accepts the certificate, or the problem reported by its signer.
fn signer(cert: &Path, authorities: &[PathBuf]) -> Result<PathBuf, String> {
    let mut problem = None;
    for authority in authorities {
        match inspect::chains_to(cert, authority) {
            Ok(()) => return Ok(authority.clone()),
            Err(error) => {
                let text = without_file(error);
                // All further CAs report an unknown signer only.
                if !text.contains("no authority") {
                    problem = Some(format!("{text} (according to {})", authority.display()));
                }
            }
        }
    }
    Err(problem.unwrap_or_else(|| "none of the authorities here has signed it".to_owned()))
}

fn check_days(finding: &mut Finding, min_days: i64) {
    let Some(certificate) = finding.kind.certificate() else { return };
    let left = days_left(certificate.expires_ms);
    if left < 0 {
        let text = "it has expired";
        if !finding.problems.iter().any(|problem| problem.contains("expired")) {
            finding.problems.push(text.to_owned());
        }
    } else if left < min_days {
        finding.problems.push(format!("it expires in {left} days"));
    }
}

fn check_key(finding: &mut Finding, key: &Path) {
    if matches!(finding.kind, FileKind::Revocations | FileKind::Unknown) {
        return;
    }
    finding.has_key = key != finding.file && key.exists();
    if finding.has_key
        && let Err(error) = inspect::key(key, &finding.file)
    {
        finding.problems.push(error.to_string());
    }
}

fn check_role(finding: &mut Finding, role: &Role) {
    match role {
        Role::Any => {}
        Role::Authorities if matches!(finding.kind, FileKind::Authorities(_) | FileKind::Unknown) => {}
        Role::Authorities => finding.problems.push("the file contains no CA".to_owned()),
        Role::Node { id, cluster, files } => {
            match &finding.kind {
                FileKind::Node { id: named, cluster: in_cluster, .. }
                    if (named, in_cluster) == (id, cluster) => {}
                FileKind::Unknown => {}
                other => finding.problems.push(format!(
                    "node {id} of {cluster} needs a certificate for {}, and this is that of {}",
                    node_uri(cluster, *id),
                    other.text()
                )),
            }
            // Finds the remaining problems: missing files, and revocations.
            if finding.problems.is_empty()
                && let Err(error) = Material::read(files, ClientAuth::None)
            {
                finding.problems.push(format!("node {id} would not start: {error}"));
            }
        }
    }
}

fn without_file(error: TlsError) -> String {
    match error {
        TlsError::File { what, .. } => what,
        other => other.to_string(),
    }
}
