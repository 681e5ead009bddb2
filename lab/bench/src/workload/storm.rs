//! Return of all clients at once after a kill of the leader, which had most sessions: the time until each
//! session is served again, and the number of lost sessions.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::timeout;

use super::crowd::Crowd;
use crate::latency::Latency;
use crate::limit::open_files;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Longest time for all sessions to reach their servers before the leader dies.
const GATHERED_WITHIN: Duration = Duration::from_secs(120);
const PER_PROGRAM: usize = 5000;

/// Runs one trial, on servers of its own. As many sessions as a server may have open are at the leader, the
/// others at all servers. The trial starts the killed server again before the return.
///
/// # Errors
/// A session is lost, no server leads, or the server does not come back.
pub async fn run(servers: &mut Servers, sessions: usize, round: u32) -> Result<Trial> {
    let leader = servers.leader().await?;
    // The next leader gets half of the other sessions as well.
    let at_leader = sessions.min(usize::try_from(open_files() / 10 * 7)?);
    let mut crowds = Vec::new();
    for (all, prefers) in [(at_leader, true), (sessions - at_leader, false)] {
        for first in (0..all).step_by(PER_PROGRAM) {
            crowds.push(Crowd::start(&servers.addresses, PER_PROGRAM.min(all - first), prefers)?);
        }
    }
    let gathered = async {
        for crowd in &mut crowds {
            crowd.is_up().await?;
        }
        anyhow::Ok(())
    };
    timeout(GATHERED_WITHIN, gathered).await.context("not all sessions came up")??;
    servers.processes[leader].kill().await?;
    for crowd in &mut crowds {
        crowd.report_kill().await?;
    }
    let (mut served, mut lost) = (Latency::default(), 0);
    for crowd in crowds {
        let returns = crowd.returns().await?;
        returns.served_us.iter().for_each(|us| served.record(Duration::from_micros(*us)));
        lost += returns.lost;
    }
    servers.restart(leader).await?;
    ensure!(lost == 0, "{lost} of {sessions} sessions were lost");
    ensure!(served.count() == sessions as u64, "{} of {sessions} sessions were served", served.count());
    Ok(Trial::new(System::Rowlock, "storm", sessions as u64, round)
        .with("at_leader", at_leader as f64)
        .with("kill_to_served_p50_ms", served.ms(0.5))
        .with("kill_to_served_p99_ms", served.ms(0.99))
        .with("kill_to_served_max_ms", served.ms(1.0)))
}
