//! How long a commit takes, and how many fit into a second: three nodes in this process, on loopback, with
//! their real write-ahead logs and fdatasync, driven through the proposer of the leader. Beside it, from the
//! same run, the floors that no design can go below: a flush of the disk and a round trip on loopback.
//!
//! `cargo bench -p rowlock-coordinator --bench commit [-- SECONDS]` (default 4 per row)

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use rowlock_coordinator::Node;
use rowlock_coordinator::config::ClusterConfig;
use rowlock_coordinator::node::delivery::outbox::{Inbox, Message, Outbox, channel};
use rowlock_coordinator::node::proposer::{Proposer, Submission};
use rowlock_env::disk::Dir;
use rowlock_env::net::{Listener, Stream};
use rowlock_env::time::{Instant, now, timeout};
use rowlock_env::{rng, task};
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::{CreateMode, NodeId, SessionId, Version};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command};
use rowlock_state::outcome::Applied;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Size of the data that a command writes.
const DATA_BYTES: usize = 100;
/// Commands under way at once, per row.
const IN_FLIGHT: [usize; 3] = [1, 64, 512];
/// Tasks that share the commands of a row, as connections would.
const DRIVERS_MAX: usize = 8;
/// For everything that must come soon.
const PATIENCE: Duration = Duration::from_secs(30);
/// For each look at the floor of the disk.
const FLOOR_TIME: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    // cargo hands over `--bench`.
    let seconds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(4);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(Duration::from_secs(seconds)))
}

async fn run(each: Duration) -> Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("commit-{:x}", rng::u64()));
    let dir = Dir::create(&folder)?;
    println!("{:<44} {:>9} {:>9} {:>12}", "", "p50", "p99", "per second");
    print(&format!("floor: {DATA_BYTES} B echo on loopback"), echo_floor(each).await?);
    let cluster = Cluster::start(&folder).await?;
    for in_flight in IN_FLIGHT {
        // Before each row, because other writers of the disk (a build just before) change it from second to
        // second.
        print("floor: 512 B overwrite + fdatasync", flush_floor(&dir)?);
        let before = cluster.counts();
        let measured = cluster.drive(in_flight, each).await?;
        print(&format!("commit, {in_flight} in flight"), measured);
        let [entries, commands, flushes] = cluster.counts();
        let folded = (commands - before[1]) as f64 / (entries - before[0]).max(1) as f64;
        let flushed = (commands - before[1]) as f64 / (flushes - before[2]).max(1) as f64;
        println!("{:<44} {folded:.1} commands per log entry, {flushed:.1} per flush of the leader", "");
    }
    cluster.stop().await;
    dir.remove_all()?;
    Ok(())
}

/// Latencies, and the time in which they were measured.
struct Measured {
    latencies: Vec<Duration>,
    time: Duration,
}

fn print(what: &str, mut measured: Measured) {
    let latencies = &mut measured.latencies;
    latencies.sort_unstable();
    let quantile = |q: usize| latencies[(latencies.len() * q / 100).min(latencies.len() - 1)];
    let micros = |d: Duration| format!("{:.0} µs", d.as_secs_f64() * 1e6);
    let rate = latencies.len() as f64 / measured.time.as_secs_f64();
    println!("{what:<44} {:>9} {:>9} {rate:>12.0}", micros(quantile(50)), micros(quantile(99)));
}

/// One flush after another, over blocks that exist already: what the write-ahead log does.
fn flush_floor(dir: &Dir) -> Result<Measured> {
    const FILE_BYTES: u64 = 16 << 20;
    const RECORD_BYTES: u64 = 512;
    let file = dir.create_new("floor")?;
    file.write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
    file.sync_all()?;
    let (start, mut latencies, mut at) = (now(), Vec::new(), 0);
    while start.elapsed() < FLOOR_TIME {
        let begin = now();
        file.write_all_at(&[1; RECORD_BYTES as usize], at)?;
        file.sync_data()?;
        latencies.push(begin.elapsed());
        at = (at + RECORD_BYTES) % FILE_BYTES;
    }
    let time = start.elapsed();
    dir.remove("floor")?;
    Ok(Measured { latencies, time })
}

/// One small message there and back after another.
async fn echo_floor(each: Duration) -> Result<Measured> {
    let listener = Listener::bind("127.0.0.1:0").await?;
    let mut stream = Stream::connect(&listener.local_addr().to_string(), PATIENCE).await?;
    let mut other = listener.accept().await;
    let echo = task::spawn("echo", async move {
        let mut buf = [0; DATA_BYTES];
        while other.read_exact(&mut buf).await.is_ok() && other.write_all(&buf).await.is_ok() {}
    });
    let (start, mut latencies, mut buf) = (now(), Vec::new(), [0; DATA_BYTES]);
    while start.elapsed() < each {
        let begin = now();
        stream.write_all(&buf).await?;
        stream.read_exact(&mut buf).await?;
        latencies.push(begin.elapsed());
    }
    let time = start.elapsed();
    drop(stream);
    echo.await?;
    Ok(Measured { latencies, time })
}

/// Three nodes, of which one leads.
struct Cluster {
    nodes: Vec<Node>,
    leader: usize,
    session: SessionId,
    attachment: Attachment,
}

