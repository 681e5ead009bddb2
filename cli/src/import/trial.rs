//! Trial of every ACL of the source on the cluster before anything is created: the cluster accepts the ACL,
//! and the import can create and remove znodes below a znode with the ACL. The servers apply their own rules;
//! nothing stays.

use rowlock_client::{Acl, Client, CreateMode, Error, ErrorCode, Transaction};

use super::journal::TRIAL;
use super::plan::Plan;
use super::retry::retry;
use super::trouble::ImportError;
use crate::exit::{Failure, REFUSED};

pub enum TrialResult {
    Accepted,
    Rejected(Failure),
}

pub async fn try_acls(client: &Client, plan: &Plan) -> Result<TrialResult, ImportError> {
    for (acl, used) in &plan.acls {
        let outcome = retry(|| client.commit(transaction(acl, used.has_children))).await;
        let message = match outcome.as_ref().map_err(Error::code) {
            Ok(_) => continue,
            Err(Some(ErrorCode::NoAuth)) => format!(
                "{}: its ACL does not let this import create znodes below it; present the cluster's super credential \
                 (super_digest in cluster.toml) with ROWLOCK_AUTH=digest:super:PASSWORD",
                used.path
            ),
            Err(Some(ErrorCode::InvalidAcl)) => format!("{}: the cluster does not accept its ACL", used.path),
            Err(_) => match outcome {
                Err(e) => return Err(ImportError::Request(TRIAL.to_owned(), e)),
                Ok(_) => continue,
            },
        };
        return Ok(TrialResult::Rejected(Failure::new(REFUSED, message)));
    }
    Ok(TrialResult::Accepted)
}

/// Returns a transaction that leaves nothing in the cluster.
fn transaction(acl: &[Acl], has_children: bool) -> Transaction {
    let child = format!("{TRIAL}/child");
    let mut transaction = Transaction::new().create(TRIAL, None, CreateMode::Persistent, acl.to_vec());
    if has_children {
        transaction =
            transaction.create(&child, None, CreateMode::Persistent, Acl::open()).delete(&child, None);
    }
    transaction.delete(TRIAL, None)
}
