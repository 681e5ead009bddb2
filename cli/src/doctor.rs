//! `rowlock doctor`: tries each endpoint as a client does, step by step, and reports the first failure with
//! its cause.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, ClientBuilder};
use rowlock_env::net::{self, Stream};
use rowlock_env::{task, time};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Cluster, Secure, leave};
use crate::exit::{Failure, UNAVAILABLE};
use crate::paint::Paint;
use crate::print::{out, outln};
use crate::status::why_no_sessions;
use crate::table::table;

/// Deadline of each step except the session.
const STEP: Duration = Duration::from_secs(2);
/// Deadline for a session without `--connect-timeout`: an election may be under way.
const SESSION: Duration = Duration::from_secs(3);
/// Number of round trips for the median.
const ROUND_TRIPS: usize = 5;
const ANSWER_MAX_BYTES: u64 = 64 << 10;

/// Diagnose each endpoint step by step: name, connection, protocol, quorum, round trip
#[derive(clap::Args)]
pub struct Doctor {
    #[command(flatten)]
    cluster: Cluster,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: DoctorFormat,
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum DoctorFormat {
    /// Aligned columns, for people.
    #[default]
    Table,
    /// JSON: one object per endpoint.
    Json,
}

/// Results of the steps at one endpoint.
#[derive(Default)]
struct Finding {
    endpoint: String,
    addresses: Option<Vec<String>>,
    /// Time to connect, encryption included.
    connect: Option<Duration>,
    /// Protocol or mode reported by the server.
    speaks: Option<String>,
    /// Time to open a session, which takes a quorum.
    session: Option<Duration>,
    /// Round trip of a request answered by the leader.
    round_trip: Option<Duration>,
    /// Number of silent leaders that the node has replaced since its start.
    silent_leaders: u64,
    /// Number of voters in the cluster's configuration.
    voters: Option<usize>,
    /// Cause of the failure, and the remedy.
    trouble: Option<String>,
}

impl Doctor {
    /// Exits with 0 if no endpoint has a problem, else with 69.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let findings = examine_all(&self.cluster).await?;
        match self.output {
            DoctorFormat::Json => outln!("{:#}", findings.iter().map(Finding::json).collect::<Value>()),
            DoctorFormat::Table => print_table(&findings),
        }
        let all_fine = findings.iter().all(|finding| finding.trouble.is_none());
        Ok(if all_fine { ExitCode::SUCCESS } else { ExitCode::from(UNAVAILABLE) })
    }
}

/// Returns the document of `rowlock doctor -o json`.
pub async fn document(cluster: &Cluster) -> Result<Value, Failure> {
    Ok(examine_all(cluster).await?.iter().map(Finding::json).collect())
}

async fn examine_all(cluster: &Cluster) -> Result<Vec<Finding>, Failure> {
    let endpoints = cluster.endpoints()?;
    // The client validates the endpoints.
    let config = cluster.client()?;
    config.validate().map_err(|e| Failure::new(crate::exit::USAGE, e))?;
    let (hosts, chroot) = endpoints.split_at(endpoints.find('/').unwrap_or(endpoints.len()));
    let secure = cluster.tls.secure()?;
    let timeout = cluster.connect_timeout.unwrap_or(SESSION);
    let mut examinations = Vec::new();
    for host in hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
        let config = config.clone().endpoints(&format!("{host}{chroot}")).connect_timeout(timeout);
        let (endpoint, secure) = (with_port(host), secure.clone());
        examinations.push(task::spawn("doctor", examine(endpoint, config, secure)));
    }
    let mut findings = Vec::new();
    for finding in examinations {
        findings.extend(finding.await.ok());
    }
    Ok(findings)
}

fn with_port(host: &str) -> String {
    let is_bare = if host.starts_with('[') { host.ends_with(']') } else { !host.contains(':') };
    if is_bare { format!("{host}:2181") } else { host.to_owned() }
}

/// Runs the steps at one endpoint, up to the first that fails.
async fn examine(endpoint: String, config: ClientBuilder, secure: Option<Secure>) -> Finding {
    let mut finding = Finding { endpoint, ..Finding::default() };
    let trouble = steps(&mut finding, config, secure).await.err();
    finding.trouble = trouble;
    finding
}

