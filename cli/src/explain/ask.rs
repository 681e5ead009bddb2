//! `rowlock ask` asks the holders of a lock to release it; `rowlock release` takes the lock away from a
//! holder, or releases the lock of a lease file (`lock::lease`).
//!
//! A forced release requires the token of the hold: a lock that has passed to another holder stays with that
//! holder.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Claim, Client, Error, FencingToken};
use rowlock_proto::lock::ASK_WITHIN_MS;
use rowlock_proto::{ErrorCode, Right};
use serde_json::Value;

use super::queue::report;
use super::{items, text};
use crate::acl::{self, LockRef};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, REFUSED, USAGE};
use crate::lock::lease;
use crate::moment::{self, rfc3339, span};
use crate::name::Name;
use crate::print::outln;

/// Ask the holder of a lock to give it back
#[derive(clap::Args)]
pub struct AskHolders {
    #[command(flatten)]
    name: Name,
    /// Reason shown to the holder (up to 256 bytes)
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Take the lock away unless released within this time (1s to 1h); needs the right to force a release
    #[arg(long, value_name = "TIME", value_parser = within)]
    within: Option<Duration>,
    #[command(flatten)]
    cluster: Cluster,
}

impl AskHolders {
    /// Exits with 0 even if no client holds the lock.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let count = self.ask(&client).await;
        leave(&client).await;
        let name = self.name.as_typed();
        match count? {
            0 => outln!("{name}: no client holds it"),
            1 => outln!("{name}: asked its holder"),
            count => outln!("{name}: asked its {count} holders"),
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn ask(&self, client: &Client) -> Result<u32, Failure> {
        let mutex = self.name.mutex(client);
        mutex.validate().map_err(|e| failed(self.name.as_typed(), &e))?;
        let right = if self.within.is_some() { Right::Force } else { Right::Ask };
        match client.ask_holders(mutex.path(), &self.reason, self.within).await {
            Ok(count) => Ok(count),
            Err(e) => {
                let lock = LockRef { name: self.name.as_typed(), path: &mutex.server_path() };
                Err(acl::refused(client, lock, right, &e).await)
            }
        }
    }
}

fn within(text: &str) -> Result<Duration, String> {
    let time = moment::duration(text)?;
    match u32::try_from(time.as_millis()) {
        Ok(ms) if ASK_WITHIN_MS.contains(&ms) => Ok(time),
        _ => Err("must be 1s to 1h".to_owned()),
    }
}

/// Release the lock of a lease file; or by force that of another client
///
/// With --lease, releases what `rowlock acquire` took. With NAME, takes a lock away from its holder, or
/// removes a waiter from its queue.
#[derive(clap::Args)]
#[command(override_usage = "rowlock release [OPTIONS] --lease <FILE>\n       \
                            rowlock release [OPTIONS] --force --token <TOKEN> <NAME>")]
pub struct Release {
    /// Lock name, e.g. ci/deploy, or the path of its znode, e.g. /locks/ci/deploy
    #[arg(required_unless_present = "lease")]
    name: Option<String>,
    /// Treat NAME as a path
    #[arg(long)]
    path: bool,
    /// Lease file of `rowlock acquire`; its cluster is used unless an option names another one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "path", "force", "token"])]
    lease: Option<PathBuf>,
    /// Release it even though the holder may still be writing
    #[arg(long)]
    force: bool,
    /// Fencing token of the holder or waiter, as `rowlock queue` shows it; 0 ends a lock-delay or a
    /// minimum hold
    #[arg(long, value_name = "TOKEN")]
    token: Option<i64>,
    #[command(flatten)]
    cluster: Cluster,
}

impl Release {
    /// Exits with 1 if no position in the queue has the token.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        if let Some(file) = &self.lease {
            return lease::release(file, &self.cluster).await;
        }
        let name = Name::new(self.name.clone().unwrap_or_default(), self.path);
        let client = self.cluster.connect().await?;
        let done = self.release(&client, &name).await;
        leave(&client).await;
        done.map(|()| ExitCode::SUCCESS)
    }

    async fn release(&self, client: &Client, name: &Name) -> Result<(), Failure> {
        let mutex = name.mutex(client);
        let name = name.as_typed();
        mutex.validate().map_err(|e| failed(name, &e))?;
        let (path, lock) = (mutex.path(), mutex.server_path());
        let queue = async |selection: &str| report(client, name, &lock, selection).await;
        let (Some(token), true) = (self.token, self.force) else {
            let found = queue("limit=100").await?;
            let holders = describe_holders(&found);
            return Err(match (items(&found, "holders").next(), found["delayed_until_ms"].as_i64()) {
                (Some(_), _) => {
                    let remedy = "to take it away, use --force --token TOKEN";
                    Failure::new(USAGE, format!("{name}: {holders}; {remedy}"))
                }
                (None, Some(until)) => {
                    let delay = format!("a lock-delay or minimum hold lasts until {}", rfc3339(until));
                    let remedy = "to end it, use --force --token 0";
                    Failure::new(USAGE, format!("{name}: {holders}, and {delay}; {remedy}"))
                }
                (None, None) => Failure::new(REFUSED, format!("{name}: {holders}; nothing to release")),
            });
        };
        if token == 0 {
            let delay = Claim { path: path.into(), token: FencingToken(0) };
            return match client.force_release(&delay).await {
                Ok(true) => Ok(()),
                Err(e) => Err(acl::refused(client, LockRef { name, path: &lock }, Right::Force, &e).await),
                Ok(false) => {
                    Err(Failure::new(REFUSED, format!("{name}: no lock-delay or minimum hold lasts")))
                }
            };
        }
        let wanted = token.to_string();
        let found = queue(&format!("token={wanted}")).await?;
        let mut positions = items(&found, "holders").chain(items(&found, "waiters"));
        let path_found = positions
            .find(|position| position["token"] == *wanted)
            .and_then(|position| position["path"].as_str());
        // The report has the server's paths; the client's paths may be relative to a chroot.
        if let Some(znode) = path_found.and_then(|found| found.strip_prefix(lock.as_str())) {
            let claim = Claim { path: format!("{path}{znode}").into(), token: FencingToken(token) };
            match client.force_release(&claim).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => {
                    return Err(acl::refused(client, LockRef { name, path: &lock }, Right::Force, &e).await);
                }
            }
            // The znode does not hold the lock: the znode waits or is gone. Names of znodes are never reused.
            match client.delete(&claim.path, None).await {
                Ok(()) => return Ok(()),
                Err(Error::Rejected(ErrorCode::NoNode)) => {}
                Err(e) => {
                    return Err(acl::refused(client, LockRef { name, path: &lock }, Right::Force, &e).await);
                }
            }
        }
        let holders = describe_holders(&queue("limit=100").await?);
        Err(Failure::new(REFUSED, format!("{name}: no holder or waiter has token {token}; {holders}")))
    }
}

fn describe_holders(queue: &Value) -> String {
    let holders: Vec<String> = items(queue, "holders")
        .map(|position| match position["token"].is_null() {
            true => "a client that you may not see holds it".to_owned(),
            false => format!(
                "\"{}\" holds it with token {} since {} ({}), session {} from {}",
                text(&position["label"]),
                text(&position["token"]),
                rfc3339(position["since_ms"].as_i64().unwrap_or(0)),
                span(position["held_ms"].as_i64().unwrap_or(0)),
                text(&position["session"]),
                text(&position["address"]),
            ),
        })
        .collect();
    if holders.is_empty() { "no client holds it".to_owned() } else { holders.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_a_holder_is_a_second_to_an_hour() {
        assert_eq!(within("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(within("1h"), Ok(Duration::from_secs(3_600)));
        for wrong in ["", "0.9", "0.9s", "61m", "1d", "-1s"] {
            assert!(within(wrong).is_err(), "{wrong}");
        }
    }
}
