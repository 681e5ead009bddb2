//! Descriptions of this program: help texts (groups of commands, examples, exit codes), shell completions,
//! manual pages, version. docs/cli.md has the complete rules.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use rowlock_state::version::{self, COMMIT};
use serde_json::json;

use crate::Cli;
use crate::exit::{Failure, IO};
use crate::print::print;
use crate::znode::{Output, print_json};

pub const ALL: &str = "\
First steps:
  rowlock up                               Run a cluster on this machine, with a demonstration
  rowlock dev                              Run one node for development
  rowlock lock nightly -- ./backup.sh      Run a command under a lock
  rowlock queue nightly                    Show who holds it and who waits
  rowlock doctor                           Find out why no server answers

Exit codes are in docs/cli.md and in the help of each command.";

/// Commands by purpose, in the order of `--help`.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Use locks",
        &[
            "lock",
            "sem",
            "acquire",
            "once",
            "elect",
            "queue",
            "locks",
            "ask",
            "release",
            "history",
            "contention",
            "session",
            "fence",
            "terraform",
            "mcp",
        ],
    ),
    ("Watch", &["status", "top", "health", "doctor", "check", "debug"]),
    ("Operate", &["member", "drain", "rebalance", "upgrade", "log-level", "backup", "recover", "wal"]),
    ("Data", &["ls", "get", "set", "create", "delete", "stat", "import"]),
    ("Set up", &["serve", "tls", "token", "auth", "acl", "completions", "version"]),
    ("Develop", &["up", "dev", "sim"]),
];

/// Commands whose first argument is the name of a lock that exists already.
const LOCK_COMMANDS: [&str; 9] =
    ["lock", "sem", "acquire", "once", "queue", "ask", "release", "history", "contention"];

/// Replaces clap's flat list of commands by [`GROUPS`].
pub fn grouped(all: Command) -> Command {
    let mut groups = String::new();
    for (title, names) in GROUPS {
        groups += &format!("{title}:\n");
        for name in names {
            let about = all.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            groups += &format!("  {name:<12} {}\n", about.unwrap_or_default());
        }
        groups.push('\n');
    }
    all.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}

/// Commands of similar programs, each with its equivalent in `rowlock`.
const FOREIGN_COMMANDS: [(&str, &str); 11] = [
    ("unlock", "release"),
    ("run", "lock"),
    ("put", "set"),
    ("cat", "get"),
    ("mk", "create"),
    ("rm", "delete"),
    ("start", "serve"),
    ("node", "member"),
    ("cluster", "status"),
    ("log", "log-level"),
    ("logs", "debug"),
];

