//! `rowlock tls renew`: signs new certificates of nodes and clients, with new keys.

use std::process::ExitCode;

use rowlock_tls::{Certificate, inspect};
use serde_json::{Value, json};

use super::folder::{CLIENTS, Folder, PEERS, Signer};
use super::{DAYS, FolderOptions, Output, date, days, days_left, described};
use crate::exit::{CONFIG, Failure};
use crate::print::outln;
use crate::znode::print_json;

/// Renew certificates with new keys; running nodes load them within 10 s
#[derive(clap::Args)]
pub struct Renew {
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
