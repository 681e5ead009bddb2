//! `rowlock tls client`: creates a client's certificate.

use std::process::ExitCode;

use serde_json::json;

use super::folder::{self, CLIENTS, Folder, PEERS};
use super::{DAYS, FolderOptions, Output, date, days, described};
use crate::exit::{Failure, USAGE};
use crate::print::out;
use crate::znode::print_json;

/// Longest common name of a certificate (X.520).
const NAME_MAX: usize = 64;

/// Create a client certificate
#[derive(clap::Args)]
pub struct ClientCertificate {
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
