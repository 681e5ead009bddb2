//! `rowlock drain` and `rowlock rebalance`: move clients between nodes on an operator's request.
//!
//! Any node takes the request and forwards it to the node named in it.

use std::process::ExitCode;

use rowlock_client::{Client, Error};
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, LOST, REFUSED};
use crate::member::membership;
use crate::print::print;
use crate::superuser;
use crate::znode::{Output, print_json};

/// Move a node's clients and leadership to the other nodes, before maintenance
///
/// Another node takes over its leadership; its clients keep sessions and locks. /readyz reports the node as
/// drained until --undo or a restart. Needs a superuser.
#[derive(clap::Args)]
pub struct Drain {
    /// Id of the node
    node: u64,
    /// Serve clients again instead
    #[arg(long)]
    undo: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Disconnect a share of clients so that they spread over all nodes
///
/// Clients get pending replies first, and keep sessions and locks. Needs a superuser.
#[derive(clap::Args)]
pub struct Rebalance {
    /// Share of the connections, in percent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    percent: u8,
    /// Only this node [default: all members]
    #[arg(long, value_name = "ID")]
    node: Option<u64>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Drain {
    /// Fails with exit code 1 and changes nothing if no other node serves.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let Drain { node, undo, .. } = self;
        let client = self.cluster.connect().await?;
        let answer = operate(&client, &format!("/v1/drain?node={node}&on={}", !undo)).await;
        leave(&client).await;
        let document = answer.map_err(|refusal| match refusal {
            OperateError::Code(ErrorCode::NoNode) => no_member(node),
            OperateError::Code(ErrorCode::NewConfigNoQuorum) => {
                Failure::new(REFUSED, "no other node could serve its clients; nothing was changed")
            }
            other => other.into(),
        })?;
        match self.output {
            Output::Json => print_json(&document)?,
            Output::Simple if undo => print(format!("node {node} serves clients again\n").as_bytes())?,
            Output::Simple => print(format!("node {node} is drained\n").as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Rebalance {
    /// Fails with exit code 75 and names the node if a node cannot be reached.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let done = self.rebalance(&client).await;
        leave(&client).await;
        let nodes = done?;
        match self.output {
            Output::Json => print_json(&json!({ "nodes": nodes }))?,
            Output::Simple => {
                let line = |node: &Value| {
                    format!("node {}: {} of {} closed\n", node["node"], node["closed"], node["connections"])
                };
                print(nodes.iter().map(line).collect::<String>().as_bytes())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn rebalance(&self, client: &Client) -> Result<Vec<Value>, Failure> {
        let nodes = match self.node {
            Some(node) => vec![node],
            None => membership(client).await?.servers.into_keys().collect(),
        };
        let mut documents = Vec::new();
        for node in nodes {
            let operation = format!("/v1/rebalance?node={node}&percent={}", self.percent);
            let document = operate(client, &operation).await.map_err(|refusal| match refusal {
                OperateError::Code(ErrorCode::NoNode) => no_member(node),
                OperateError::Code(ErrorCode::OperationTimeout) => {
                    Failure::new(LOST, format!("node {node} did not answer; rowlock member ls shows it"))
                }
                other => other.into(),
            })?;
            documents.push(document);
        }
        Ok(documents)
    }
}

fn no_member(node: u64) -> Failure {
    Failure::new(REFUSED, format!("node {node} is no member; rowlock member ls shows them"))
}

/// Reason for a refused operation, or for an operation with an unknown outcome.
pub enum OperateError {
    Code(ErrorCode),
    Failure(Failure),
}

/// Sends an operation `path?query` to the cluster; returns the JSON document in the reply.
pub async fn operate(client: &Client, operation: &str) -> Result<Value, OperateError> {
    let text = client.operate(operation).await.map_err(|error| match error {
        Error::Rejected(code) => OperateError::Code(code),
        error => OperateError::Failure(failed("operation", &error)),
    })?;
    serde_json::from_str(&text).map_err(|e| {
        OperateError::Failure(Failure::new(LOST, format!("the node's answer cannot be read: {e}")))
    })
}

impl From<OperateError> for Failure {
    fn from(refusal: OperateError) -> Failure {
        let code = match refusal {
            OperateError::Failure(failure) => return failure,
            OperateError::Code(code) => code,
        };
        match code {
            ErrorCode::NoAuth => Failure::new(REFUSED, superuser::REMEDY),
            ErrorCode::ThrottledOp => {
                Failure::new(LOST, "the node does other things for operators just now; try again")
            }
            ErrorCode::OperationTimeout => {
                Failure::new(LOST, "the node did not answer in time; it may have been done")
            }
            code => failed("operation", &Error::Rejected(code)),
        }
    }
}
