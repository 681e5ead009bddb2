//! Demonstration: ten clients queue for one lock, the leader is killed half-way, a verdict on the
//! observations of the clients follows.

use std::sync::Arc;
use std::time::Duration;

use rowlock_client::{Client, Error, Guard};
use rowlock_env::task::{self, Task};
use rowlock_env::time::{self, Instant};
use tokio::sync::mpsc;

use super::running::Running;
use crate::exit::{Failure, SOFTWARE, UNAVAILABLE};
use crate::print::{count, outln};

const CLIENTS: usize = 10;
/// Number of grants before the leader is killed.
const HALF_WAY: usize = CLIENTS / 2;
/// Time of each client under the lock.
const WORK: Duration = Duration::from_millis(200);
/// Deadline of each step: connecting, queueing, a failover.
const STEP_DEADLINE: Duration = Duration::from_secs(30);
const LOCK: &str = "demo";
const QUEUE: &str = "/locks/demo";

/// Report of a client about its turn.
enum TurnReport {
    Granted { position: usize, token: i64, waited: Duration },
    Done(Grant),
    Failed { position: usize, error: String },
}

/// Runs the demonstration on the serving cluster. Returns true if every promise was kept.
pub async fn run(cluster: &mut Running) -> Result<bool, Failure> {
    let paint = cluster.paint;
    outln!(
        "{}",
        paint.bold(&format!("{CLIENTS} clients queue for one lock, each {} ms under it", WORK.as_millis()))
    );
    let started = time::now();
    let (sender, mut receiver) = mpsc::channel(4 * CLIENTS);
    let clients = queue_up(cluster, started, &sender).await?;
    drop(sender);
    outln!("  {:<7} {:<9} {:<9} waited", "grant", "position", "token");
    let mut grants: Vec<Grant> = Vec::new();
    let mut granted = 0;
    while let Some(report) = next_report(&mut receiver).await? {
        match report {
            TurnReport::Granted { position, token, waited } => {
                granted += 1;
                outln!("  {granted:<7} {position:<9} {token:<9} {:.2} s", waited.as_secs_f64());
                if granted == HALF_WAY && cluster.config.nodes.len() > 1 {
                    kill_leader(cluster).await?;
                }
            }
            TurnReport::Done(grant) => grants.push(grant),
            TurnReport::Failed { position, error } => {
                outln!("  {} position {position}: {error}", paint.bad("failed:"));
            }
        }
    }
    for client in clients {
        // The session ends by itself if the close cannot be sent.
        let _ = client.close().await;
    }
    grants.sort_by_key(|grant| grant.granted);
    let findings = check(&grants, CLIENTS);
    print_verdict(cluster, &findings);
    restore(cluster).await?;
    Ok(findings.iter().all(|finding| finding.kept))
}

/// Lets the clients enter the queue one after another, in a known order.
async fn queue_up(
    cluster: &Running,
    started: Instant,
    sender: &mpsc::Sender<TurnReport>,
) -> Result<Vec<Client>, Failure> {
    let config = cluster.client().session_timeout(Duration::from_secs(10));
    let mut clients = Vec::with_capacity(CLIENTS);
    for position in 1..=CLIENTS {
        let config = config.clone().connect_timeout(STEP_DEADLINE).label(format!("client {position}"));
        clients.push(config.connect().await.map_err(|e| Failure::new(UNAVAILABLE, e))?);
    }
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    for (position, client) in (1..).zip(&clients) {
        // Detached: the task ends with its turn, and reports the end.
        drop(take_turn(client.clone(), position, started, go.clone(), sender.clone()));
        wait_for_queue(client, position).await?;
    }
    go.add_permits(CLIENTS);
    Ok(clients)
}

async fn wait_for_queue(client: &Client, length: usize) -> Result<(), Failure> {
    let deadline = time::now() + STEP_DEADLINE;
    loop {
        // Reads are local: sync to see the writes of all clients.
        let seen = match client.sync(QUEUE).await {
            Ok(()) => client.get_children(QUEUE).await,
            Err(e) => Err(e),
        };
        match seen {
            Ok(children) if children.names.len() >= length => return Ok(()),
            Ok(_) | Err(Error::Rejected(_) | Error::ConnectionLoss) => {}
            Err(e) => return Err(Failure::new(UNAVAILABLE, format!("the queue cannot be read: {e}"))),
        }
        if time::now() >= deadline {
            return Err(Failure::new(SOFTWARE, format!("client {length} does not appear in the queue")));
        }
        time::sleep(Duration::from_millis(5)).await;
    }
}

