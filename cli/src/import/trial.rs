//! Trial of every ACL of the source on the cluster before anything is created: the cluster accepts the ACL,
//! and the import can create and remove znodes below a znode with the ACL. The servers apply their own rules;
//! each transaction removes what it creates.

use rowlock_client::{Acl, Client, CreateMode, Error, ErrorCode, Transaction};
use rowlock_env::rng;

use super::plan::Plan;
use super::trouble::{ImportError, retry};

pub async fn try_acls(client: &Client, plan: &Plan) -> Result<(), ImportError> {
    let trial = format!("/zookeeper/rowlock-import-{:016x}", rng::u64());
    for (acl, used) in &plan.acls {
        let outcome = retry(|| client.commit(transaction(&trial, acl, used.has_children))).await;
        let Err(e) = outcome else { continue };
        return Err(match &e {
            // The create of the znode with the ACL is the first operation.
            Error::TransactionRejected { index: 1.., code: ErrorCode::NoAuth } => ImportError::Acl(format!(
                "{}: its ACL does not let this import create znodes below it; present the cluster's super credential \
                 (super_digest in cluster.toml) with ROWLOCK_AUTH=digest:super:PASSWORD",
                used.path
            )),
            e if e.code() == Some(ErrorCode::InvalidAcl) => {
                ImportError::Acl(format!("{}: the cluster does not accept its ACL", used.path))
            }
            _ => ImportError::Request(trial, e),
        });
    }
    Ok(())
}

/// Returns a transaction that leaves nothing in the cluster.
fn transaction(trial: &str, acl: &[Acl], has_children: bool) -> Transaction {
    let child = format!("{trial}/child");
    let mut transaction = Transaction::new().create(trial, None, CreateMode::Persistent, acl.to_vec());
    if has_children {
        transaction =
            transaction.create(&child, None, CreateMode::Persistent, Acl::open()).delete(&child, None);
    }
    transaction.delete(trial, None)
}
