//! `rowlock log-level`: changes the nodes' log levels while the nodes run.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::Client;
use rowlock_coordinator::limits::{LOG_FILTER_MAX_BYTES, LOG_LEVEL_MAX_MS};
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, LOST, REFUSED, USAGE};
use crate::log_filter;
use crate::member::membership;
use crate::moment::{duration, span};
use crate::operate::{OperateError, operate};
use crate::print::{errln, print};
use crate::znode::{Output, print_json};

/// Show or change the nodes' log levels while they run
///
/// A restart ends a change. Needs a superuser.
#[derive(clap::Args)]
pub struct LogLevel {
    /// error, warn, info, debug, trace, off, or directives such as info,rowlock_consensus::raft=debug
    filter: Option<String>,
    /// Revert after this time (s, m, h, d; at most 7d) [default: --reset reverts]
    #[arg(long = "for", value_name = "TIME", value_parser = period, requires = "filter")]
    period: Option<Duration>,
    /// Revert to --log, ROWLOCK_LOG or cluster.toml
    #[arg(long, conflicts_with = "filter")]
    reset: bool,
    /// Only this node [default: all members]
    #[arg(long, value_name = "ID")]
    node: Option<u64>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

fn period(text: &str) -> Result<Duration, String> {
    let most = Duration::from_millis(LOG_LEVEL_MAX_MS);
    match duration(text)? {
        time if time < Duration::from_millis(1) => Err("must be more than 0".to_owned()),
        time if time > most => Err("must be at most 7d".to_owned()),
        time => Ok(time),
    }
}

impl LogLevel {
    /// Changes all nodes in turn. Nodes without an answer are named, with exit code 75.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        if let Some(filter) = &self.filter {
            // The nodes check the filter too, but only this check can explain the mistake.
            log_filter::check(filter)?;
            if filter.len() > LOG_FILTER_MAX_BYTES {
                return Err(Failure::new(
                    USAGE,
                    format!("a filter has at most {LOG_FILTER_MAX_BYTES} bytes"),
                ));
            }
        }
        let client = self.cluster.connect().await?;
        let changed = self.change_all(&client).await;
        leave(&client).await;
        let (nodes, failed) = changed?;
        match self.output {
            Output::Json => print_json(&json!({ "nodes": nodes }))?,
            Output::Simple => print(nodes.iter().map(line).collect::<String>().as_bytes())?,
        }
        let Some((last, others)) = failed.split_last() else { return Ok(ExitCode::SUCCESS) };
        others.iter().for_each(|failure| errln!("rowlock: {failure}"));
        Err(Failure::new(last.code, &last.message))
    }

    async fn change_all(&self, client: &Client) -> Result<(Vec<Value>, Vec<Failure>), Failure> {
        let nodes = match self.node {
            Some(node) => vec![node],
            None => membership(client).await?.servers.into_keys().collect(),
        };
        let (mut documents, mut failed) = (Vec::new(), Vec::new());
        for node in nodes {
            match operate(client, &self.operation(node)).await {
                Ok(document) => documents.push(document),
                Err(OperateError::Code(code @ (ErrorCode::NoAuth | ErrorCode::ThrottledOp))) => {
                    return Err(OperateError::Code(code).into());
                }
                Err(refusal) => failed.push(refused(node, refusal)),
            }
        }
        Ok((documents, failed))
    }

    fn operation(&self, node: u64) -> String {
        let mut operation = format!("/v1/log-level?node={node}");
        if let Some(filter) = &self.filter {
            // Spaces in a filter have no meaning, and all its characters may stand in a query.
            operation += &format!("&filter={}", filter.replace(' ', ""));
        }
        if let Some(period) = self.period {
            operation += &format!("&for_ms={}", period.as_millis());
        }
        if self.reset {
            operation += "&reset=true";
        }
        operation
    }
}

fn refused(node: u64, refusal: OperateError) -> Failure {
    match refusal {
        OperateError::Code(ErrorCode::NoNode) => {
            Failure::new(REFUSED, format!("node {node} is no member; rowlock member ls shows them"))
        }
        OperateError::Code(ErrorCode::OperationTimeout) => {
            Failure::new(LOST, format!("node {node} did not answer; rowlock member ls shows it"))
        }
        OperateError::Code(ErrorCode::BadArguments) => {
            let problem = format!("node {node} refuses this filter; see its log");
            Failure::new(REFUSED, problem)
        }
        OperateError::Code(ErrorCode::Unimplemented) => Failure::new(
            REFUSED,
            format!("the program that runs node {node} does not let its log be changed"),
        ),
        other => other.into(),
    }
}

/// Formats an answer as `node 2 logs debug, for 9 min 58 s`.
fn line(document: &Value) -> String {
    let filter = document["filter"].as_str().unwrap_or("unknown");
    let rest = document["ends_in_ms"].as_i64().map_or(String::new(), |ms| format!(", for {}", span(ms)));
    format!("node {} logs {filter}{rest}\n", document["node"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_at_least_a_millisecond_and_at_most_a_week() {
        assert_eq!(period("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(period("7d"), Ok(Duration::from_millis(LOG_LEVEL_MAX_MS)));
        for wrong in ["", "0", "0s", "8d", "-1s", "x"] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_filter_is_a_line_with_the_remaining_time() {
        let document = json!({ "node": 2, "filter": "debug", "ends_in_ms": 598_000 });
        assert_eq!(line(&document), "node 2 logs debug, for 9 min 58 s\n");
        let usual = json!({ "node": 2, "filter": "info", "ends_in_ms": null });
        assert_eq!(line(&usual), "node 2 logs info\n");
    }
}
