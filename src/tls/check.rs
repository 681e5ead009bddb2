//! `rowlock tls check`: what is in the files, how long it counts, and what nodes and clients would refuse.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::folder::Folder;
use super::judge::{Finding, What, judge};
use super::{Output, Place, date, days_left, described};
use crate::exit::{CONFIG, Failure};
use crate::print::{errln, print};
use crate::table::table;

/// Show certificates and keys, and whether nodes and clients would take them
#[derive(clap::Args)]
pub struct Check {
    /// Files of certificates and of their authorities [default: all in the folder]
    files: Vec<PathBuf>,
    /// Fewer days left are a problem
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    min_days: i64,
    #[command(flatten)]
    place: Place,
}

impl Check {
    /// Prints a line for each file and each problem. Exit code 0 without problems, else 78.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let files = if self.files.is_empty() { self.of_folder()? } else { self.files.clone() };
        let found = judge(&files, self.min_days);
        match self.place.output {
            Output::Json => {
                let all: Vec<Value> = found.iter().map(of_program).collect();
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

    fn of_folder(&self) -> Result<Vec<PathBuf>, Failure> {
        let folder = Folder::open(&self.place.dir)?;
        let files: Vec<PathBuf> = folder.stems()?.iter().map(|stem| folder.cert(stem)).collect();
        if files.is_empty() {
            let what = format!("there is no certificate in {}", self.place.dir.display());
            return Err(Failure::new(CONFIG, format!("{what}; make some with `rowlock tls init`")));
        }
        Ok(files)
    }
}

fn row(finding: &Finding) -> [String; 6] {
    let certificate = finding.what.certificate();
    let dash = || "-".to_owned();
    let names = certificate.map_or_else(dash, |one| match &finding.what {
        What::Node { .. } => one.hosts.join(" "),
        _ => one.subject.clone(),
    });
    let signed_by = match &finding.what {
        What::Authorities(_) => "itself".to_owned(),
        _ => finding.signed_by.as_ref().map_or_else(dash, |path| path.display().to_string()),
    };
    [
        finding.file.display().to_string(),
        finding.what.text(),
        names.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect(),
        certificate.map_or_else(dash, |one| date(one.expires_ms)),
        certificate.map_or_else(dash, |one| days_left(one.expires_ms).to_string()),
        signed_by,
    ]
}

fn of_program(finding: &Finding) -> Value {
    let mut all = finding.what.certificate().map_or_else(|| json!({}), described);
    all["file"] = json!(finding.file);
    all["for"] = json!(match &finding.what {
        What::Authorities(_) => "authority",
        What::Node { .. } => "node",
        What::Client(_) => "client",
        What::Revocations => "revocations",
        What::Unknown => "unknown",
    });
    if let What::Node { id, cluster, .. } = &finding.what {
        (all["node"], all["cluster"]) = (json!(id), json!(cluster));
    }
    (all["signed_by"], all["has_key"]) = (json!(finding.signed_by), json!(finding.has_key));
    all["problems"] = json!(finding.problems);
    all
}
