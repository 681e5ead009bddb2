//! `rowlock member transfer-leader`: makes another voter the leader.

use std::process::ExitCode;

use rowlock_proto::ErrorCode;

use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, REFUSED};
use crate::operate::{OperateError, operate};
use crate::print::print;
use crate::znode::{Output, print_json};

/// Transfer leadership to a voter [default: the one with the longest log]
#[derive(clap::Args)]
pub struct TransferLeader {
    /// Id of the node
    node: Option<u64>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl TransferLeader {
    /// Exits with 1 if the node is no voter or is not alive, with 75 if no voter has taken over.
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let operation = match self.node {
            Some(node) => format!("/v1/hand-over?to={node}"),
            None => "/v1/hand-over".to_owned(),
        };
        let answer = operate(&client, &operation).await;
        leave(&client).await;
        let document = answer.map_err(|refusal| match (refusal, self.node) {
            (OperateError::Code(ErrorCode::BadArguments), Some(node)) => {
                Failure::new(REFUSED, format!("node {node} is no voter; rowlock member ls shows them"))
            }
            (OperateError::Code(ErrorCode::NewConfigNoQuorum), Some(node)) => {
                Failure::new(REFUSED, format!("node {node} does not answer the leader; nothing was changed"))
            }
            (OperateError::Code(ErrorCode::NewConfigNoQuorum), None) => {
                Failure::new(REFUSED, "no other voter answers the leader; nothing was changed")
            }
            (refusal, _) => refusal.into(),
        })?;
        match self.output {
            Output::Json => print_json(&document)?,
            Output::Simple => print(format!("node {} leads\n", document["leader"]).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
