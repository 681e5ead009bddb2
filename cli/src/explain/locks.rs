//! `rowlock locks`: lists the locks of the cluster, the most contended first.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::Client;
use rowlock_env::time;
use serde_json::Value;

use super::{Line, OutputFormat, Style, fetch_report, hint_at_more, items, moment, print_lines, span, text};
use crate::cluster::{Cluster, leave, seconds};
use crate::exit::Failure;
use crate::paint::Paint;
use crate::print::print;
use crate::signals::{Stop, shell_code};
use crate::znode::print_json;

const HEAD: [&str; 6] = ["lock", "waiting", "longest", "holding", "permits", "delayed until"];

const SPARE: [&str; 3] = ["delayed until", "permits", "longest"];

/// Shortest pause: each refresh is work for a node.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// List locks that are held or waited for, most contended first
#[derive(clap::Args)]
pub struct Locks {
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Refresh every this many seconds, until Ctrl-C
    #[arg(long, value_name = "SEC", value_parser = seconds, num_args = 0..=1, default_missing_value = "2")]
    watch: Option<Duration>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    cluster: Cluster,
}

impl Locks {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let Some(pause) = self.watch else {
            let client = self.cluster.connect().await?;
            let answer = self.fetch(&client).await;
            leave(&client).await;
            self.print(&answer?)?;
            return Ok(ExitCode::SUCCESS);
        };
        let mut stop = Stop::listen()?;
        let client = tokio::select! {
            client = self.cluster.connect() => client?,
            signal = stop.signal() => return Ok(ExitCode::from(shell_code(signal))),
        };
        let ended = tokio::select! {
            failed = self.follow(&client, pause.max(PAUSE_MIN)) => Err(failed),
            _ = stop.signal() => Ok(ExitCode::SUCCESS),
        };
        leave(&client).await;
        ended
    }

    /// Prints the locks repeatedly, at a terminal over the previous output. Returns the failure that ends the
    /// loop.
    async fn follow(&self, client: &Client, pause: Duration) -> Failure {
        let clear = if Paint::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        loop {
            let shown = match self.fetch(client).await {
                Ok(document) => print(clear.as_bytes()).and_then(|()| self.print(&document)),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = shown {
                return failure;
            }
            time::sleep(pause).await;
        }
    }

    async fn fetch(&self, client: &Client) -> Result<Value, Failure> {
        fetch_report(client, "locks", &format!("/v1/locks?limit={}", self.limit)).await
    }

    fn print(&self, document: &Value) -> Result<(), Failure> {
        if self.output == OutputFormat::Json {
            return print_json(document);
        }
        let lines: Vec<Line<6>> = items(document, "locks").map(|lock| line(self.output, lock)).collect();
        print_lines(self.output, HEAD, &lines, &SPARE)?;
        hint_at_more(document);
        Ok(())
    }
}

fn line(form: OutputFormat, lock: &Value) -> Line<6> {
    Line {
        cells: [
            text(&lock["lock"]),
            text(&lock["waiters"]),
            span(form, &lock["oldest_wait_ms"]),
            text(&lock["holders"]),
            text(&lock["limit"]),
            moment(form, &lock["delayed_until_ms"]),
        ],
        style: Style::Plain,
    }
}
