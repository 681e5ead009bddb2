//! Replies to four-letter words: text for people and monitoring, in ZooKeeper's form.
//!
//! Must never wait for a client, or hold the state's lock while writing to a socket.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rowlock_consensus::status::Status;
use rowlock_env::disk::Dir;
use rowlock_env::{process, time, worker};
use rowlock_metrics::Role;
use rowlock_proto::FourLetterWord;

use super::shared::Shared;
use crate::node::delivery::registry::ClientConnection;
use crate::node::delivery::watch::ConnectionId;

/// Server version for clients: the protocol's dialect, then the program.
const VERSION: &str = concat!("3.9.3-rowlock-", env!("CARGO_PKG_VERSION"));
const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests\n";
/// Follows `NOT_SERVING` in the reply to `srvr`; `rowlock member ls` reads it (`cli/src/member/list.rs`).
const DRAINED: &str = "Drained: true\n";
/// Prefix of the `srvr` line with the reason why the node does not serve clients.
const REASON: &str = "Reason: ";
/// Prefix of the `srvr` line with the remaining time in which the node opens no sessions.
const GRACE: &str = "Grace: ";
/// Prefix of the leader's lines about silent members, with the duration: `Silent: 4 34012 ms`, or `Silent: 4
/// at least 34012 ms` if the member has never answered this leader. `rowlock member ls` reads the lines.
const SILENT: &str = "Silent: ";
/// Prefix of the number of silent leaders that this node has replaced. `rowlock doctor` reads the line.
const SILENT_LEADERS: &str = "Silent leaders: ";
/// Shortest reported silence: members answer many times a second.
const SILENT_FROM: Duration = Duration::from_secs(2);

/// Returns whether the node answers this word. As in ZooKeeper, `srvr` is always answered, `isro` wherever
/// clients search for more than a read-only node, and the rest if the configuration lists it. There are no
/// trace masks, so the node refuses those words regardless of the configuration.
fn is_allowed(shared: &Shared, word: FourLetterWord) -> bool {
    let config = &shared.context.config.client;
    match word {
        FourLetterWord::Srvr => true,
        FourLetterWord::Isro if config.read_only_mode => true,
        FourLetterWord::Gtmk | FourLetterWord::Stmk => false,
        _ => config.words.iter().any(|allowed| allowed == "*" || allowed == word.as_str()),
    }
}

/// Returns the text to send before the connection is closed.
pub(super) async fn answer(shared: &Shared, word: FourLetterWord) -> String {
    if !is_allowed(shared, word) {
        return format!("{word} is not executed because it is not in the whitelist.\n");
    }
    match word {
        FourLetterWord::Dirs => {
            let data = shared.context.config.data_dir.clone();
            worker::run_blocking("dirs", move || directories(&data)).await
        }
        word => answer_at_once(shared, word),
    }
}

/// Returns the sizes of snapshots and log.
fn directories(data: &Path) -> String {
    let bytes = |folder: &str| -> std::io::Result<u64> {
        let folder = Dir::open(&data.join(folder))?;
        folder.list()?.iter().map(|name| folder.open_to_read(name)?.len()).sum()
    };
    // A file may vanish meanwhile, or a folder may not exist yet.
    let bytes = |folder: &str| bytes(folder).unwrap_or(0);
    format!("datadir_size: {}\nlogdir_size: {}\n", bytes("snapshots"), bytes("wal"))
}

fn answer_at_once(shared: &Shared, word: FourLetterWord) -> String {
    use FourLetterWord as W;
    let status = shared.context.status.borrow().clone();
    let read_only = !status.serving && shared.context.isolation.is_isolated();
    match word {
        W::Ruok => "imok".to_owned(),
        W::Isro => match (status.serving, read_only) {
            (true, _) => "rw",
            (false, true) => "ro",
            (false, false) => "null",
        }
        .to_owned(),
        W::Envi => environment(shared),
        W::Conf => configuration(shared),
        W::Srvr if !status.serving && !read_only => not_serving(shared, &status),
        _ if !status.serving && !read_only => NOT_SERVING.to_owned(),
        W::Srvr => format!("Zookeeper version: {VERSION}\n{}{}", summary(shared, &status), grace(shared)),
        W::Stat => stat(shared, &status),
        W::Mntr => monitoring(shared, &status),
        W::Cons => connections(shared),
        W::Dump => dump(shared),
        W::Wchs => watch_summary(shared),
        W::Wchc => watches_by_session(shared),
        W::Wchp => watches_by_path(shared),
        W::Crst => {
            shared.context.registry.connections().iter().for_each(|peer| peer.stats.reset());
            "Connection stats reset.\n".to_owned()
        }
        W::Srst => {
            shared.stats.reset();
            "Server stats reset.\n".to_owned()
        }
        W::Dirs | W::Gtmk | W::Stmk => unreachable!("answered or refused before"),
    }
}

