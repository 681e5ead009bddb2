//! `rowlock ask`: asks the holders of a lock to release it.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::Client;
use rowlock_proto::Right;
use rowlock_proto::lock::ASK_WITHIN_MS;

use crate::acl::{self, LockRef};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::Failure;
use crate::moment;
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
    let time = moment::duration(text).ok_or("use a number and s, m or h, e.g. 30s")?;
    match u32::try_from(time.as_millis()) {
        Ok(ms) if ASK_WITHIN_MS.contains(&ms) => Ok(time),
        _ => Err("must be 1s to 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_a_holder_is_a_second_to_an_hour() {
        assert_eq!(within("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(within("1h"), Ok(Duration::from_secs(3_600)));
        for wrong in ["", "30", "0.9s", "61m", "1d", "-1s"] {
            assert!(within(wrong).is_err(), "{wrong}");
        }
    }
}
