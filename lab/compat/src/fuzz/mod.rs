//! The command `fuzz`: many connections send broken conversations to one node, while another connection
//! checks that the node still works.
//!
//! Must never target a cluster with data: the command deletes all znodes.

mod attack;
mod corpus;
mod locks;
mod mutate;
mod vigil;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;

use self::vigil::Vigil;

/// Time between two checks of the node.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Number of checks between two lines of progress.
const CHECKS_PER_LINE: u64 = 15;
/// Time for connections to close after the last attack: a missing handshake has its own deadline.
const DISCONNECT_MAX: Duration = Duration::from_secs(60);

/// Sends broken frames to a node of an empty cluster, and checks that the node still works
#[derive(clap::Args, Clone, Debug)]
pub struct Fuzz {
    /// Client address of the node; all data of its cluster is deleted
    #[arg(long, value_name = "HOST:PORT")]
    target: String,
    /// Duration of the attack in minutes
    #[arg(long, value_name = "M", default_value_t = 10.0)]
    minutes: f64,
    /// Seed of the conversations
    #[arg(long, value_name = "K", default_value_t = 1)]
    seed: u64,
    /// Number of connections at a time
    #[arg(long, value_name = "N", default_value_t = 48)]
    connections: u64,
    /// Process id of the node, to check its memory
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Log file of the node, to check for panics
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Counters of all attackers.
#[derive(Default)]
pub struct Tally {
    connections: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    closed_by_server: AtomicU64,
    mutations: AtomicU64,
}

impl Fuzz {
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut vigil = Vigil::begin(&self.target, self.pid, self.log.clone()).await?;
        let tally = Arc::new(Tally::default());
        let attackers = TaskGroup::new(Shutdown::new());
        for number in 0..self.connections {
            let seed = self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number);
            let attack = attack::run(self.target.clone(), seed, tally.clone(), attackers.shutdown().clone());
            attackers.spawn("fuzz-attack", attack);
        }
        let verdict = self.watch(&mut vigil, &tally).await;
        attackers.stop().await;
        tally.print();
        verdict.with_context(|| format!("with --seed {}", self.seed))?;
        vigil.wait_for_disconnects(DISCONNECT_MAX).await?;
        println!("{vigil}");
        println!("PASS");
        Ok(ExitCode::SUCCESS)
    }

    async fn watch(&self, vigil: &mut Vigil, tally: &Tally) -> anyhow::Result<()> {
        let end = time::now() + Duration::from_secs_f64(self.minutes * 60.0);
        let mut checks = 0;
        while time::now() < end {
            vigil.check().await?;
            checks += 1;
            if checks % CHECKS_PER_LINE == 0 {
                tally.print();
                println!("{vigil}");
            }
            time::sleep(CHECK_PERIOD).await;
        }
        if tally.connections.load(Relaxed) == 0 {
            bail!("no attacker could connect");
        }
        Ok(())
    }
}

impl Tally {
    fn print(&self) {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        println!(
            "{} connections ({} closed by the server), {} mutations, {} bytes sent, {} received",
            load(&self.connections),
            load(&self.closed_by_server),
            load(&self.mutations),
            load(&self.bytes_sent),
            load(&self.bytes_received),
        );
    }
}
