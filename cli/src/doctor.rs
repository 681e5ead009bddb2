//! `rowlock doctor`: tries each endpoint as a client does, step by step, and says where it fails and why.

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

/// For each step but the session.
const STEP: Duration = Duration::from_secs(2);
/// For a session, unless `--connect-timeout` says otherwise: an election may be under way.
const SESSION: Duration = Duration::from_secs(3);
/// Number of round trips of which the median is shown.
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
    /// JSON: one object for each endpoint.
    Json,
}

/// How far one endpoint came.
#[derive(Default)]
struct Finding {
    endpoint: String,
    /// The name stands for these addresses.
    addresses: Option<Vec<String>>,
    /// A connection was there after so long, encryption included.
    connect: Option<Duration>,
    /// What it says that it is.
    speaks: Option<String>,
    /// It opened a session after so long, which takes a quorum.
    session: Option<Duration>,
    /// A request that the leader answers took so long.
    round_trip: Option<Duration>,
    /// Number of leaders that the node has replaced since its start because they had fallen silent.
    silent_leaders: u64,
    /// What is wrong, and what to do.
    trouble: Option<String>,
}

impl Doctor {
    /// Exit code 0 if nothing is wrong with any endpoint, 69 otherwise.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let findings = examine_all(&self.cluster).await?;
        match self.output {
            DoctorFormat::Json => outln!("{:#}", findings.iter().map(Finding::json).collect::<Value>()),
            DoctorFormat::Table => show(&findings),
        }
        let all_fine = findings.iter().all(|finding| finding.trouble.is_none());
        Ok(if all_fine { ExitCode::SUCCESS } else { ExitCode::from(UNAVAILABLE) })
    }
}

/// What `rowlock doctor -o json` prints.
pub async fn document(cluster: &Cluster) -> Result<Value, Failure> {
    Ok(examine_all(cluster).await?.iter().map(Finding::json).collect())
}

/// Looks at all endpoints at once.
async fn examine_all(cluster: &Cluster) -> Result<Vec<Finding>, Failure> {
    let endpoints = cluster.endpoints()?;
    // The client's own judgement of what may be an endpoint.
    let config = cluster.client()?;
    config.validate().map_err(|e| Failure::new(crate::exit::USAGE, e))?;
    let (hosts, chroot) = endpoints.split_at(endpoints.find('/').unwrap_or(endpoints.len()));
    let secure = cluster.tls.secure()?;
    let timeout = cluster.connect_timeout.unwrap_or(SESSION);
    let mut asked = Vec::new();
    for host in hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
        let config = config.clone().endpoints(&format!("{host}{chroot}")).connect_timeout(timeout);
        let (endpoint, secure) = (with_port(host), secure.clone());
        asked.push(task::spawn("doctor", examine(endpoint, config, secure)));
    }
    let mut findings = Vec::new();
    for finding in asked {
        findings.extend(finding.await.ok());
    }
    Ok(findings)
}

fn with_port(host: &str) -> String {
    let is_bare = if host.starts_with('[') { host.ends_with(']') } else { !host.contains(':') };
    if is_bare { format!("{host}:2181") } else { host.to_owned() }
}

/// All steps at one endpoint, up to the first that fails.
async fn examine(endpoint: String, config: ClientBuilder, secure: Option<Secure>) -> Finding {
    let mut finding = Finding { endpoint, ..Finding::default() };
    let trouble = steps(&mut finding, config, secure).await.err();
    finding.trouble = trouble;
    finding
}

