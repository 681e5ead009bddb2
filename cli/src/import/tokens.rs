//! Fencing tokens at an import. Those of this cluster follow its own count, and a resource that has seen
//! larger ones of the source would refuse them.

use rowlock_client::Client;
use rowlock_proto::ErrorCode;
use serde_json::Value;

use super::plan::Plan;
use crate::exit::{Failure, REFUSED};
use crate::operate::{OperateError, operate};

/// Says what becomes of tokens: one line.
pub fn line(floor: Option<i64>, plan: &Plan) -> String {
    match floor {
        Some(floor) => {
            format!("tokens:      larger than {floor} from now on, for each place that is taken\n")
        }
        None => format!(
            "tokens:      start again; resources that keep tokens of the source refuse smaller ones: say --token-floor \
             with the largest that one may have seen (the znodes show changes up to {})\n",
            plan.last_zxid
        ),
    }
}

/// Raises the tokens of the cluster. What remains raised when an import fails does no harm.
///
/// # Errors
/// The cluster did not do it, or it is not known.
pub async fn raise(client: &Client, floor: i64) -> Result<Value, Failure> {
    operate(client, &format!("/v1/raise-tokens?above={floor}")).await.map_err(|error| match error {
        OperateError::Code(ErrorCode::NoAuth) => {
            let what = "--token-floor needs a superuser: set ROWLOCK_AUTH; nothing was imported";
            Failure::new(REFUSED, what)
        }
        other => other.into(),
    })
}

/// Says which places keep their smaller tokens, if there are any.
pub fn note_of_places(document: &Value) -> Option<String> {
    let places = document["places"].as_u64().filter(|places| *places > 0)?;
    Some(format!(
        "{places} places in this cluster's queues were taken before the floor and keep their tokens; take them again for \
         larger ones"
    ))
}
