//! Fencing tokens after an import. Tokens of this cluster follow its own count, and a resource that has seen
//! larger tokens of the source would refuse them.

use rowlock_client::Client;
use rowlock_proto::ErrorCode;
use serde_json::Value;

use super::plan::Plan;
use crate::exit::{Failure, REFUSED};
use crate::operate::{OperateError, operate};

/// Describes the effect on tokens in one line.
pub fn line(floor: Option<i64>, plan: &Plan) -> String {
    match floor {
        Some(floor) => {
            format!("tokens:      larger than {floor} from now on, for each place that is taken\n")
        }
        None => format!(
            "tokens:      start again; resources that keep tokens of the source refuse smaller ones: use --token-floor \
             with the largest that one may have seen (the znodes show changes up to {})\n",
            plan.last_zxid
        ),
    }
}

/// Raises the tokens of the cluster. If the import fails, the raised tokens do no harm.
///
/// # Errors
/// The cluster refused, or the outcome is unknown.
pub async fn raise(client: &Client, floor: i64) -> Result<Value, Failure> {
    operate(client, &format!("/v1/raise-tokens?above={floor}")).await.map_err(|error| match error {
        OperateError::Code(ErrorCode::NoAuth) => {
            let problem = "--token-floor needs a superuser: set ROWLOCK_AUTH; nothing was imported";
            Failure::new(REFUSED, problem)
        }
        other => other.into(),
    })
}

/// Describes queue positions that keep smaller tokens, if any.
pub fn kept_tokens(document: &Value) -> Option<String> {
    let positions = document["places"].as_u64().filter(|positions| *positions > 0)?;
    Some(format!(
        "{positions} places in this cluster's queues were taken before the floor and keep their tokens; take them again for \
         larger ones"
    ))
}