async fn steps(finding: &mut Finding, config: ClientBuilder, secure: Option<Secure>) -> Result<(), String> {
    let endpoint = finding.endpoint.clone();
    let resolved = time::timeout(STEP, net::addresses(&endpoint)).await;
    let resolved = resolved.map_err(|_| "no answer from name resolution; check DNS".to_owned())?;
    let resolved = resolved.map_err(|e| {
        let e = e.to_string();
        format!("{}; check the name", e.strip_prefix(&format!("{endpoint}: ")).unwrap_or(&e))
    })?;
    finding.addresses = Some(resolved.iter().map(|address| address.ip().to_string()).collect());
    let started = time::now();
    let stream = connect(&endpoint, secure.as_ref()).await.map_err(|e| refused(&e))?;
    finding.connect = Some(started.elapsed());
    let reply = match probe(stream, b"srvr").await {
        // An HTTP server waits for the rest of its request, then closes the connection.
        nothing @ (Reply::Silence | Reply::Closed) => {
            let http = connect(&endpoint, secure.as_ref()).await.map_err(|e| refused(&e))?;
            match probe(http, b"GET / HTTP/1.0\r\n\r\n").await {
                Reply::Http => Reply::Http,
                _ => nothing,
            }
        }
        reply => reply,
    };
    let reason = match &reply {
        Reply::Serves { reason, silent_leaders, .. } => {
            finding.silent_leaders = *silent_leaders;
            reason.clone()
        }
        Reply::NotServing(reason) => reason.clone(),
        _ => None,
    };
    finding.speaks = Some(reply.mode()?);
    if let Some(reason) = reason {
        return Err(reason);
    }
    let started = time::now();
    let client = config.connect().await.map_err(|e| e.to_string())?;
    finding.session = Some(started.elapsed());
    let round_trip = round_trip(&client).await;
    finding.voters = voters(&client).await;
    leave(&client).await;
    finding.round_trip = Some(round_trip?);
    Ok(())
}

async fn connect(endpoint: &str, secure: Option<&Secure>) -> std::io::Result<Stream> {
    let stream = Stream::connect(endpoint, STEP).await?;
    match secure {
        None => Ok(stream),
        Some(secure) => time::timeout(STEP, secure.connect(stream, endpoint))
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())),
    }
}

fn refused(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            "nothing listens there; start the node, or check the port".to_owned()
        }
        std::io::ErrorKind::TimedOut => format!("{e}; check the host and the firewall"),
        _ => e.to_string(),
    }
}

/// Classified first bytes of a server's answer.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    /// Serves clients. `reason`: why the server opens no sessions.
    Serves {
        mode: String,
        reason: Option<String>,
        silent_leaders: u64,
    },
    /// ZooKeeper or Rowlock without a quorum, or a Rowlock with a reason for not serving.
    NotServing(Option<String>),
    Http,
    Tls,
    Closed,
    Silence,
    Unknown,
}

impl Reply {
    fn of(answer: &[u8]) -> Reply {
        let text = String::from_utf8_lossy(answer);
        let value = |key: &str| text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()));
        match answer {
            [] => Reply::Closed,
            [0x15, 3, ..] => Reply::Tls,
            [b'H', b'T', b'T', b'P', b'/', ..] => Reply::Http,
            _ if text.contains("not currently serving") => Reply::NotServing(why_no_sessions(&text)),
            // Only a ZooKeeper-like server refuses a four-letter word.
            _ if text.contains("not executed because") => Reply::serves("serves"),
            _ => value("Mode:").map_or(Reply::Unknown, |mode| Reply::Serves {
                mode,
                reason: why_no_sessions(&text),
                silent_leaders: value("Silent leaders:").and_then(|count| count.parse().ok()).unwrap_or(0),
            }),
        }
    }

    fn serves(mode: &str) -> Reply {
        Reply::Serves { mode: mode.to_owned(), reason: None, silent_leaders: 0 }
    }

    /// Returns the mode, or the problem as text.
    fn mode(self) -> Result<String, String> {
        Err(match self {
            Reply::Serves { mode, .. } => return Ok(mode),
            Reply::NotServing(Some(reason)) => return Err(reason),
            Reply::NotServing(None) => {
                "no quorum: the node reaches no majority of the nodes, or has not caught up; see \
                 `rowlock status`"
            }
            Reply::Http => "this port speaks HTTP; use the client port (`client` in cluster.toml)",
            Reply::Tls => "this port requires TLS; use --tls-ca, or the port for plain clients",
            Reply::Closed => {
                "the server closes the connection: this may be the peer port (`peer`); use the client port (`client`)"
            }
            Reply::Silence => "the server does not answer; it is no server for clients, or it hangs",
            Reply::Unknown => "the server does not speak ZooKeeper's protocol; check the port",
        }
        .to_owned())
    }
}