async fn steps(finding: &mut Finding, config: ClientBuilder, secure: Option<Secure>) -> Result<(), String> {
    let endpoint = finding.endpoint.clone();
    let resolved = time::timeout(STEP, net::addresses(&endpoint)).await;
    let resolved = resolved.map_err(|_| "no answer about its name; check DNS".to_owned())?;
    let resolved = resolved.map_err(|e| {
        let e = e.to_string();
        format!("{}; check the name", e.strip_prefix(&format!("{endpoint}: ")).unwrap_or(&e))
    })?;
    finding.addresses = Some(resolved.iter().map(|address| address.ip().to_string()).collect());
    let begun = time::now();
    let stream = connect(&endpoint, secure.as_ref()).await.map_err(|e| refused(&e))?;
    finding.connect = Some(begun.elapsed());
    let speech = match ask(stream, b"srvr").await {
        // A server of HTTP waits for the rest of its request, and then hangs up.
        nothing @ (Speech::Silence | Speech::HangsUp) => {
            let http = connect(&endpoint, secure.as_ref()).await.map_err(|e| refused(&e))?;
            match ask(http, b"GET / HTTP/1.0\r\n\r\n").await {
                Speech::Http => Speech::Http,
                _ => nothing,
            }
        }
        speech => speech,
    };
    let reason = match &speech {
        Speech::Serves { reason, silent_leaders, .. } => {
            finding.silent_leaders = *silent_leaders;
            reason.clone()
        }
        Speech::NotServing(reason) => reason.clone(),
        _ => None,
    };
    finding.speaks = Some(speech.judge()?);
    if let Some(reason) = reason {
        return Err(reason);
    }
    let begun = time::now();
    let client = config.connect().await.map_err(|e| e.to_string())?;
    finding.session = Some(begun.elapsed());
    let round_trip = round_trip(&client).await;
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
        std::io::ErrorKind::TimedOut => format!("{e}; is the host up, and lets a firewall us through?"),
        _ => e.to_string(),
    }
}

/// What a server answered to the first bytes.
#[derive(Debug, PartialEq, Eq)]
enum Speech {
    /// It serves. `reason`: why it opens no sessions.
    Serves {
        mode: String,
        reason: Option<String>,
        silent_leaders: u64,
    },
    /// It is a ZooKeeper or Rowlock without a quorum, or a Rowlock that says why it serves no clients.
    NotServing(Option<String>),
    Http,
    Tls,
    HangsUp,
    Silence,
    Odd,
}

impl Speech {
    fn of(answer: &[u8]) -> Speech {
        let text = String::from_utf8_lossy(answer);
        let value = |key: &str| text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()));
        match answer {
            [] => Speech::HangsUp,
            [0x15, 3, ..] => Speech::Tls,
            [b'H', b'T', b'T', b'P', b'/', ..] => Speech::Http,
            _ if text.contains("not currently serving") => Speech::NotServing(why_no_sessions(&text)),
            // The four-letter word was refused, which only such a server does.
            _ if text.contains("not executed because") => Speech::serves("serves"),
            _ => value("Mode:").map_or(Speech::Odd, |mode| Speech::Serves {
                mode,
                reason: why_no_sessions(&text),
                silent_leaders: value("Silent leaders:").and_then(|count| count.parse().ok()).unwrap_or(0),
            }),
        }
    }

    fn serves(mode: &str) -> Speech {
        Speech::Serves { mode: mode.to_owned(), reason: None, silent_leaders: 0 }
    }

    /// Its mode, or what is wrong.
    fn judge(self) -> Result<String, String> {
        Err(match self {
            Speech::Serves { mode, .. } => return Ok(mode),
            Speech::NotServing(Some(reason)) => return Err(reason),
            Speech::NotServing(None) => {
                "no quorum: it is in contact with no majority of the nodes, or has not caught up; see \
                 `rowlock status`"
            }
            Speech::Http => "this port speaks HTTP; give the one for clients (`client` in cluster.toml)",
            Speech::Tls => "it wants TLS; use --tls-ca, or give the port for plain clients",
            Speech::HangsUp => {
                "it hangs up: this may be the port for nodes (`peer`); give the one for clients (`client`)"
            }
            Speech::Silence => "it says nothing; it is no server for clients, or it hangs",
            Speech::Odd => "it does not speak ZooKeeper's protocol; check the port",
        }
        .to_owned())
    }
}

