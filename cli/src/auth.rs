//! `rowlock auth`: creates credentials of users with passwords (ZooKeeper's scheme `digest`).

use std::io::Read;
use std::process::ExitCode;

use serde_json::json;

use crate::exit::{Failure, IO, USAGE};
use crate::print::print;
use crate::superuser::{NAME, auth, digest, new_password};
use crate::znode::{Output, print_json};

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
