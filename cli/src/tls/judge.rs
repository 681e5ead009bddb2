//! What is in files of certificates, and what those who meet them would say.

use std::path::{Path, PathBuf};

use rowlock_coordinator::config::TlsFiles;
use rowlock_env::disk::Dir;
use rowlock_tls::{Certificate, ClientAuth, Material, TlsError, inspect, node_uri};

use super::days_left;

/// A file to look at.
pub struct Candidate {
    pub file: PathBuf,
    /// Where the key of its certificate is, if it is here.
    pub key: PathBuf,
    pub role: Role,
}

/// What a file is needed for.
pub enum Role {
    /// No option and no file says what it is needed for.
    Any,
    /// As the certificate of this node of this cluster, with all its files.
    Node {
        id: u64,
        cluster: String,
        files: TlsFiles,
    },
    Authorities,
}

pub struct Finding {
    pub file: PathBuf,
    pub what: What,
    /// The authority in another file that has signed it. `None` for an authority, and where none has.
    pub signed_by: Option<PathBuf>,
    pub has_key: bool,
    /// Reasons for which a peer refuses it.
    pub problems: Vec<String>,
}

/// What a file holds.
pub enum What {
    /// Authorities, at least one.
    Authorities(Vec<Certificate>),
    /// The certificate of one node.
    Node { id: u64, cluster: String, certificate: Certificate },
    /// That of anybody else.
    Client(Certificate),
    /// Numbers of certificates that do not count any more.
    Revocations,
    /// It cannot be read, or holds something else.
    Unknown,
}

impl What {
    /// The certificate that the file is about: of several authorities, the one that expires first.
    pub fn certificate(&self) -> Option<&Certificate> {
        match self {
            What::Authorities(all) => all.iter().min_by_key(|one| one.expires_ms),
            What::Node { certificate, .. } | What::Client(certificate) => Some(certificate),
            What::Revocations | What::Unknown => None,
        }
    }

    /// In a word or two.
    pub fn text(&self) -> String {
        match self {
            What::Authorities(_) => "authority".to_owned(),
            What::Node { id, cluster, .. } => format!("node {id} of {cluster}"),
            What::Client(_) => "client".to_owned(),
            What::Revocations => "revoked".to_owned(),
            What::Unknown => "-".to_owned(),
        }
    }
}

impl Candidate {
    /// A file of unknown purpose: its key is beside it.
    pub fn any(file: PathBuf) -> Candidate {
        Candidate { key: file.with_extension("key"), file, role: Role::Any }
    }
}

/// Judges files together: certificates against the authorities among them, and against their keys. Fewer than
/// `min_days` left is a problem.
pub fn judge(candidates: &[Candidate], min_days: i64) -> Vec<Finding> {
    let mut found: Vec<Finding> = candidates.iter().map(|one| read(&one.file)).collect();
    let is_authority = |finding: &&Finding| matches!(finding.what, What::Authorities(_));
    let authorities: Vec<PathBuf> = found.iter().filter(is_authority).map(|one| one.file.clone()).collect();
    for (finding, candidate) in found.iter_mut().zip(candidates) {
        let mut believers = authorities.clone();
        if let Role::Node { files: TlsFiles { peer_ca: Some(ca), .. }, .. } = &candidate.role {
            believers = vec![ca.clone()];
        }
        if matches!(finding.what, What::Node { .. } | What::Client(_)) {
            match signer(&finding.file, &believers) {
                Ok(authority) => finding.signed_by = Some(authority),
                Err(problem) => finding.problems.push(problem),
            }
        }
        look_at_days(finding, min_days);
        look_at_key(finding, &candidate.key);
        look_at_role(finding, &candidate.role);
    }
    found.sort_by_key(|finding| !matches!(finding.what, What::Authorities(_)));
    found
}

fn read(file: &Path) -> Finding {
    let (what, problem) = match inspect::certificates(file) {
        Ok(read) => what_is(read),
        Err(_) if is_revocations(file) => (What::Revocations, None),
        Err(error) => (What::Unknown, Some(without_file(error))),
    };
    Finding {
        file: file.to_owned(),
        what,
        signed_by: None,
        has_key: false,
        problems: problem.into_iter().collect(),
    }
}

fn what_is(read: Vec<Certificate>) -> (What, Option<String>) {
    let first = read.first().expect("Invariant: a file without certificates was refused");
    if first.is_authority {
        return (What::Authorities(read), None);
    }
    let first = first.clone();
    let mut nodes = first.uris.iter().filter_map(|uri| uri.strip_prefix("rowlock://")?.rsplit_once("/node/"));
    let Some((cluster, _)) = nodes.next() else { return (What::Client(first), None) };
    match first.node_of(cluster) {
        Some(id) => (What::Node { id, cluster: cluster.to_owned(), certificate: first }, None),
        None => {
            let problem = format!("it does not name one node: {}", first.uris.join(", "));
            (What::Client(first), Some(problem))
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

/// The authority that believes it. Else what the one has against it that has signed it.
fn signer(cert: &Path, authorities: &[PathBuf]) -> Result<PathBuf, String> {
    let mut problem = None;
    for authority in authorities {
        match inspect::chains_to(cert, authority) {
            Ok(()) => return Ok(authority.clone()),
            Err(error) => {
                let text = without_file(error);
                // The others only say that they do not know it.
                if !text.contains("no authority") {
                    problem = Some(format!("{text} (says {})", authority.display()));
                }
            }
        }
    }
    Err(problem.unwrap_or_else(|| "none of the authorities here has signed it".to_owned()))
}

fn look_at_days(finding: &mut Finding, min_days: i64) {
    let Some(certificate) = finding.what.certificate() else { return };
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

fn look_at_key(finding: &mut Finding, key: &Path) {
    if matches!(finding.what, What::Revocations | What::Unknown) {
        return;
    }
    finding.has_key = key != finding.file && key.exists();
    if finding.has_key
        && let Err(error) = inspect::key(key, &finding.file)
    {
        finding.problems.push(error.to_string());
    }
}

/// What the one would say who needs it.
fn look_at_role(finding: &mut Finding, role: &Role) {
    match role {
        Role::Any => {}
        Role::Authorities if matches!(finding.what, What::Authorities(_) | What::Unknown) => {}
        Role::Authorities => finding.problems.push("no authority is in it".to_owned()),
        Role::Node { id, cluster, files } => {
            match &finding.what {
                What::Node { id: named, cluster: of, .. } if (named, of) == (id, cluster) => {}
                What::Unknown => {}
                other => finding.problems.push(format!(
                    "node {id} of {cluster} needs a certificate for {}, and this is that of {}",
                    node_uri(cluster, *id),
                    other.text()
                )),
            }
            // All that is left: files that are not there, and revocations.
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
