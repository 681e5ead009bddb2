//! `rowlock acl`: shows and changes the rules about access to locks, and shows the resulting rights.
//!
//! The rules are the text of one znode (`docs/access-control.md`). Each change reads the znode, edits the
//! text, and writes conditionally on the version read: no concurrent change is lost.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use rowlock_client::{Client, Error, Version};
use rowlock_env::disk::Dir;
use rowlock_proto::acl::Acl;
use rowlock_proto::name::{LOCK_BASE, path_below};
use rowlock_proto::{CreateMode, ErrorCode, Right};
use rowlock_state::rules::{
    AccessRule, Pattern, RULES_MAX_BYTES, RULES_PATH, Rights, Rules, identity_text, parse_identity,
};
use serde_json::json;

use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, REFUSED, USAGE};
use crate::name::Name;
use crate::print::{outln, print, safe};
use crate::superuser;
use crate::table::table;
use crate::znode::{Output, data, print_json};

const ME: &str = "me";

/// Show and change who may take which lock
#[derive(clap::Args)]
pub struct AclCommand {
    #[command(subcommand)]
    action: AclAction,
}

#[derive(clap::Subcommand)]
enum AclAction {
    List(List),
    Get(Get),
    Set(Set),
    Rm(Rm),
    #[command(after_help = crate::help::ACL_CHECK)]
    Check(CheckRights),
}