/// Sends `request` and reads the answer to its end.
async fn probe(mut stream: Stream, request: &[u8]) -> Reply {
    let mut answer = Vec::new();
    let exchange = async {
        stream.write_all(request).await?;
        stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer).await
    };
    let ended = time::timeout(STEP, exchange).await;
    // A reset after the answer does not invalidate the answer.
    match ended {
        Err(_) if answer.is_empty() => Reply::Silence,
        _ => Reply::of(&answer),
    }
}

/// Measures the median round trip of requests answered by the leader.
async fn round_trip(client: &Client) -> Result<Duration, String> {
    let client = client.operation_timeout(STEP);
    let mut took = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let started = time::now();
        client.sync("/").await.map_err(|e| format!("a session is open, but a request fails: {e}"))?;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    Ok(took[took.len() / 2])
}

/// Returns the number of voters; `None`: the client may not read the configuration.
async fn voters(client: &Client) -> Option<usize> {
    let znode = client.operation_timeout(STEP).get("/zookeeper/config").await.ok()?;
    let text = String::from_utf8_lossy(znode.data.as_deref().unwrap_or_default()).into_owned();
    let is_voter = |line: &&str| line.starts_with("server.") && line.contains(":participant");
    Some(text.lines().filter(is_voter).count()).filter(|count| *count > 0)
}

/// Returns one sentence about the service, and the next command.
fn verdict(findings: &[Finding]) -> String {
    let serving = findings.iter().filter(|finding| finding.trouble.is_none()).count();
    let named = findings.len();
    if serving == 0 {
        return "no endpoint serves clients: mend the first problem above, then run `rowlock doctor` again"
            .to_owned();
    }
    let served = match (serving, named) {
        (1, 1) => "the endpoint serves clients".to_owned(),
        _ => format!("{serving} of {named} endpoints serve clients"),
    };
    let next = if serving < named { "; mend the problems above, then run `rowlock status`" } else { "" };
    // Nodes that are not among the endpoints may serve, too.
    let voters = findings.iter().filter_map(|finding| finding.voters).max().filter(|voters| *voters <= named);
    let spare = voters.map(|voters| serving.min(voters).saturating_sub(voters / 2 + 1));
    let spare = match spare {
        None => String::new(),
        Some(0) => ", and no further node may fail".to_owned(),
        Some(1) => ", and one more node may fail".to_owned(),
        Some(count) => format!(", and {count} more nodes may fail"),
    };
    format!("{served}{spare}{next}")
}

impl Finding {
    fn json(&self) -> Value {
        let ms = |took: Option<Duration>| took.map(|took| took.as_secs_f64() * 1_000.0);
        json!({
            "endpoint": self.endpoint, "addresses": self.addresses, "connect_ms": ms(self.connect),
            "speaks": self.speaks, "session_ms": ms(self.session), "round_trip_ms": ms(self.round_trip),
            "silent_leaders": self.silent_leaders, "trouble": self.trouble,
        })
    }

    fn row(&self) -> [String; 6] {
        let ms = |took: Duration| format!("{:.1} ms", took.as_secs_f64() * 1_000.0);
        let cells = [
            self.addresses.as_ref().and_then(|all| all.first().cloned()),
            self.connect.map(ms),
            self.speaks.clone(),
            self.session.map(ms),
            self.round_trip.map(ms),
        ];
        // After a failed step the following steps were not tried.
        let mut has_failed = false;
        let [resolves, connects, speaks, quorum, round_trip] = cells.map(|cell| match cell {
            Some(cell) => cell,
            None if std::mem::replace(&mut has_failed, true) => "-".to_owned(),
            None => "no".to_owned(),
        });
        [self.endpoint.clone(), resolves, connects, speaks, quorum, round_trip]
    }
}