/// Adds the equivalent command to the error about an unknown command.
pub fn suggest(error: &mut clap::Error) {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return };
    if let Some((_, meant)) = FOREIGN_COMMANDS.iter().find(|(foreign, _)| foreign == typed) {
        let meant = ContextValue::Strings(vec![(*meant).to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
}

pub const ASK: &str = "\
Examples:
  rowlock ask ci/deploy --reason 'hotfix 42 waits'                 Notify the holder only
  rowlock ask ci/deploy --reason 'maintenance at 9' --within 10m   Also take it away after 10 min

Exit codes: 0 asked, or no client holds it; 1 refused; 64 usage; 69 no server could be reached.";

pub const UP: &str = "\
Examples:
  rowlock up                               Three nodes, a demonstration, then stay until Ctrl-C
  rowlock up --no-demo --keep              Go on with the data of the last run
  rowlock up --check; echo $?              Demonstration only: 0 if every promise was kept
  rowlock up --nodes 5 --base-port 4000    Beside another cluster

The data stays in the folder after Ctrl-C; the next `rowlock up` without --keep deletes it. \
`up` creates a superuser; commands with --config find its credential in the same folder.";

pub const DEV: &str = "\
Examples:
  rowlock dev                              Run the node until Ctrl-C
  rowlock dev -o json | head -1            Its addresses, for scripts and tests
  rowlock lock nightly -- ./backup.sh      In the same folder: needs no --endpoints";

pub const SERVE: &str = "\
Examples:
  rowlock serve --config cluster.toml --node 2
  rowlock serve --node from-hostname --log debug --log-format json

Exit codes: 0 a signal stopped it; 64 usage; 69 a port is taken; 70 a bug, or its state differs from other \
nodes; 73 the data folder cannot be used; 74 a disk failed; 78 a wrong cluster.toml or certificate.";

pub const LOCK: &str = "\
Examples:
  rowlock lock nightly -- ./backup.sh      Wait for the lock, then exit with the code of backup.sh
  rowlock lock -n nightly ./backup.sh      Do not wait: exit code 1 if it is busy
  rowlock lock -w 2.5s nightly -c 'echo $ROWLOCK_LOCK_TOKEN'
  rowlock lock nightly                     Hold it until Ctrl-C

Exit codes: the command's; 1 busy (see -E), or refused; 64 usage; 69 no server could be reached; 75 the lock was \
lost; 79 a deadlock; 126 the command cannot be executed; 127 it does not exist.";

pub const SEM: &str = "\
Examples:
  rowlock sem -n 3 uploads -- ./upload.sh  At most three at once, on all machines together
  rowlock sem uploads --permits 2 ./big.sh Take two of its permits

Exit codes: as those of `rowlock lock`.";

pub const ACQUIRE: &str = "\
Examples:
  rowlock acquire --ttl 30m ci/deploy              Wait, take it, write ci-deploy.lease
  rowlock release --lease ci-deploy.lease          A later step gives it back
  rowlock acquire --ttl 30m -o env ci/deploy >> \"$GITHUB_ENV\"    The token, for later steps
  rowlock acquire --ttl 1h --renew ci-deploy.lease

Exit codes: 0; 1 busy (see -E), refused, or --ttl beyond the cluster's limit; 64 usage; 69 no server could be \
reached; 73 the lease file exists or cannot be created; 74 it cannot be written; 75 the lock was lost; 79 a deadlock.";

pub const ONCE: &str = "\
Examples:
  0 * * * *  rowlock once --every 1h backup -- ./backup.sh    The same line in each host's crontab
  rowlock once --every 1d --retry-failed report -- ./report   A run that fails does not count
  rowlock get /locks/backup                                   The last run: when, where, exit code

Exit codes: the command's; 80 it has run in this interval, or is running, on another host (see -E); the others as \
those of `rowlock lock`.";

pub const TERRAFORM: &str = "\
Examples:
  rowlock terraform run prod -- tofu apply            The state is where the backend's address says
  rowlock terraform run prod --state -- terraform apply    The state is in the cluster, too

The configuration needs an empty block: terraform { backend \"http\" {} }. Without --state, name the address in it.

Exit codes: as those of `rowlock lock`.";

pub const ELECT: &str = "\
Examples:
  rowlock elect scheduler host-7 ./run.sh      Run it while leading; others read host-7
  rowlock elect --listen scheduler             Print the leader, one line for each change
  rowlock elect --http :4040 scheduler host-7  curl -f localhost:4040 tells whether it leads

Exit codes: as those of `rowlock lock`.";

pub const TOP: &str = "\
Examples:
  rowlock top                              Every two seconds, until Ctrl-C
  rowlock top --once -o json | jq '.nodes[].requests_per_second'

Exit codes: 0; 69 with --once if a node does not answer or serve.";

pub const BUNDLE: &str = "\
Examples:
  rowlock debug bundle cluster.tar.gz
  rowlock debug bundle node2.tar.gz --log-file /var/log/rowlock.log

Passwords, tokens, digests and the data of znodes are left out: paths, names and addresses are not. \
about.json in the archive lists what could not be collected.

Exit codes: 0 even if parts are missing; 73 the file exists or cannot be created; 74 it cannot be written.";

pub const QUEUE: &str = "\
Examples:
  rowlock queue nightly
  rowlock queue /locks/nightly -o json

A narrow terminal omits some columns; -o simple has all of them.";

pub const HISTORY: &str = "\
Examples:
  rowlock history nightly --since 1h
  rowlock history --follow -o json             All locks, one line for each entry as it happens

A narrow terminal omits some columns; -o simple has all of them.";

pub const CONTENTION: &str = "\
Examples:
  rowlock contention --since 24h               The locks that clients waited for, longest time first
  rowlock contention nightly --by address      One lock: which machine waited behind which";

pub const RELEASE: &str = "\
Examples:
  rowlock queue nightly                        The token of the holder
  rowlock release --force --token 42 nightly   Release the lock of the holder with this token
  rowlock release --lease ci-deploy.lease      Release the lock of a `rowlock acquire`

Exit codes: 0; 1 refused, or no such holder or file; 64 usage; 69 no server could be reached; 73 no lease file; \
75 the lock of the lease had been lost, or the outcome is unknown.";

pub const FENCE: &str = "\
Examples:
  rowlock lock nightly -- sh -c 'make-report >new && rowlock fence check report -- mv new report'
  rowlock fence check report --token 42 -- mv new report

Exit codes: 0, or the command's; 1 stale token: a later holder has written; 73 FILE.fence cannot be created; 74 it \
cannot be written; 126 the command cannot be executed; 127 it does not exist.";

pub const MCP: &str = "\
Examples:
  rowlock mcp --agent ada --root /home/me/project          The command line for an agent's list of MCP servers
  rowlock mcp --endpoints a:2181,b:2181 --root ~/project

Tools: take_lock, release_lock, list_locks, my_locks, ask_holder, answer_question, hand_over, write_file. \
docs/agents.md has a session.

Exit codes: 0 the agent's program ended the conversation; 73 --root cannot be opened; 74 no conversation.";

pub const ACL: &str = "\
Examples:
  rowlock acl set take,ask,see 'ci/*' x509:CN=ci    One rule: what this certificate may do below ci/
  rowlock acl set none '*' anyone                   All other locks are closed to all others
  rowlock acl get > rules; rowlock acl set --file rules
  rowlock acl check x509:CN=bob ci/deploy

The longest pattern that names a lock decides. Changes need a superuser; docs/access-control.md has more.

Exit codes: 0; 1 refused; 64 usage, or a malformed rule; 69 no server could be reached.";

pub const ACL_CHECK: &str = "\
Examples:
  rowlock acl check me nightly
  rowlock acl check token:ci ci/deploy --right take

Exit codes: 0; 1 the right is missing, or refused; 69 no server could be reached.";

pub const CREATE: &str = "\
Examples:
  rowlock create /config v1
  rowlock create -p /app/config/limits - < limits.json
  rowlock create -e -s /app/worker-        Ephemeral and sequential, until the command ends

Exit codes: 0; 1 refused (it exists, or its parent does not); 64 not a path; 69 no server could be reached; 75 \
the outcome is unknown.";

pub const DOCTOR: &str = "\
Examples:
  rowlock doctor                           The endpoints that commands use here
  rowlock doctor --endpoints a:2181,b:2181

Exit codes: 0 no problem found; 69 otherwise.";

/// Print shell completions, e.g. `source <(rowlock completions bash)`
#[derive(clap::Args)]
pub struct Completions {
    /// Shell to generate completions for
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let all = Cli::command();
        // Omits hidden commands: some shells' scripts would offer them.
        let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
        let mut command = clap::Command::new("rowlock").subcommands(shown);
        let mut script = Vec::new();
        generate(self.shell, &mut command, "rowlock", &mut script);
        let script = String::from_utf8_lossy(&script);
        print(with_lock_names(self.shell, &script).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the names of the locks in use, for completion. Quick: the shell waits.
const LOCK_NAMES: &str =
    "rowlock locks -o simple --connect-timeout 500ms 2>/dev/null | cut -f 1 | sed 's,^/locks/,,'";

/// Lets a script of bash, zsh or fish complete lock names from the cluster. Scripts of other shells stay as
/// they are.
fn with_lock_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => {
            let complete = format!("COMPREPLY=($(compgen -W \"$({LOCK_NAMES})\" -- \"$2\"))");
            let is_name = "[[ $COMP_CWORD -eq 2 && $2 != -* ]]";
            format!(
                "{script}\n_rowlock_names() {{\n    _rowlock \"$@\"\n    {is_name} || return 0\n    \
                 case ${{COMP_WORDS[1]}} in\n        {})\n            {complete} ;;\n    esac\n}}\n\
                 complete -F _rowlock_names -o bashdefault -o default rowlock\n",
                LOCK_COMMANDS.join("|")
            )
        }
        Shell::Zsh => {
            let names = format!("_rowlock_names() {{\n    compadd -- ${{(f)\"$({LOCK_NAMES})\"}}\n}}\n\n");
            let completed =
                script.replace("e.g. /locks/ci/deploy:_default'", "e.g. /locks/ci/deploy:_rowlock_names'");
            completed.replacen("_rowlock() {", &format!("{names}_rowlock() {{"), 1)
        }
        Shell::Fish => {
            let of = LOCK_COMMANDS.join(" ");
            format!(
                "{script}complete -c rowlock -n \"__fish_seen_subcommand_from {of}\" -f -a \"({LOCK_NAMES})\"\n"
            )
        }
        _ => script.to_owned(),
    }
}

/// Write the manual pages into a folder
#[derive(clap::Args)]
pub struct Manuals {
    /// Existing folder for the pages
    folder: PathBuf,
}

impl Manuals {
    /// Writes `rowlock.1`, `rowlock-lock.1` and so on. Hidden commands have no page.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let cannot = |e| Failure::new(IO, format!("{}: {e}", self.folder.display()));
        clap_mangen::generate_to(Cli::command(), &self.folder).map_err(cannot)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Show the version and the commit it was built from
#[derive(clap::Args)]
pub struct Version {
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Version {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.output {
            Output::Simple => print(format!("rowlock {} ({COMMIT})\n", version::RELEASE).as_bytes())?,
            Output::Json => print_json(&json!({ "version": version::RELEASE, "commit": COMMIT }))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let all = crate::Cli::command();
        let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
        let mut shown: Vec<&str> = shown.collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        shown.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, shown);
    }

    #[test]
    fn a_command_of_another_program_suggests_ours() {
        let mut error = crate::Cli::command().try_get_matches_from(["rowlock", "unlock", "l"]).unwrap_err();
        suggest(&mut error);
        assert!(error.to_string().contains("'release'"), "{error}");
        for (_, meant) in FOREIGN_COMMANDS {
            assert!(crate::Cli::command().find_subcommand(meant).is_some(), "{meant}");
        }
    }
}
