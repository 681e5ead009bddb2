//! `rowlock session`: the open sessions.

use std::process::ExitCode;

use serde_json::Value;

use super::{Form, Line, Look, ask, hint_at_more, items, percent, show, span, text};
use crate::cluster::{Cluster, leave};
use crate::exit::Failure;
use crate::znode::print_json;

const HEAD: [&str; 6] = ["session", "address", "timeout", "holds", "waits", "ephemerals"];

/// Look at the open sessions
#[derive(clap::Args)]
pub struct Session {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Ls(Ls),
}

/// List the open sessions: what each holds and waits for; the address where the asked node knows it. All of
/// them for the superuser, else only the one that asks
#[derive(clap::Args)]
struct Ls {
    /// Only this one, e.g. 0x100000000000001
    session: Option<String>,
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    cluster: Cluster,
}

impl Session {
    /// Prints a line for each.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let Command::Ls(ls) = self.command;
        let client = ls.cluster.connect().await?;
        let mut question = format!("/v1/sessions?limit={}", ls.limit);
        if let Some(session) = &ls.session {
            question.push_str(&format!("&session={}", percent(session)));
        }
        let answer = ask(&client, ls.session.as_deref().unwrap_or("sessions"), &question).await;
        leave(&client).await;
        let document = answer?;
        if ls.output == Form::Json {
            print_json(&document)?;
        } else {
            let lines: Vec<Line<6>> =
                items(&document, "sessions").map(|session| line(ls.output, session)).collect();
            show(ls.output, HEAD, &lines)?;
            hint_at_more(&document);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn line(form: Form, session: &Value) -> Line<6> {
    Line {
        cells: [
            text(&session["session"]),
            text(&session["address"]),
            span(form, &session["timeout_ms"]),
            text(&session["locks_held"]),
            text(&session["locks_waiting"]),
            text(&session["ephemerals"]),
        ],
        look: Look::Plain,
    }
}