/// Sends these bytes and reads the answer to its end.
async fn ask(mut stream: Stream, question: &[u8]) -> Speech {
    let mut answer = Vec::new();
    let exchange = async {
        stream.write_all(question).await?;
        stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer).await
    };
    let ended = time::timeout(STEP, exchange).await;
    // A reset after the answer takes nothing back.
    match ended {
        Err(_) if answer.is_empty() => Speech::Silence,
        _ => Speech::of(&answer),
    }
}

/// Median round trip of requests that the leader answers.
async fn round_trip(client: &Client) -> Result<Duration, String> {
    let client = client.operation_timeout(STEP);
    let mut took = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let begun = time::now();
        client.sync("/").await.map_err(|e| format!("a session is open, and a request fails: {e}"))?;
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    Ok(took[took.len() / 2])
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
        // Where a step has failed, the following ones were not tried.
        let mut has_failed = false;
        let [resolves, connects, speaks, quorum, round_trip] = cells.map(|cell| match cell {
            Some(cell) => cell,
            None if std::mem::replace(&mut has_failed, true) => "-".to_owned(),
            None => "no".to_owned(),
        });
        [self.endpoint.clone(), resolves, connects, speaks, quorum, round_trip]
    }
}

fn show(findings: &[Finding]) {
    let rows: Vec<[String; 6]> = findings.iter().map(Finding::row).collect();
    out!("{}", table(["endpoint", "resolves", "connects", "speaks", "quorum", "round trip"], &rows));
    let paint = Paint::stdout();
    let troubled: Vec<&Finding> = findings.iter().filter(|finding| finding.trouble.is_some()).collect();
    for finding in &troubled {
        let trouble = finding.trouble.as_deref().unwrap_or_default();
        outln!("{}", paint.bad(&format!("{}: {trouble}", finding.endpoint)));
    }
    if troubled.is_empty() {
        outln!("{}", paint.good("nothing is wrong"));
    }
    for finding in findings.iter().filter(|finding| finding.silent_leaders > 0) {
        let (endpoint, count) = (&finding.endpoint, finding.silent_leaders);
        outln!(
            "{endpoint}: since its start this node has replaced {count} silent leader{}; if the number rises, the \
             election timeouts are too short for these machines: run `rowlock check perf`",
            if count == 1 { "" } else { "s" }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_of_an_answer_tell_what_a_port_is_for() {
        for (answer, speech) in [
            (&b""[..], Speech::HangsUp),
            (b"\x15\x03\x03\x00\x02\x02\x46", Speech::Tls),
            (b"HTTP/1.1 400 Bad Request\r\n", Speech::Http),
            (b"This ZooKeeper instance is not currently serving requests\n", Speech::NotServing(None)),
            (b"Zookeeper version: x\nMode: leader\n", Speech::serves("leader")),
            (
                b"Mode: leader\nSilent leaders: 3\nGrace: 28 s\n",
                Speech::Serves {
                    mode: "leader".to_owned(),
                    reason: Some("the cluster was restored: sessions are opened in 28 s, at most".to_owned()),
                    silent_leaders: 3,
                },
            ),
            (b"srvr is not executed because it is not in the whitelist.\n", Speech::serves("serves")),
            (b"220 mail ready\r\n", Speech::Odd),
        ] {
            assert_eq!(Speech::of(answer), speech);
        }
    }

    #[test]
    fn steps_behind_the_one_that_failed_are_not_shown_as_failed() {
        let finding = Finding {
            endpoint: "a:1".to_owned(),
            addresses: Some(vec!["10.0.0.1".to_owned()]),
            ..Finding::default()
        };
        assert_eq!(finding.row(), ["a:1", "10.0.0.1", "no", "-", "-", "-"]);
    }
}
