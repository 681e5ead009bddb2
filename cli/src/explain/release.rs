//! `rowlock release`: takes a lock away from its holder, by order of a person who knows that this is right.
//!
//! It requires the token of the hold that is meant. So a lock that has passed to another holder meanwhile
//! stays with that holder.

use std::process::ExitCode;

use rowlock_client::{Claim, Client, Error, FencingToken};
use rowlock_proto::{ErrorCode, Right};
use serde_json::Value;

use super::queue::report;
use super::{items, text};
use crate::acl;
use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, REFUSED, USAGE};
use crate::moment::{rfc3339, span};
use crate::name::Name;

/// Force the release of a lock, or remove a waiter from its queue
#[derive(clap::Args)]
pub struct Release {
    #[command(flatten)]
    name: Name,
    /// Release it even though the holder may still be writing
    #[arg(long)]
    force: bool,
    /// Fencing token of the holder or waiter, as `rowlock queue` shows it; 0 ends a lock-delay
    #[arg(long, value_name = "TOKEN")]
    token: Option<i64>,
    #[command(flatten)]
    cluster: Cluster,
}

impl Release {
    /// Exit code 1 if no place in the queue has the token.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let done = self.release(&client).await;
        leave(&client).await;
        done.map(|()| ExitCode::SUCCESS)
    }

    async fn release(&self, client: &Client) -> Result<(), Failure> {
        let name = self.name.as_said();
        let mutex = self.name.mutex(client);
        mutex.validate().map_err(|e| failed(name, &e))?;
        let (path, lock) = (mutex.path(), mutex.server_path());
        let queue = async |which: &str| report(client, name, &lock, which).await;
        let (Some(token), true) = (self.token, self.force) else {
            let who = who_holds(&queue("limit=100").await?);
            return Err(Failure::new(
                USAGE,
                format!("{name}: {who}; to take it away, say --force --token TOKEN"),
            ));
        };
        if token == 0 {
            let delay = Claim { path: path.into(), token: FencingToken(0) };
            return match client.force_release(&delay).await {
                Ok(true) => Ok(()),
                Err(e) => Err(acl::refused(client, (name, &lock), Right::Force, &e).await),
                Ok(false) => Err(Failure::new(REFUSED, format!("{name}: there is no lock-delay"))),
            };
        }
        let found = queue(&format!("token={token}")).await?;
        let mut places = items(&found, "holders").chain(items(&found, "waiters"));
        let place = places.find(|place| place["token"] == token).and_then(|place| place["path"].as_str());
        // The report has the server's paths; ours may lie below a chroot.
        if let Some(znode) = place.and_then(|place| place.strip_prefix(lock.as_str())) {
            let claim = Claim { path: format!("{path}{znode}").into(), token: FencingToken(token) };
            match client.force_release(&claim).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => return Err(acl::refused(client, (name, &lock), Right::Force, &e).await),
            }
            // It does not hold: it waits, or is gone. No other place ever has the name of this one.
            match client.delete(&claim.path, None).await {
                Ok(()) => return Ok(()),
                Err(Error::Rejected(ErrorCode::NoNode)) => {}
                Err(e) => return Err(acl::refused(client, (name, &lock), Right::Force, &e).await),
            }
        }
        let who = who_holds(&queue("limit=100").await?);
        Err(Failure::new(REFUSED, format!("{name}: no holder or waiter has token {token}; {who}")))
    }
}

fn who_holds(queue: &Value) -> String {
    let holders: Vec<String> = items(queue, "holders")
        .map(|place| match place["token"].is_null() {
            true => "a client that you may not see holds it".to_owned(),
            false => format!(
                "\"{}\" holds it with token {} since {} ({}), session {} from {}",
                text(&place["label"]),
                place["token"],
                rfc3339(place["since_ms"].as_i64().unwrap_or(0)),
                span(place["held_ms"].as_i64().unwrap_or(0)),
                text(&place["session"]),
                text(&place["address"]),
            ),
        })
        .collect();
    if holders.is_empty() { "no client holds it".to_owned() } else { holders.join("; ") }
}
