//! `rowlock upgrade`: shows an upgrade's progress, and finalizes the new version, after which no node can go
//! back.
//!
//! Any node takes the request and forwards it to the leader.

use std::process::ExitCode;

use rowlock_proto::ErrorCode;
use serde_json::Value;

use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, REFUSED, UNAVAILABLE, USAGE};
use crate::operate::{OperateError, operate};
use crate::print::print;
use crate::table::table;
use crate::znode::{Output, print_json};

/// Show, finalize or cancel an upgrade
///
/// Nodes are upgraded one by one, and may go back to the old release until the upgrade is finalized. Needs a
/// superuser: ROWLOCK_AUTH, or a certificate of x509_superusers.
#[derive(clap::Args)]
pub struct Upgrade {
    #[command(subcommand)]
    command: UpgradeCommand,
}

#[derive(clap::Subcommand)]
enum UpgradeCommand {
    Status(Status),
    Finalize(Finalize),
    Cancel(Cancel),
}

/// Show the cluster version, each member's release, and what the upgrade waits for
#[derive(clap::Args)]
struct Status {
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Switch to the newest version that all members know. There is no way back to an older release
#[derive(clap::Args)]
struct Finalize {
    /// Confirm the step; required
    #[arg(long)]
    yes: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Stop the leader from finalizing by itself until `upgrade finalize`, so that nodes can go back
#[derive(clap::Args)]
struct Cancel {
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Upgrade {
    /// Exit code of status: 0 if no upgrade is under way, 69 during an upgrade.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            UpgradeCommand::Status(Status { output, cluster }) => {
                let document = run_step(&cluster, "look").await?;
                print_status(output, &document)?;
                let is_done = document["state"] == "done";
                Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::from(UNAVAILABLE) })
            }
            UpgradeCommand::Finalize(finalize) => finalize.run().await,
            UpgradeCommand::Cancel(Cancel { output, cluster }) => {
                print_status(output, &run_step(&cluster, "hold").await?)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl Finalize {
    async fn run(self) -> Result<ExitCode, Failure> {
        if !self.yes {
            let problem = "behind this there is no way back to an older release; make a backup first (rowlock backup save), \
                        then use --yes";
            return Err(Failure::new(USAGE, problem));
        }
        print_status(self.output, &run_step(&self.cluster, "finalize").await?)?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn run_step(cluster: &Cluster, step: &str) -> Result<Value, Failure> {
    let client = cluster.connect().await?;
    let answer = operate(&client, &format!("/v1/upgrade?do={step}")).await;
    leave(&client).await;
    answer.map_err(|refusal| match refusal {
        OperateError::Code(ErrorCode::NewConfigNoQuorum) => Failure::new(
            REFUSED,
            "not every member is known to run the new release and to be up; rowlock upgrade status shows which",
        ),
        OperateError::Code(ErrorCode::BadArguments) if step == "hold" => {
            Failure::new(REFUSED, "no upgrade is under way; there is nothing to hold")
        }
        other => other.into(),
    })
}

fn print_status(output: Output, document: &Value) -> Result<(), Failure> {
    match output {
        Output::Json => print_json(document),
        Output::Simple => print(status_text(document).as_bytes()),
    }
}

fn status_text(document: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let version =
        |version: &Value| format!("version {} (release {})", version["number"], text(&version["release"]));
    let none = Vec::new();
    let rows: Vec<[String; 4]> = document["members"]
        .as_array()
        .unwrap_or(&none)
        .iter()
        .map(|member| {
            let versions = match member["versions"].as_array().map(Vec::as_slice) {
                Some([least, most]) if least == most => most.to_string(),
                Some([least, most]) => format!("{least}-{most}"),
                _ => "unknown".to_owned(),
            };
            let state = if member["up"] == true { "up" } else { "no answer" };
            [member["node"].to_string(), state.to_owned(), text(&member["release"]), versions]
        })
        .collect();
    let held = if document["held"] == true { ", which is held: rowlock upgrade finalize" } else { "" };
    let verdict = match document["state"].as_str() {
        Some("done") => "no upgrade is under way".to_owned(),
        Some("ready") => {
            let when = match document["finalizes_in_ms"].as_u64() {
                Some(ms) => format!(", which is finalized in {} s", ms.div_ceil(1_000)),
                None if held.is_empty() => ": rowlock upgrade finalize".to_owned(),
                None => held.to_owned(),
            };
            format!("all members know {}{when}", version(&document["to"]))
        }
        _ => format!("an upgrade is under way; it waits: {}", text(&document["waits_for"])),
    };
    let table = table(["node", "state", "release", "versions"], &rows);
    format!("the cluster is at {}\n{table}{verdict}\n", version(&document["version"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_shows_the_version_and_the_next_step() {
        let member = |node: u64, most: u64| json!({ "node": node, "up": true, "release": "0.3.0", "versions": [1, most] });
        let mut document = json!({
            "version": { "number": 1, "release": "0.2.0" }, "state": "ready", "held": false,
            "to": { "number": 2, "release": "0.3.0" }, "waits_for": null, "finalizes_in_ms": 12_400,
            "members": [member(1, 2), member(2, 1)],
        });
        let text = status_text(&document);
        assert!(text.starts_with("the cluster is at version 1 (release 0.2.0)\n"), "{text}");
        assert!(
            text.ends_with("all members know version 2 (release 0.3.0), which is finalized in 13 s\n"),
            "{text}"
        );
        assert!(text.contains("1-2"), "{text}");
        document["finalizes_in_ms"] = Value::Null;
        assert!(status_text(&document).ends_with(": rowlock upgrade finalize\n"));
        document["held"] = true.into();
        assert!(status_text(&document).ends_with("which is held: rowlock upgrade finalize\n"));
        document["state"] = "upgrading".into();
        document["waits_for"] = "node 2 runs release 0.2.0 (version 1)".into();
        assert!(
            status_text(&document).contains("it waits: node 2 runs release 0.2.0"),
            "{}",
            status_text(&document)
        );
        document["state"] = "done".into();
        assert!(status_text(&document).ends_with("no upgrade is under way\n"));
    }
}