fn not_serving(shared: &Shared, status: &Status) -> String {
    let drained = if shared.context.metrics.drained.get() > 0 { DRAINED } else { "" };
    let reason = status.not_serving.unwrap_or_default().text();
    format!("{NOT_SERVING}{drained}{REASON}{reason}\n{}", grace(shared))
}

/// Formats the remaining grace after a restore, in which the node opens no sessions.
fn grace(shared: &Shared) -> String {
    match shared.context.metrics.restore_grace_seconds.get() {
        0 => String::new(),
        seconds => format!("{GRACE}{seconds} s\n"),
    }
}

/// Appends a line. Writing to a `String` cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { { let _ = writeln!($out, $($arg)*); } };
}

fn mode(status: &Status) -> &'static str {
    match status.role {
        _ if !status.serving => "read-only",
        Role::Leader if status.voters.len() == 1 => "standalone",
        Role::Leader => "leader",
        Role::Follower | Role::Candidate => "follower",
        Role::Learner => "observer",
    }
}

fn outstanding(peers: &[Arc<ClientConnection>]) -> u64 {
    peers.iter().map(|peer| peer.stats.outstanding.load(Relaxed)).sum()
}

/// Formats the text of `srvr`, which is also the second part of `stat`.
fn summary(shared: &Shared, status: &Status) -> String {
    let (zxid, counts) = {
        let state = shared.context.replica.state.read();
        (state.last_zxid(), state.counts())
    };
    let peers = shared.context.registry.connections();
    let stats = &shared.stats;
    let latency = &stats.latency;
    let mut out = String::new();
    line!(out, "Latency min/avg/max: {}/{:.4}/{}", latency.min_ms(), latency.mean_ms(), latency.max_ms());
    line!(out, "Received: {}", stats.received.load(Relaxed));
    line!(out, "Sent: {}", stats.sent.load(Relaxed));
    line!(out, "Connections: {}", peers.len());
    line!(out, "Outstanding: {}", outstanding(&peers));
    line!(out, "Zxid: {zxid}");
    line!(out, "Mode: {}", mode(status));
    line!(out, "Node count: {}", counts.znodes);
    for silence in shared.context.metrics.member_silent_seconds.get() {
        if silence.lasts >= SILENT_FROM {
            let (node, ms) = (silence.node, silence.lasts.as_millis());
            line!(out, "{SILENT}{node} {}{ms} ms", if silence.is_least { "at least " } else { "" });
        }
    }
    match shared.context.metrics.leaderships_total.after_silence() {
        0 => {}
        count => line!(out, "{SILENT_LEADERS}{count}"),
    }
    out
}

fn stat(shared: &Shared, status: &Status) -> String {
    let mut out = format!("Zookeeper version: {VERSION}\nClients:\n");
    for peer in shared.context.registry.connections() {
        line!(out, "{})", short(&peer));
    }
    out.push('\n');
    out + &summary(shared, status)
}

fn connections(shared: &Shared) -> String {
    let mut out = String::new();
    for peer in shared.context.registry.connections() {
        let full =
            if peer.stats.session().0 == 0 { String::new() } else { peer.stats.in_full(peer.accepted_ms) };
        line!(out, "{}{full})", short(&peer));
    }
    out.push('\n');
    out
}

/// Formats the beginning of a connection's line in `stat` and `cons`; `[1]` marks a connection with a
/// session.
fn short(peer: &ClientConnection) -> String {
    let stats = &peer.stats;
    format!(
        " /{}[{}](queued={},recved={},sent={}",
        peer.addr,
        u8::from(stats.session().0 != 0),
        stats.outstanding.load(Relaxed),
        stats.received.load(Relaxed),
        stats.sent.load(Relaxed)
    )
}

