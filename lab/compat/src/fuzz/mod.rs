//! The command `fuzz`: many connections send broken conversations to one node, while another one checks that
//! the node still works.
//!
//! Must never be pointed at a cluster that holds data: it deletes what it creates and everything else.

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

/// Between two looks at the node.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Between two lines of progress, in looks.
const LOOKS_PER_LINE: u64 = 15;
/// How long connections may take to go away after the last attack: a handshake that never comes has its own
/// deadline.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// Sends broken frames to a node of a cluster that holds nothing, and looks whether it minds
#[derive(clap::Args, Clone, Debug)]
pub struct Fuzz {
    /// The node's client address; everything in its cluster is deleted
    #[arg(long, value_name = "HOST:PORT")]
    target: String,
    /// Minutes until it stops
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

/// What was done so far.
#[derive(Default)]
pub struct Tally {
    connections: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    closed_by_server: AtomicU64,
    mutations: AtomicU64,
}

impl Fuzz {
    /// Carries the command out.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut vigil = Vigil::begin(&self.target, self.pid, self.log.clone()).await?;
        let tally = Arc::new(Tally::default());
        let attackers = TaskGroup::new(Shutdown::new());
        for number in 0..self.connections {
            let seed = self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number);
            let attack = attack::run(self.target.clone(), seed, tally.clone(), attackers.shutdown().clone());
            attackers.spawn("fuzz-attack", attack);
        }
        let verdict = self.look_on(&mut vigil, &tally).await;
        attackers.stop().await;
        tally.tell();
        verdict.with_context(|| format!("with --seed {}", self.seed))?;
        vigil.settle(SETTLE_MAX).await?;
        println!("{vigil}");
        println!("PASS");
        Ok(ExitCode::SUCCESS)
    }

    async fn look_on(&self, vigil: &mut Vigil, tally: &Tally) -> anyhow::Result<()> {
        let end = time::now() + Duration::from_secs_f64(self.minutes * 60.0);
        let mut looks = 0;
        while time::now() < end {
            vigil.look().await?;
            looks += 1;
            if looks % LOOKS_PER_LINE == 0 {
                tally.tell();
                println!("{vigil}");
            }
            time::sleep(LOOK_PERIOD).await;
        }
        if tally.connections.load(Relaxed) == 0 {
            bail!("no connection came about");
        }
        Ok(())
    }
}

impl Tally {
    fn tell(&self) {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        println!(
            "{} connections ({} closed by the server), {} mutations, {} bytes sent, {} received",
            of(&self.connections),
            of(&self.closed_by_server),
            of(&self.mutations),
            of(&self.bytes_sent),
            of(&self.bytes_received),
        );
    }
}
