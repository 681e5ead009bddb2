//! `rowlock member wait`: waits until every member serves.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::time::{self, Instant};

use super::membership;
use super::server::{MemberList, Server};
use super::state::query_all;
use crate::cluster::{Cluster, leave, seconds};
use crate::exit::{Failure, UNAVAILABLE};

const POLL_PAUSE: Duration = Duration::from_millis(500);

/// Wait until every member serves
#[derive(clap::Args)]
pub struct Wait {
    /// Give up after this many seconds
    #[arg(long, value_name = "SEC", value_parser = seconds, default_value = "60")]
    timeout: Duration,
    #[command(flatten)]
    cluster: Cluster,
}

impl Wait {
    /// Exits with 69 if some members do not serve in time.
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let deadline = time::now() + self.timeout;
        loop {
            let missing = match time::timeout_at(deadline, self.missing()).await {
                Ok(Ok(missing)) if missing.is_empty() => return Ok(ExitCode::SUCCESS),
                Ok(Ok(missing)) => missing.join(", "),
                Ok(Err(failure)) if failure.code == UNAVAILABLE => failure.message,
                Ok(Err(failure)) => return Err(failure),
                Err(_) => "no server has answered in time".to_owned(),
            };
            if time::now() + POLL_PAUSE > deadline {
                return Err(Failure::new(UNAVAILABLE, format!("not all members serve: {missing}")));
            }
            time::sleep(POLL_PAUSE).await;
        }
    }

    async fn missing(&self) -> Result<Vec<String>, Failure> {
        let client = self.cluster.connect().await?;
        let found = membership(&client).await;
        leave(&client).await;
        let states = query_all(&self.cluster, &found?).await?;
        let missing = states.iter().filter(|(_, state)| !state.is_up());
        Ok(missing.map(|(id, state)| format!("node {id}: {}", state.text())).collect())
    }
}

/// Waits until a new node has served for `stable` without a gap between polls.
pub(super) async fn until_serving(
    cluster: &Cluster,
    node: u64,
    server: &Server,
    stable: Duration,
    deadline: Instant,
) -> Result<(), Failure> {
    let alone = MemberList { servers: [(node, server.clone())].into(), version: 0 };
    let mut since: Option<Instant> = None;
    loop {
        let states = query_all(cluster, &alone).await?;
        let state = &states[&node];
        since = state.is_up().then(|| since.unwrap_or_else(time::now));
        if since.is_some_and(|since| since.elapsed() >= stable) {
            return Ok(());
        }
        if time::now() >= deadline {
            let why = state.text();
            let problem =
                format!("node {node} does not serve: {why}; it is a learner now; run the command again");
            return Err(Failure::new(UNAVAILABLE, problem));
        }
        time::sleep(POLL_PAUSE).await;
    }
}
