//! `rowlock session`: shows open sessions, and ends one by order of an operator.

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use rowlock_client::Client;
use rowlock_proto::ErrorCode;
use rowlock_proto::report::in_query;
use serde_json::Value;

use super::{Line, OutputFormat, Style, fetch_report, hint_at_more, items, print_lines, span, text};
use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, REFUSED, USAGE};
use crate::operate::{OperateError, operate};
use crate::print::{count, errln, print};
use crate::znode::{Output, print_json};

const HEAD: [&str; 6] = ["session", "address", "timeout", "holds", "waits", "ephemerals"];
const ZNODES: [&str; 3] = ["place", "token", "znode"];

/// Show open sessions, or end one
#[derive(clap::Args)]
pub struct Session {
    #[command(subcommand)]
    command: SessionCommand,
}

#[derive(clap::Subcommand)]
enum SessionCommand {
    Ls(ListSessions),
    Show(Show),
    End(End),
}

/// List open sessions with what each holds and waits for. Superusers see all of them, others their own
#[derive(clap::Args)]
struct ListSessions {
    /// Show only this session, e.g. 0x100000000000001
    session: Option<String>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    cluster: Cluster,
}

/// Show one session: its ephemeral znodes, the locks that it holds and those that it waits for
#[derive(clap::Args)]
struct Show {
    /// Session id, e.g. 0x100000000000001
    session: String,
    /// Maximum number of znodes
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    cluster: Cluster,
}

/// End a session: delete its ephemeral znodes and pass on its locks
///
/// A disconnected client may believe that it holds its locks until its session timeout has passed. Needs a
/// superuser. Asks for confirmation, unless --force is set.
#[derive(clap::Args)]
struct End {
    /// Session id, e.g. 0x100000000000001
    session: String,
    /// End it without confirmation
    #[arg(long)]
    force: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Session {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            SessionCommand::Ls(ls) => ls.run().await,
            SessionCommand::Show(show) => show.run().await,
            SessionCommand::End(end) => end.run().await,
        }
    }
}

impl ListSessions {
    async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let mut query = format!("/v1/sessions?limit={}", self.limit);
        if let Some(session) = &self.session {
            query.push_str(&format!("&session={}", in_query(session)));
        }
        let answer = fetch_report(&client, self.session.as_deref().unwrap_or("sessions"), &query).await;
        leave(&client).await;
        let document = answer?;
        if self.output == OutputFormat::Json {
            print_json(&document)?;
        } else {
            let lines: Vec<Line<6>> =
                items(&document, "sessions").map(|session| line(self.output, session)).collect();
            print_lines(self.output, HEAD, &lines, &[])?;
            hint_at_more(&document);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Show {
    async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let answer = one(&client, &self.session, self.limit).await;
        leave(&client).await;
        let session = answer?;
        if self.output == OutputFormat::Json {
            print_json(&session)?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.output == OutputFormat::Table {
            print_lines(self.output, HEAD, &[line(self.output, &session)], &[])?;
            print(b"\n")?;
        }
        let znodes: Vec<Line<3>> = items(&session, "znodes")
            .map(|znode| Line {
                cells: [text(&znode["place"]), text(&znode["czxid"]), text(&znode["path"])],
                style: if znode["place"] == "holds" { Style::Good } else { Style::Plain },
            })
            .collect();
        let more = session["ephemerals"].as_u64().is_some_and(|all| all > znodes.len() as u64);
        print_lines(self.output, ZNODES, &znodes, &[])?;
        if more {
            errln!("rowlock: the session has more znodes; raise --limit to see them");
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl End {
    /// Exits with 1 if there is no such session (any more).
    async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let ended = self.end(&client).await;
        leave(&client).await;
        let document = ended?;
        match self.output {
            Output::Json => print_json(&document)?,
            Output::Simple => print(format!("session {} has ended\n", self.session).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn end(&self, client: &Client) -> Result<Value, Failure> {
        if !self.force {
            let session = one(client, &self.session, 1).await?;
            let found = format!(
                "{} from {} holds {}, waits for {} and has {}",
                self.session,
                text(&session["address"]),
                count(&session["locks_held"], "lock"),
                session["locks_waiting"],
                count(&session["ephemerals"], "ephemeral znode"),
            );
            confirm(&found, &self.session)?;
        }
        let operation = format!("/v1/end-session?session={}", in_query(&self.session));
        operate(client, &operation).await.map_err(|refusal| match refusal {
            OperateError::Code(ErrorCode::NoNode) => {
                Failure::new(REFUSED, format!("{}: there is no such session", self.session))
            }
            OperateError::Code(ErrorCode::BadArguments) => Failure::new(
                USAGE,
                format!("{} is no session id; use the form 0x100000000000001", self.session),
            ),
            other => other.into(),
        })
    }
}

/// Asks the person at the terminal for confirmation. Without a terminal, only --force confirms.
fn confirm(found: &str, session: &str) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::new(USAGE, format!("session {found}; to end it, use --force")));
    }
    errln!("session {found}. Type the session to end it:");
    let mut typed = String::new();
    let read = stdin.lock().read_line(&mut typed);
    if read.is_ok() && typed.trim() == session {
        return Ok(());
    }
    Err(Failure::new(REFUSED, "not confirmed; nothing was changed"))
}

async fn one(client: &Client, session: &str, limit: u32) -> Result<Value, Failure> {
    let query = format!("/v1/sessions?limit={limit}&session={}", in_query(session));
    let mut document = fetch_report(client, session, &query).await?;
    Ok(document["sessions"][0].take())
}

fn line(form: OutputFormat, session: &Value) -> Line<6> {
    Line {
        cells: [
            text(&session["session"]),
            text(&session["address"]),
            span(form, &session["timeout_ms"]),
            text(&session["locks_held"]),
            text(&session["locks_waiting"]),
            text(&session["ephemerals"]),
        ],
        style: Style::Plain,
    }
}
