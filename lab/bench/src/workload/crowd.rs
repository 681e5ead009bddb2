//! Clients of a storm, in separate programs: one program may not open enough files. A program prints a line
//! when all its sessions are up, reads a line when the leader is dead, and prints as its last line the return
//! of its sessions.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use rowlock_client::{Client, Error, PreferLeader};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::phase::gather;
use crate::drivers::TTL;

/// Sessions that a program opens or closes at once.
const AT_ONCE: usize = 64;
/// Time after which the cluster counts as lost.
const WAIT_MAX: Duration = Duration::from_secs(60);
const UP: &str = "up";

/// Options of one program, which `storm` starts.
#[derive(Args, Clone, Debug)]
#[command(hide = true)]
pub struct Options {
    /// Client addresses of all servers
    #[arg(long)]
    endpoints: String,
    /// Number of sessions to open
    #[arg(long)]
    sessions: usize,
    /// Connect to the leader, before and after
    #[arg(long)]
    at_leader: bool,
}

/// Return of a program's sessions.
#[derive(Serialize, Deserialize)]
pub struct Returns {
    /// Time from the kill to the first answer, of each session, in microseconds.
    pub served_us: Vec<u64>,
    /// Sessions that had ended meanwhile.
    pub lost: usize,
}

/// Opens the sessions, and waits for the kill and the recovery.
///
/// # Errors
/// A session does not come up, or is not served within a minute of the kill.
pub async fn run(options: Options) -> Result<()> {
    let (doors, barrier) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Barrier::new(options.sessions + 1)));
    let (killed, is_killed) = tokio::sync::watch::channel(None);
    let mut clients = JoinSet::new();
    for _ in 0..options.sessions {
        let (options, doors, barrier) = (options.clone(), doors.clone(), barrier.clone());
        let mut is_killed = is_killed.clone();
        clients.spawn(async move {
            let door = doors.acquire().await?;
            let client = connect(&options).await?;
            drop(door);
            barrier.wait().await;
            let at: Instant = is_killed.wait_for(Option::is_some).await?.expect("waited for");
            let served = come_back(&client, at).await?;
            let _door = doors.acquire().await?;
            // A lost session cannot be closed.
            let _ = client.close().await;
            Ok(served)
        });
    }
    tokio::select! {
        _ = barrier.wait() => println!("{UP}"),
        Some(ended) = clients.join_next() => {
            ended.map_err(|panic| anyhow!("a client panicked: {panic}"))??;
        }
    }
    BufReader::new(tokio::io::stdin()).lines().next_line().await?.context("told nothing of the kill")?;
    killed.send_replace(Some(Instant::now()));
    let served: Vec<Option<Duration>> = gather(clients).await?;
    let served_us: Vec<u64> =
        served.iter().flatten().map(|it| u64::try_from(it.as_micros()).unwrap_or(u64::MAX)).collect();
    println!("{}", serde_json::to_string(&Returns { lost: served.len() - served_us.len(), served_us })?);
    Ok(())
}

async fn connect(options: &Options) -> Result<Client> {
    let prefer = if options.at_leader { PreferLeader::Always } else { PreferLeader::Never };
    let config = Client::builder().endpoints(&options.endpoints).session_timeout(TTL).prefer_leader(prefer);
    let client = config.connect().await.context("connecting")?;
    client.exists("/").await.context("the first call")?;
    Ok(client)
}

/// Waits until the session is served. On a broken connection, the answer comes after the client has attached
/// the session to another node. The client gives up a request after several broken connections, and this
/// function repeats the request. `None`: the session has ended.
async fn come_back(client: &Client, killed: Instant) -> Result<Option<Duration>> {
    let served = async {
        loop {
            // A sync needs a leader; a node could answer a read without one.
            match client.sync("/").await {
                Ok(()) => return Ok(Some(killed.elapsed())),
                Err(Error::SessionExpired) => return Ok(None),
                Err(Error::ConnectionLoss) => {}
                Err(other) => return Err(other).context("after the kill"),
            }
        }
    };
    timeout(WAIT_MAX, served).await.with_context(|| format!("a client is not served within {WAIT_MAX:?}"))?
}

/// Program with its sessions, seen from outside. Killed when dropped.
pub struct Crowd {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Crowd {
    /// Starts the program at a lower priority than the nodes: clients would have other processors.
    ///
    /// # Errors
    /// This program cannot be started once more.
    pub fn start(addresses: &[String], sessions: usize, at_leader: bool) -> Result<Crowd> {
        let mut command = Command::new("nice");
        command
            .arg("-n15")
            .arg(std::env::current_exe()?)
            .arg("crowd")
            .arg("--endpoints")
            .arg(addresses.join(","));
        command.arg("--sessions").arg(sessions.to_string()).kill_on_drop(true);
        if at_leader {
            command.arg("--at-leader");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Ok(Crowd { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// Waits until all sessions of the program are up.
    ///
    /// # Errors
    /// The program ended before.
    pub async fn is_up(&mut self) -> Result<()> {
        self.next_line().await.map(drop)
    }

    /// Reports the leader's death to the program, which starts its clock.
    ///
    /// # Errors
    /// The program has ended.
    pub async fn report_kill(&mut self) -> Result<()> {
        Ok(self.stdin.write_all(b"killed\n").await?)
    }

    /// Waits for the return of all sessions, and for the program's end.
    ///
    /// # Errors
    /// The program failed.
    pub async fn returns(mut self) -> Result<Returns> {
        let returns = serde_json::from_str(&self.next_line().await?)?;
        self.child.wait().await?;
        Ok(returns)
    }

    async fn next_line(&mut self) -> Result<String> {
        self.lines.next_line().await?.context("a program of clients failed; what it said stands above")
    }
}