fn print_table(findings: &[Finding]) {
    let rows: Vec<[String; 6]> = findings.iter().map(Finding::row).collect();
    out!("{}", table(["endpoint", "resolves", "connects", "speaks", "quorum", "round trip"], &rows));
    let paint = Paint::stdout();
    let troubled: Vec<&Finding> = findings.iter().filter(|finding| finding.trouble.is_some()).collect();
    for finding in &troubled {
        let trouble = finding.trouble.as_deref().unwrap_or_default();
        outln!("{}", paint.bad(&format!("{}: {trouble}", finding.endpoint)));
    }
    for finding in findings.iter().filter(|finding| finding.silent_leaders > 0) {
        let (endpoint, count) = (&finding.endpoint, finding.silent_leaders);
        outln!(
            "{endpoint}: since its start this node has replaced {count} silent leader{}; if the number rises, the \
             election timeouts are too short for these machines: run `rowlock check perf`",
            if count == 1 { "" } else { "s" }
        );
    }
    let verdict = verdict(findings);
    outln!("{}", if troubled.is_empty() { paint.good(&verdict) } else { paint.bad(&verdict) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_counts_the_failures_that_are_left() {
        let verdict_of = |serving: usize, failed: usize, voters: Option<usize>| {
            let fine = (0..serving).map(|_| Finding { voters, ..Finding::default() });
            let failed = (0..failed).map(|_| Finding { trouble: Some("x".to_owned()), ..Finding::default() });
            verdict(&fine.chain(failed).collect::<Vec<_>>())
        };
        let mend = "; mend the problems above, then run `rowlock status`";
        assert_eq!(verdict_of(3, 0, Some(3)), "3 of 3 endpoints serve clients, and one more node may fail");
        assert_eq!(verdict_of(5, 0, Some(5)), "5 of 5 endpoints serve clients, and 2 more nodes may fail");
        let left = "2 of 3 endpoints serve clients, and no further node may fail";
        assert_eq!(verdict_of(2, 1, Some(3)), format!("{left}{mend}"));
        assert_eq!(verdict_of(1, 0, Some(1)), "the endpoint serves clients, and no further node may fail");
        assert_eq!(verdict_of(1, 0, Some(3)), "the endpoint serves clients");
        assert_eq!(verdict_of(1, 1, None), format!("1 of 2 endpoints serve clients{mend}"));
        assert!(verdict_of(0, 2, None).starts_with("no endpoint serves clients"));
    }

    #[test]
    fn the_first_bytes_of_an_answer_identify_the_port() {
        for (answer, reply) in [
            (&b""[..], Reply::Closed),
            (b"\x15\x03\x03\x00\x02\x02\x46", Reply::Tls),
            (b"HTTP/1.1 400 Bad Request\r\n", Reply::Http),
            (b"This ZooKeeper instance is not currently serving requests\n", Reply::NotServing(None)),
            (b"Zookeeper version: x\nMode: leader\n", Reply::serves("leader")),
            (
                b"Mode: leader\nSilent leaders: 3\nGrace: 28 s\n",
                Reply::Serves {
                    mode: "leader".to_owned(),
                    reason: Some(
                        "the cluster was restored or lost power: sessions are opened in 28 s, at most"
                            .to_owned(),
                    ),
                    silent_leaders: 3,
                },
            ),
            (b"srvr is not executed because it is not in the whitelist.\n", Reply::serves("serves")),
            (b"220 mail ready\r\n", Reply::Unknown),
        ] {
            assert_eq!(Reply::of(answer), reply);
        }
    }

    #[test]
    fn steps_after_a_failed_step_are_not_shown_as_failed() {
        let finding = Finding {
            endpoint: "a:1".to_owned(),
            addresses: Some(vec!["10.0.0.1".to_owned()]),
            ..Finding::default()
        };
        assert_eq!(finding.row(), ["a:1", "10.0.0.1", "no", "-", "-", "-"]);
    }
}