/// List all rules of locks
#[derive(clap::Args)]
struct List {
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Print the rules as text, for a file that `acl set --file` reads
#[derive(clap::Args)]
struct Get {
    #[command(flatten)]
    cluster: Cluster,
}

/// Add or replace one rule, or all rules from a file
#[derive(clap::Args)]
struct Set {
    /// Rights: take, ask, force, see (comma-separated), all, or none
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    rights: Option<String>,
    /// Lock, e.g. ci/deploy, or all locks below a name, e.g. 'ci/*'
    #[arg(required_unless_present = "file")]
    locks: Option<String>,
    /// Identity: anyone, x509:SUBJECT, token:NAME, sasl:USER, digest:USER:HASH, or ip:NETWORK
    #[arg(required_unless_present = "file")]
    who: Option<String>,
    /// Replace all rules by the text of this file; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    file: Option<OsString>,
    #[command(flatten)]
    cluster: Cluster,
}

/// Remove one rule of a lock
#[derive(clap::Args)]
struct Rm {
    /// Lock, e.g. ci/deploy, or all locks below a name, e.g. 'ci/*'
    locks: String,
    /// Identity in the rule
    who: String,
    #[command(flatten)]
    cluster: Cluster,
}

/// Show the rights of an identity on a lock
#[derive(clap::Args)]
struct CheckRights {
    /// Identity as in `acl set`, or `me`
    who: String,
    #[command(flatten)]
    name: Name,
    /// Exit with 1 unless the identity has this right
    #[arg(long)]
    right: Option<Right>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl AclCommand {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.action {
            AclAction::List(list) => list.run().await,
            AclAction::Get(get) => get.run().await,
            AclAction::Set(set) => set.run().await,
            AclAction::Rm(rm) => rm.run().await,
            AclAction::Check(check) => check.run().await,
        }
    }
}

/// Reads the rules and their version; no version if there are no rules yet.
async fn read_rules(client: &Client) -> Result<(String, Option<Version>), Failure> {
    match client.get(RULES_PATH).await {
        Ok(znode) => Ok((String::from_utf8_lossy(znode.bytes()).into_owned(), Some(znode.stat.version))),
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok((String::new(), None)),
        Err(e) => Err(rules_failed(&e)),
    }
}

fn rules_failed(e: &Error) -> Failure {
    match e.code() {
        Some(ErrorCode::NoAuth) => Failure::new(REFUSED, format!("rules of locks: {}", superuser::REMEDY)),
        Some(ErrorCode::BadVersion | ErrorCode::NodeExists) => Failure::new(
            REFUSED,
            "rules of locks: another client changed them meanwhile; run the command again",
        ),
        _ => failed("rules of locks", e),
    }
}

/// Writes the rules if the znode still has `version`.
async fn write(client: &Client, text: String, version: Option<Version>) -> Result<(), Failure> {
    parsed(&text)?;
    let data = Some(text.into_bytes().into());
    let written = match version {
        Some(version) => client.set(RULES_PATH, data, Some(version)).await.map(|_| ()),
        None => client.create(RULES_PATH, data, CreateMode::Persistent, Acl::open()).await.map(|_| ()),
    };
    written.map_err(|e| rules_failed(&e))
}

fn parsed(text: &str) -> Result<Rules, Failure> {
    Rules::parse(text).map_err(|why| Failure::new(USAGE, format!("rules of locks: {why}")))
}

impl List {
    async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let text = read_rules(&client).await;
        leave(&client).await;
        let rules = parsed(&text?.0)?;
        match self.output {
            Output::Json => {
                let one = |rule: AccessRule| {
                    json!({
                        "locks": rule.pattern.to_string(),
                        "rights": rule.rights.iter().collect::<Vec<_>>(),
                        "who": identity_text(&rule.who),
                    })
                };
                print_json(&rules.iter().map(one).collect())?;
            }
            Output::Simple => {
                let row = |rule: AccessRule| {
                    [rule.pattern.to_string(), rule.rights.to_string(), safe(&identity_text(&rule.who))]
                };
                let rows: Vec<_> = rules.iter().map(row).collect();
                print(table(["LOCKS", "RIGHTS", "WHO"], &rows).as_bytes())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Get {
    async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let text = read_rules(&client).await;
        leave(&client).await;
        print(text?.0.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Set {
    async fn run(self) -> Result<ExitCode, Failure> {
        let change = match (self.file, self.rights, self.locks, self.who) {
            (Some(file), ..) => RuleChange::All(read(file)?),
            (None, Some(rights), Some(locks), Some(who)) => {
                let (rights, pattern, who) = (rights_in(&rights)?, locks_in(&locks)?, identity_in(&who)?);
                RuleChange::Rule(AccessRule { rights, pattern, who })
            }
            _ => unreachable!("clap requires either a file or three arguments"),
        };
        apply(&self.cluster, change).await
    }
}

impl Rm {
    async fn run(self) -> Result<ExitCode, Failure> {
        let (pattern, who) = (locks_in(&self.locks)?, identity_in(&self.who)?);
        apply(&self.cluster, RuleChange::Without(pattern, who)).await
    }
}

enum RuleChange {
    All(String),
    Rule(AccessRule),
    Without(Pattern, rowlock_proto::acl::Id),
}

async fn apply(cluster: &Cluster, change: RuleChange) -> Result<ExitCode, Failure> {
    let client = cluster.connect().await?;
    let done = async {
        let (text, version) = read_rules(&client).await?;
        write(&client, change.edit(&text)?, version).await
    };
    let done = done.await;
    leave(&client).await;
    done.map(|()| ExitCode::SUCCESS)
}

impl RuleChange {
    /// Returns the edited text. Comments and the order of all further rules stay.
    fn edit(self, text: &str) -> Result<String, Failure> {
        let (pattern, who, line) = match self {
            RuleChange::All(text) => return Ok(text),
            RuleChange::Rule(rule) => (rule.pattern.clone(), rule.who.clone(), Some(rule.to_string())),
            RuleChange::Without(pattern, who) => (pattern, who, None),
        };
        let is_same_rule = |line: &str| {
            line.parse::<AccessRule>().is_ok_and(|rule| rule.pattern == pattern && rule.who == who)
        };
        let mut lines: Vec<&str> = text.lines().collect();
        match (lines.iter().position(|line| is_same_rule(line)), &line) {
            (Some(at), Some(line)) => lines[at] = line,
            (Some(at), None) => drop(lines.remove(at)),
            (None, Some(line)) => lines.push(line),
            (None, None) => {
                let problem =
                    format!("{pattern}: no rule for {}; `rowlock acl list` shows all", identity_text(&who));
                return Err(Failure::new(REFUSED, problem));
            }
        }
        Ok(lines.iter().map(|line| format!("{line}\n")).collect())
    }
}

/// Reads a file, or stdin for `-`.
fn read(file: OsString) -> Result<String, Failure> {
    let bytes = match file == "-" {
        true => data(None)?,
        false => bytes_of(Path::new(&file))
            .map_err(|e| Failure::new(USAGE, format!("cannot read {}: {e}", file.to_string_lossy())))?,
    };
    String::from_utf8(bytes).map_err(|_| Failure::new(USAGE, "the rules are not UTF-8 text"))
}

fn bytes_of(file: &Path) -> io::Result<Vec<u8>> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = file.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    let folder = Dir::open(folder)?;
    let len = folder.open_to_read(name)?.len()?;
    match len <= RULES_MAX_BYTES as u64 {
        true => folder.read(name),
        false => Err(io::Error::other(format!("it has {len} bytes; use at most {RULES_MAX_BYTES}"))),
    }
}

fn rights_in(text: &str) -> Result<Rights, Failure> {
    text.parse().map_err(|why: String| Failure::new(USAGE, why))
}

fn identity_in(text: &str) -> Result<rowlock_proto::acl::Id, Failure> {
    parse_identity(text).map_err(|why| Failure::new(USAGE, why))
}

/// Parses a path, a lock's name, or a name and `/*`.
fn locks_in(text: &str) -> Result<Pattern, Failure> {
    let path = match text.strip_suffix("/*") {
        _ if text.starts_with('/') => text.to_owned(),
        _ if text == "*" => format!("{LOCK_BASE}/*"),
        Some(folder) => format!("{}/*", below_base(folder)?),
        None => below_base(text)?,
    };
    path.parse().map_err(|why: String| Failure::new(USAGE, why))
}

fn below_base(name: &str) -> Result<String, Failure> {
    path_below(LOCK_BASE, name)
        .map_err(|why| Failure::new(USAGE, format!("{name}: no name of a lock: {why}")))
}

impl CheckRights {
    /// Exits with 1 without the requested right.
    async fn run(self) -> Result<ExitCode, Failure> {
        let who = match self.who.as_str() {
            ME => None,
            other => Some(identity_text(&identity_in(other)?)),
        };
        let client = self.cluster.connect().await?;
        let name = self.name.as_typed();
        let rights = async {
            let mutex = self.name.mutex(&client);
            mutex.validate().map_err(|e| failed(name, &e))?;
            client.rights_on(&mutex.server_path(), who.as_deref()).await.map_err(|e| match e.code() {
                Some(ErrorCode::NoAuth) => {
                    Failure::new(REFUSED, format!("{name}: rights of others: {}", superuser::REMEDY))
                }
                _ => failed(name, &e),
            })
        };
        let rights = rights.await;
        leave(&client).await;
        let access = rights?;
        match self.output {
            Output::Json => print_json(&json!(access))?,
            Output::Simple => {
                let rights = Rights::of(access.rights.iter().copied());
                let why = match (&access.rule, access.guarded) {
                    (Some(rule), _) => format!("rule for {rule}"),
                    (None, true) => "no rule; clients prove who they are".to_owned(),
                    (None, false) => "no rule; locks are open".to_owned(),
                };
                outln!("{}: {rights} ({})", safe(&access.lock), safe(&why));
            }
        }
        let has_it = self.right.is_none_or(|right| access.rights.contains(&right));
        Ok(ExitCode::from(if has_it { 0 } else { REFUSED }))
    }
}

/// Lock as typed by the user, with its path on the server.
#[derive(Clone, Copy)]
pub struct LockRef<'a> {
    pub name: &'a str,
    pub path: &'a str,
}

/// Returns the failure of a call that needs a right on a lock. If that right is missing, names the right, the
/// lock and the identities able to grant the right.
pub async fn refused(client: &Client, lock: LockRef<'_>, right: Right, error: &Error) -> Failure {
    let LockRef { name, path } = lock;
    let failure = failed(name, error);
    if error.code() != Some(ErrorCode::NoAuth) {
        return failure;
    }
    match client.rights_on(path, None).await {
        Ok(access) if !access.rights.contains(&right) => {
            let missing = right.missing_on(path);
            Failure::new(failure.code, format!("{name}: {missing}"))
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> RuleChange {
        RuleChange::Rule(text.parse().unwrap())
    }

    #[test]
    fn a_rule_is_replaced_where_it_stands_and_comments_stay() {
        let text = "# teams\ntake /locks/a/* sasl:a\n\nall /locks/* token:ops\n";
        let changed = rule("see /locks/a/* sasl:a").edit(text).unwrap();
        assert_eq!(changed, "# teams\nsee /locks/a/* sasl:a\n\nall /locks/* token:ops\n");
        let more = rule("none /locks/* anyone").edit(&changed).unwrap();
        assert!(more.ends_with("token:ops\nnone /locks/* anyone\n"), "{more}");
        let without = RuleChange::Without("/locks/a/*".parse().unwrap(), parse_identity("sasl:a").unwrap());
        assert_eq!(without.edit(&changed).unwrap(), "# teams\n\nall /locks/* token:ops\n");
        let absent = RuleChange::Without("/locks/b".parse().unwrap(), parse_identity("anyone").unwrap());
        assert!(absent.edit(&changed).unwrap_err().message.contains("no rule for anyone"));
    }

    #[test]
    fn locks_are_named_as_in_other_commands() {
        for (typed, pattern) in [
            ("ci/deploy", "/locks/ci/deploy"),
            ("ci/*", "/locks/ci/*"),
            ("*", "/locks/*"),
            ("a b", "/locks/a%20b"),
            ("/curator/*", "/curator/*"),
            ("/*", "/*"),
        ] {
            assert_eq!(locks_in(typed).unwrap().to_string(), pattern);
        }
        for wrong in ["", "ci//*", "/ci/", "/a/*/b"] {
            assert!(locks_in(wrong).is_err(), "{wrong}");
        }
    }
}