fn monitoring(shared: &Shared, status: &Status) -> String {
    let counts = shared.context.replica.state.read().counts();
    let watches = shared.context.replica.watches.lock().len();
    let peers = shared.context.registry.connections();
    let stats = &shared.stats;
    let mut out = String::new();
    line!(out, "zk_version\t{VERSION}");
    line!(out, "zk_server_state\t{}", mode(status));
    line!(out, "zk_avg_latency\t{:.4}", stats.latency.mean_ms());
    line!(out, "zk_max_latency\t{}", stats.latency.max_ms());
    line!(out, "zk_min_latency\t{}", stats.latency.min_ms());
    line!(out, "zk_packets_received\t{}", stats.received.load(Relaxed));
    line!(out, "zk_packets_sent\t{}", stats.sent.load(Relaxed));
    line!(out, "zk_num_alive_connections\t{}", peers.len());
    line!(out, "zk_outstanding_requests\t{}", outstanding(&peers));
    line!(out, "zk_znode_count\t{}", counts.znodes);
    line!(out, "zk_watch_count\t{watches}");
    line!(out, "zk_ephemerals_count\t{}", counts.ephemerals);
    line!(out, "zk_approximate_data_size\t{}", counts.approximate_data_bytes);
    line!(out, "zk_global_sessions\t{}", counts.sessions);
    line!(out, "zk_open_file_descriptor_count\t{}", process::open_files().unwrap_or(0));
    line!(out, "zk_max_file_descriptor_count\t{}", process::max_open_files().unwrap_or(0));
    line!(out, "zk_uptime\t{}", time::wall_ms().saturating_sub(shared.started_ms));
    if status.role == Role::Leader {
        let followers = status.voters.len().saturating_sub(1);
        line!(out, "zk_followers\t{followers}");
        line!(out, "zk_learners\t{}", followers + status.learners.len());
    }
    out
}

fn environment(shared: &Shared) -> String {
    let config = &shared.context.config;
    let mut out = "Environment:\n".to_owned();
    line!(out, "zookeeper.version={VERSION}");
    line!(
        out,
        "host.name={}",
        config
            .client_addr
            .as_ref()
            .or(config.secure_client_addr.as_ref())
            .and_then(|addr| addr.rsplit_once(':'))
            .map_or("", |(host, _)| host)
    );
    line!(out, "os.name={}", std::env::consts::OS);
    line!(out, "os.arch={}", std::env::consts::ARCH);
    line!(out, "user.dir={}", config.data_dir.display());
    out
}

fn configuration(shared: &Shared) -> String {
    let config = &shared.context.config;
    let mut out = String::new();
    line!(out, "clientPort={}", shared.client_port);
    line!(out, "dataDir={}", config.data_dir.display());
    // ZooKeeper's shortest session timeout is two ticks.
    line!(out, "tickTime={}", config.session.min_timeout_ms / 2);
    line!(out, "maxClientCnxns={}", config.client.max_connections_per_address);
    line!(out, "minSessionTimeout={}", config.session.min_timeout_ms);
    line!(out, "maxSessionTimeout={}", config.session.max_timeout_ms);
    line!(out, "serverId={}", config.id);
    if let Some(address) = &config.client_addr {
        line!(out, "clientPortAddress={address}");
    }
    if let Some(address) = &config.secure_client_addr {
        line!(out, "secureClientPort={}", shared.secure_port);
        line!(out, "secureClientPortAddress={address}");
    }
    out
}

fn dump(shared: &Shared) -> String {
    let state = shared.context.replica.state.read();
    let mut out = "SessionTracker dump:\n".to_owned();
    line!(out, "Global Sessions({}):", state.counts().sessions);
    for (id, session) in state.sessions() {
        line!(out, "{id}\t{}ms", session.timeout_ms);
    }
    let owners = || state.sessions().filter(|(_, session)| session.ephemeral_count() > 0);
    line!(out, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", owners().count());
    for (id, session) in owners() {
        line!(out, "{id}:");
        session.ephemerals_in_order().iter().for_each(|path| line!(out, "\t{path}"));
    }
    out
}

fn watch_summary(shared: &Shared) -> String {
    let counts = shared.context.replica.watches.lock().counts();
    format!(
        "{} connections watching {} paths\nTotal watches:{}\n",
        counts.connections, counts.paths, counts.watches
    )
}

/// Finds a connection in `peers`, which is sorted by id.
fn find(peers: &[Arc<ClientConnection>], connection: ConnectionId) -> Option<&ClientConnection> {
    let at = peers.binary_search_by_key(&connection, |peer| peer.id).ok()?;
    Some(&peers[at])
}

fn watches_by_session(shared: &Shared) -> String {
    let peers = shared.context.registry.connections();
    let watches = shared.context.replica.watches.lock();
    let mut out = String::new();
    for (connection, paths) in watches.by_connection() {
        if let Some(peer) = find(&peers, connection) {
            line!(out, "{}", peer.stats.session());
            paths.for_each(|path| line!(out, "\t{path}"));
        }
    }
    out
}

fn watches_by_path(shared: &Shared) -> String {
    let peers = shared.context.registry.connections();
    let watches = shared.context.replica.watches.lock();
    let mut out = String::new();
    for (path, connections) in watches.by_path() {
        line!(out, "{path}");
        for connection in connections {
            if let Some(peer) = find(&peers, connection) {
                line!(out, "\t{}", peer.stats.session());
            }
        }
    }
    out
}
