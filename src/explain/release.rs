//! `rowlock release`: takes a lock away from whoever holds it, by a person who knows that this is right.
//!
//! It takes the token of the place that is meant, so that a lock that has gone on to another holder meanwhile stays
//! his.

use std::process::ExitCode;

use rowlock_client::{Claim, Client, FencingToken};
use serde_json::Value;

use super::{ask, items, leave, percent, text};
use crate::cluster::{Cluster, failed};
use crate::exit::{Failure, REFUSED, USAGE};
use crate::moment::{rfc3339, span};
use crate::name::Name;

/// Take a lock away from its holder, or somebody out of its queue
#[derive(clap::Args)]
pub struct Release {
    #[command(flatten)]
    name: Name,
    /// Yes, take it away: whoever has it may be writing at this moment
    #[arg(long)]
    force: bool,
    /// The token of the one who is meant, as `rowlock queue` shows it
    #[arg(long, value_name = "TOKEN")]
    token: Option<i64>,
    #[command(flatten)]
    cluster: Cluster,
}

impl Release {
    /// Exit code 1 if nobody in the queue has the token.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let done = self.release(&client).await;
        leave(&client).await;
        done.map(|()| ExitCode::SUCCESS)
    }

    async fn release(&self, client: &Client) -> Result<(), Failure> {
        let name = self.name.as_said();
        let mutex = self.name.mutex(client);
        let wrong = |e| failed(name, &e);
        let (path, lock) = (mutex.path().map_err(wrong)?, mutex.server_path().map_err(wrong)?);
        let queue = ask(client, name, &format!("/v1/queue?lock={}&limit=1000", percent(lock))).await?;
        let (Some(token), true) = (self.token, self.force) else {
            let what = format!("{name}: {}; to take it away, say --force --token TOKEN", who_holds(&queue));
            return Err(Failure::new(USAGE, what));
        };
        let mut places = items(&queue, "holders").chain(items(&queue, "waiters"));
        let place = places.find(|place| place["token"] == token).and_then(|place| place["path"].as_str());
        let gone = || {
            let what = format!("{name}: nobody in the queue has token {token}; {}", who_holds(&queue));
            Failure::new(REFUSED, what)
        };
        // The report has the server's paths; ours may lie below a chroot.
        let znode = place.and_then(|place| place.strip_prefix(lock)).ok_or_else(gone)?;
        let claim = Claim { path: format!("{path}{znode}"), token: FencingToken(token) };
        match client.force_release(&claim).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(gone()),
            Err(e) => Err(failed(name, &e)),
        }
    }
}

fn who_holds(queue: &Value) -> String {
    let holders: Vec<String> = items(queue, "holders")
        .map(|place| {
            format!(
                "\"{}\" holds it with token {} since {} ({}), session {} from {}",
                text(&place["label"]),
                place["token"],
                rfc3339(place["since_ms"].as_i64().unwrap_or(0)),
                span(place["held_ms"].as_i64().unwrap_or(0)),
                text(&place["session"]),
                text(&place["address"]),
            )
        })
        .collect();
    if holders.is_empty() { "nobody holds it".to_owned() } else { holders.join("; ") }
}
