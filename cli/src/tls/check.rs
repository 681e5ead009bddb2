//! `rowlock tls check`: shows the content and expiry of files, and the problems that nodes and clients would
//! report.

use std::path::PathBuf;
use std::process::ExitCode;

use rowlock_coordinator::config::ClusterConfig;
use serde_json::{Value, json};

use super::finding::{Candidate, FileKind, Finding, Role, check};
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