fn take_turn(
    client: Client,
    position: usize,
    started: Instant,
    go: Arc<tokio::sync::Semaphore>,
    sender: mpsc::Sender<TurnReport>,
) -> Task<()> {
    task::spawn("demo-client", async move {
        let turn = async {
            let requested = started.elapsed();
            let guard = client.mutex(LOCK).lock().await.map_err(|e| e.to_string())?;
            let granted = started.elapsed();
            // The first client holds the lock until all clients are queued.
            let _ = go.acquire().await.map_err(|e| e.to_string())?;
            let (token, waited) = (guard.token().0, guard.wait_stats().waited);
            // The receiver outlives this task.
            let _ = sender.send(TurnReport::Granted { position, token, waited }).await;
            work(
                guard,
                Grant { position, token, requested, granted, released: granted, wakes: 0, kept: false },
                started,
            )
            .await
        };
        let report = turn.await.map_or_else(|error| TurnReport::Failed { position, error }, TurnReport::Done);
        let _ = sender.send(report).await;
    })
}

async fn work(guard: Guard, mut grant: Grant, started: Instant) -> Result<Grant, String> {
    grant.wakes = u64::from(guard.wait_stats().wakeups);
    guard.run(time::sleep(WORK)).await.map_err(|e| e.to_string())?;
    grant.released = started.elapsed();
    guard.release().await.map_err(|e| e.to_string())?;
    grant.kept = true;
    Ok(grant)
}

async fn next_report(receiver: &mut mpsc::Receiver<TurnReport>) -> Result<Option<TurnReport>, Failure> {
    let silent = |_| Failure::new(SOFTWARE, "no client was granted the lock for too long");
    time::timeout(STEP_DEADLINE, receiver.recv()).await.map_err(silent)
}

/// Kills the leader by SIGKILL and restarts the node at once: the node recovers during the election.
async fn kill_leader(cluster: &mut Running) -> Result<(), Failure> {
    let Some(leader) = cluster.leader().await else {
        return Err(Failure::new(SOFTWARE, "no node knows a leader"));
    };
    let pid = cluster.nodes.pid(leader).unwrap_or_default();
    cluster.nodes.kill(leader).await?;
    outln!("  {}", cluster.paint.bad(&format!("-- node {leader}, the leader, is killed (kill -9 {pid})")));
    cluster.start(leader)?;
    let pid = cluster.nodes.pid(leader).unwrap_or_default();
    outln!("  {}", cluster.paint.good(&format!("-- node {leader} is started again (process {pid})")));
    Ok(())
}

fn print_verdict(cluster: &Running, findings: &[Finding]) {
    let paint = cluster.paint;
    outln!("\n{}", paint.bold("Verdict"));
    for finding in findings {
        let word = if finding.kept { paint.good("kept  ") } else { paint.bad("BROKEN") };
        outln!("  {word}  {:<26}  {}", finding.promise, paint.dim(&finding.evidence));
    }
}

/// Waits until the killed node serves again, and prints the new leader.
async fn restore(cluster: &mut Running) -> Result<(), Failure> {
    let reports = cluster.wait_until_serving(true).await?;
    outln!();
    cluster.print_table(&reports);
    Ok(())
}

/// Turn of one client with the lock. Times count from the start of the demonstration, on one clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Position in the queue, from 1.
    pub position: usize,
    pub token: i64,
    /// Time of the call of `lock`.
    pub requested: Duration,
    pub granted: Duration,
    /// Time at the begin of the release.
    pub released: Duration,
    /// Wake-ups of this waiter by the server.
    pub wakes: u64,
    /// True if the client held the lock until its release.
    pub kept: bool,
}

/// Promise, and the result of its check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub promise: &'static str,
    pub kept: bool,
    pub evidence: String,
}

/// Checks `grants`, in grant order, of `clients` that queued.
pub fn check(grants: &[Grant], clients: usize) -> Vec<Finding> {
    vec![
        all_served(grants, clients),
        in_order(grants),
        tokens_increase(grants),
        one_holder(grants),
        one_wake(grants),
    ]
}