impl Cluster {
    async fn start(folder: &Path) -> Result<Cluster> {
        let text = cluster_toml(folder).await?;
        let config = ClusterConfig::parse(&text, &folder.join("cluster.toml"))?;
        let mut nodes = Vec::new();
        for id in 1..=3 {
            nodes.push(Node::start(config.node(NodeId(id)).ok_or("the node is in the file")?).await?);
        }
        for node in &nodes {
            let mut status = node.status();
            timeout(PATIENCE, status.wait_for(|status| status.serving && status.leader.is_some())).await??;
        }
        let leader = nodes[0].status().borrow().leader.ok_or("a leader is known")?;
        let leader = usize::try_from(leader.0)? - 1;
        let mut cluster =
            Cluster { nodes, leader, session: SessionId::NONE, attachment: Attachment::default() };
        cluster.prepare().await?;
        Ok(cluster)
    }

    /// A session, and a znode for each driver.
    async fn prepare(&mut self) -> Result<()> {
        let mut driver = self.driver(0);
        let open = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 40_000 };
        let opened = driver.once(open).await?.attached.ok_or("no session")?;
        (self.session, self.attachment) = (opened.session, opened.attachment);
        for number in 0..DRIVERS_MAX {
            let mut driver = self.driver(number);
            let flags = CreateMode::Persistent.flags();
            let create =
                Create { path: driver.path.clone(), data: None, acl: Some(Acl::shared_open()), flags };
            driver.once(Command::Client(Request::Create2(create))).await?.result?;
        }
        Ok(())
    }

    fn driver(&self, number: usize) -> Driver {
        let (outbox, inbox) = channel();
        Driver {
            proposer: self.nodes[self.leader].proposer(),
            session: self.session,
            attachment: self.attachment,
            path: format!("/bench-{number}"),
            outbox,
            inbox,
            sent: 0,
        }
    }

    async fn drive(&self, in_flight: usize, each: Duration) -> Result<Measured> {
        let drivers = in_flight.min(DRIVERS_MAX);
        let count_from = now() + WARM_UP;
        let until = count_from + each;
        let tasks: Vec<_> = (0..drivers)
            .map(|number| {
                let driver = self.driver(number);
                task::spawn("driver", driver.run(in_flight / drivers, count_from, until))
            })
            .collect();
        let mut latencies = Vec::new();
        for task in tasks {
            latencies.append(&mut task.await??);
        }
        Ok(Measured { latencies, time: each })
    }

    /// Log entries proposed, commands in them, and flushes, of the leader.
    fn counts(&self) -> [u64; 3] {
        let metrics = self.nodes[self.leader].metrics();
        [
            metrics.batches_total.get(),
            metrics.batch_commands.view().sum,
            metrics.wal_fsync_seconds.view().count,
        ]
    }

    async fn stop(self) {
        for node in self.nodes {
            node.shutdown().await;
        }
    }
}

/// Sends commands as a connection would, and waits for their answers.
struct Driver {
    proposer: Proposer,
    session: SessionId,
    attachment: Attachment,
    path: String,
    outbox: Outbox,
    inbox: Inbox,
    sent: u64,
}

impl Driver {
    /// Keeps `in_flight` commands under way until `until`; the latencies of those answered after
    /// `count_from`.
    async fn run(mut self, in_flight: usize, count_from: Instant, until: Instant) -> Result<Vec<Duration>> {
        // Answers come in the order of the submissions.
        let mut begun = VecDeque::with_capacity(in_flight);
        let (mut latencies, mut messages) = (Vec::new(), VecDeque::new());
        while now() < until || !begun.is_empty() {
            while begun.len() < in_flight && now() < until {
                begun.push_back(now());
                let set = SetData {
                    path: self.path.clone(),
                    data: Some(Bytes::from_static(&[b'x'; DATA_BYTES])),
                    version: Version::ANY,
                };
                self.submit(Command::Client(Request::SetData(set))).await?;
            }
            timeout(PATIENCE, self.inbox.ready()).await?;
            self.inbox.take(&mut messages)?;
            for message in messages.drain(..) {
                let Message::Applied { answer, .. } = message else {
                    return Err(format!("{message:?}").into());
                };
                answer.applied.result?;
                let end = now();
                let begin = begun.pop_front().ok_or("an answer without a question")?;
                if (count_from..until).contains(&end) {
                    latencies.push(end - begin);
                }
            }
        }
        Ok(latencies)
    }

    async fn once(&mut self, command: Command) -> Result<Applied> {
        self.submit(command).await?;
        timeout(PATIENCE, self.inbox.ready()).await?;
        let mut messages = VecDeque::new();
        self.inbox.take(&mut messages)?;
        match messages.pop_front() {
            Some(Message::Applied { answer, .. }) => Ok(answer.applied),
            other => Err(format!("{other:?}").into()),
        }
    }

    async fn submit(&mut self, command: Command) -> Result<()> {
        self.sent += 1;
        let (session, attachment) = (self.session, self.attachment);
        let (reply_to, tag) = (self.outbox.clone(), self.sent);
        let (identities, received) = (Default::default(), now());
        let submission = Submission { session, attachment, identities, command, reply_to, tag, received };
        Ok(self.proposer.submit(submission).await?)
    }
}

/// A cluster on ports that were free a moment ago.
async fn cluster_toml(folder: &Path) -> Result<String> {
    let mut listeners = Vec::new();
    for _ in 0..9 {
        listeners.push(Listener::bind("127.0.0.1:0").await?);
    }
    let mut text = "name = \"bench\"\n".to_owned();
    for (id, ports) in (1..).zip(listeners.chunks(3)) {
        let [client, peer, http] = [0, 1, 2].map(|i| ports[i].local_addr());
        let data = folder.join(format!("node-{id}"));
        text += &format!("[[node]]\nid = {id}\nclient = \"{client}\"\npeer = \"{peer}\"\n");
        text += &format!("http = \"{http}\"\ndata = \"{}\"\n", data.display());
    }
    Ok(text)
}
