//! Superuser of a cluster: the password, its digest in the cluster's file, and the file in which `up` and
//! `dev` leave the credential for commands of the same user. `rowlock auth` creates credentials of other
//! users.
//!
//! Must never do: send the password to another machine without TLS.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use rowlock_coordinator::config::ClusterConfig;
use rowlock_env::disk::Dir;
use rowlock_env::rng;
use rowlock_state::acl::digest_identity;
use serde_json::json;

use crate::exit::{Failure, IO, USAGE};
use crate::http_get::is_loopback;
use crate::print::print;
use crate::znode::{Output, print_json};

/// File name beside the cluster's file, mode 0600.
pub const FILE: &str = "superuser";
pub const NAME: &str = "super";
/// Remedy for errors about a missing superuser.
pub const REMEDY: &str = "only superusers may do this; set ROWLOCK_AUTH=digest:super:PASSWORD, or make one with \
                          `rowlock auth new`";
/// Letters and digits without a special meaning in a shell or in TOML.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// 26 characters of 5 bits: 130 bits of randomness.
const PASSWORD_CHARS: usize = 26;

/// Generates a random password of [`PASSWORD_CHARS`] characters.
fn new_password() -> String {
    (0..PASSWORD_CHARS).map(|_| char::from(LETTERS[(rng::u64() >> 59) as usize])).collect()
}

/// Returns `USER:HASH`, the form in ACLs and in `super_digest`.
pub fn digest(user: &str, password: &str) -> String {
    digest_identity(&format!("{user}:{password}")).id
}

/// Returns the form in ROWLOCK_AUTH.
pub fn auth(user: &str, password: &str) -> String {
    format!("digest:{user}:{password}")
}

/// Adds a superuser to a cluster and stores the credential in `folder`. Keeps the password of an earlier run.
/// If the cluster's file names a superuser, only removes a stored credential.
pub fn provide(folder: &Dir, config: &mut ClusterConfig) -> std::io::Result<()> {
    if config.client.super_digest.is_some() || !config.client.x509_superusers.is_empty() {
        return if folder.exists(FILE) { folder.remove(FILE) } else { Ok(()) };
    }
    let password = stored(folder).unwrap_or_else(new_password);
    config.client.super_digest = Some(digest(NAME, &password));
    folder.write_atomic(FILE, format!("{}\n", auth(NAME, &password)).as_bytes())
}

fn stored(folder: &Dir) -> Option<String> {
    let text = String::from_utf8(folder.read(FILE).ok()?).ok()?;
    text.trim().strip_prefix("digest:super:").filter(|password| !password.is_empty()).map(str::to_owned)
}

/// Returns the credential beside a cluster's file, in the form of ROWLOCK_AUTH. Returns `None` if there is no
/// credential, if other users can read the file, or if the credential would go to another machine without
/// TLS.
pub fn beside(file: &Path, config: &ClusterConfig, by_tls: bool) -> Option<String> {
    let is_local = config.nodes.iter().all(|node| is_loopback(node.any_client_addr()));
    if !by_tls && !is_local {
        return None;
    }
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = Dir::open(parent.unwrap_or(Path::new("."))).ok()?;
    if !folder.exists(FILE) || folder.is_open_to_others(FILE).ok()? {
        return None;
    }
    stored(&folder).map(|password| auth(NAME, &password))
}

const STDIN_MAX_BYTES: u64 = 4096;

/// Create credentials of superusers and of users in ACLs
#[derive(clap::Args)]
pub struct Auth {
    #[command(subcommand)]
    command: AuthCommand,
}

#[derive(clap::Subcommand)]
enum AuthCommand {
    New(NewCredential),
}

/// Create a password and its digest, for a superuser or another user
///
/// Nothing is stored and no cluster is contacted. The digest goes into cluster.toml (a superuser) or into an
/// ACL (another user); the password into ROWLOCK_AUTH.
#[derive(clap::Args)]
struct NewCredential {
    /// Name of the user; `super` is the superuser, who passes every ACL
    #[arg(default_value = NAME, value_parser = user)]
    user: String,
    /// Read the password from stdin instead of generating one
    #[arg(long)]
    stdin: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

fn user(name: &str) -> Result<String, String> {
    match name.contains([':', ',']) || name.chars().any(char::is_whitespace) || name.is_empty() {
        true => Err("a name has no colon, comma or space".to_owned()),
        false => Ok(name.to_owned()),
    }
}

impl Auth {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            AuthCommand::New(new) => new.run(),
        }
    }
}

impl NewCredential {
    fn run(self) -> Result<ExitCode, Failure> {
        let password = if self.stdin { from_stdin()? } else { new_password() };
        let (digest, auth) = (digest(&self.user, &password), auth(&self.user, &password));
        match self.output {
            Output::Json => print_json(&json!({ "user": self.user, "digest": digest, "auth": auth }))?,
            Output::Simple => print(credential_text(&self.user, &digest, &auth).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn credential_text(user: &str, digest: &str, auth: &str) -> String {
    let digest_use = match user {
        NAME => format!(
            "In cluster.toml of every node, which then needs mode 0600; restart the nodes one after the other:\n\
             [client]\nsuper_digest = \"{digest}\"\n"
        ),
        _ => format!("In an ACL:\ndigest:{digest}:cdrwa\n"),
    };
    format!("{digest_use}\nIn the shell of commands that use it:\nexport ROWLOCK_AUTH='{auth}'\n")
}

fn from_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(STDIN_MAX_BYTES).read_to_string(&mut text);
    read.map_err(|e| Failure::new(IO, format!("cannot read the password from stdin: {e}")))?;
    let password = text.trim_end_matches(['\n', '\r']);
    if password.is_empty() || password.contains('\n') {
        return Err(Failure::new(USAGE, "stdin has no password; write one line to stdin"));
    }
    Ok(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(host: &str) -> ClusterConfig {
        let text = format!("[[node]]\nid = 1\nclient = \"{host}:1\"\npeer = \"127.0.0.1:2\"\n");
        ClusterConfig::parse(&text, Path::new("cluster.toml")).unwrap()
    }

    #[test]
    fn the_credential_fits_the_digest_and_stays_on_this_machine() {
        let tmp = tempfile::tempdir().unwrap();
        let (folder, file) = (Dir::open(tmp.path()).unwrap(), tmp.path().join("cluster.toml"));
        let mut first = config("127.0.0.1");
        provide(&folder, &mut first).unwrap();
        let auth = beside(&file, &first, false).unwrap();
        let password = auth.strip_prefix("digest:super:").unwrap();
        assert_eq!(first.client.super_digest.as_deref(), Some(digest("super", password).as_str()));
        let mut again = config("127.0.0.1");
        provide(&folder, &mut again).unwrap();
        assert_eq!(again.client.super_digest, first.client.super_digest);
        assert_eq!(beside(&file, &config("db1"), false), None);
        assert!(beside(&file, &config("db1"), true).is_some());
        // A file with its own superuser keeps that superuser.
        provide(&folder, &mut first).unwrap();
        assert_eq!(beside(&file, &first, false), None);
    }

    #[test]
    fn a_digest_is_that_of_zookeeper() {
        assert_eq!(digest("super", "admin"), "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=");
        assert_ne!(new_password(), new_password());
        assert_eq!(new_password().len(), PASSWORD_CHARS);
    }
}