fn all_served(grants: &[Grant], clients: usize) -> Finding {
    let kept = grants.iter().filter(|g| g.kept).count();
    Finding {
        promise: "every client got its turn",
        kept: kept == clients && grants.len() == clients,
        evidence: format!("{kept} of {clients} held the lock and released it"),
    }
}

fn in_order(grants: &[Grant]) -> Finding {
    let positions: Vec<String> = grants.iter().map(|g| g.position.to_string()).collect();
    Finding {
        promise: "grants in queue order",
        kept: grants.is_sorted_by(|a, b| a.position < b.position),
        evidence: format!("positions {}", positions.join(" ")),
    }
}

fn tokens_increase(grants: &[Grant]) -> Finding {
    let ends = match (grants.first(), grants.last()) {
        (Some(first), Some(last)) => format!("from {} to {}", first.token, last.token),
        _ => "no token".to_owned(),
    };
    Finding {
        promise: "tokens strictly increasing",
        kept: grants.is_sorted_by(|a, b| a.token < b.token),
        evidence: ends,
    }
}

/// Checks that no two turns overlap and no two holders had the same token.
fn one_holder(grants: &[Grant]) -> Finding {
    let overlaps = grants.windows(2).filter(|pair| pair[0].released > pair[1].granted).count();
    let mut tokens: Vec<i64> = grants.iter().map(|g| g.token).collect();
    tokens.sort_unstable();
    let twins = tokens.windows(2).filter(|pair| pair[0] == pair[1]).count();
    Finding {
        promise: "never two holders",
        kept: overlaps == 0 && twins == 0,
        evidence: format!("{overlaps} overlapping turns, {twins} shared tokens"),
    }
}

/// Checks that no waiter is woken twice. A waiter may have zero wake-ups: after a lost connection the waiter
/// queries its position.
fn one_wake(grants: &[Grant]) -> Finding {
    let waiters = grants.iter().filter(|g| g.position > 1).count();
    let wakes: u64 = grants.iter().map(|g| g.wakes).sum();
    let queried = grants.iter().filter(|g| g.position > 1 && g.wakes == 0).count();
    let suffix = match queried {
        0 => String::new(),
        n => format!(", {n} found out on reconnecting"),
    };
    Finding {
        promise: "one wake-up per release",
        kept: grants.iter().all(|g| g.wakes <= u64::from(g.position > 1)),
        evidence: format!("{} for {}{suffix}", count(wakes, "wake-up"), count(waiters, "waiter")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants() -> Vec<Grant> {
        let at = |ms: usize| Duration::from_millis(ms as u64);
        (1..=4)
            .map(|position| Grant {
                position,
                token: 100 + position as i64,
                requested: at(0),
                granted: at(10 * position),
                released: at(10 * position + 9),
                wakes: u64::from(position > 1),
                kept: true,
            })
            .collect()
    }

    fn broken(change: impl FnOnce(&mut Vec<Grant>)) -> Vec<&'static str> {
        let mut grants = grants();
        change(&mut grants);
        check(&grants, 4).into_iter().filter(|f| !f.kept).map(|f| f.promise).collect()
    }

    #[test]
    fn fair_round_keeps_every_promise() {
        assert!(broken(|_| ()).is_empty());
    }

    #[test]
    fn each_broken_promise_is_found_alone() {
        assert_eq!(
            broken(|g| g[2].granted = g[1].released - Duration::from_millis(1)),
            ["never two holders"]
        );
        assert_eq!(broken(|g| g[1].wakes = 3), ["one wake-up per release"]);
        assert_eq!(broken(|g| g[3].kept = false), ["every client got its turn"]);
        assert_eq!(
            broken(|g| {
                g.pop();
            }),
            ["every client got its turn"]
        );
    }

    #[test]
    fn shared_token_is_two_holders_and_no_increase() {
        assert_eq!(broken(|g| g[1].token = g[0].token), ["tokens strictly increasing", "never two holders"]);
    }

    #[test]
    fn jumped_queue_is_found() {
        assert_eq!(
            broken(|g| {
                let position = g[1].position;
                g[1].position = g[2].position;
                g[2].position = position;
            }),
            ["grants in queue order"]
        );
    }
}
