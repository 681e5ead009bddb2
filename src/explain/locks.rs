//! `rowlock locks`: the locks of the cluster, the most contended first.

use std::process::ExitCode;

use serde_json::Value;

use super::{Form, Line, Look, ask, hint_at_more, items, moment, show, span, text};
use crate::cluster::{Cluster, leave};
use crate::exit::Failure;
use crate::znode::print_json;

const HEAD: [&str; 6] = ["lock", "waiting", "longest", "holding", "permits", "delayed until"];

/// List locks that are held or waited for, the most contended first
#[derive(clap::Args)]
pub struct Locks {
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    cluster: Cluster,
}

impl Locks {
    /// Prints a line for each.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let answer = ask(&client, "locks", &format!("/v1/locks?limit={}", self.limit)).await;
        leave(&client).await;
        let document = answer?;
        if self.output == Form::Json {
            print_json(&document)?;
        } else {
            let lines: Vec<Line<6>> = items(&document, "locks").map(|lock| line(self.output, lock)).collect();
            show(self.output, HEAD, &lines, &[])?;
            hint_at_more(&document);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn line(form: Form, lock: &Value) -> Line<6> {
    Line {
        cells: [
            text(&lock["lock"]),
            text(&lock["waiters"]),
            span(form, &lock["oldest_wait_ms"]),
            text(&lock["holders"]),
            text(&lock["limit"]),
            moment(form, &lock["delayed_until_ms"]),
        ],
        look: Look::Plain,
    }
}
