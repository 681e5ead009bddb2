//! `rowlock status`: prints a line per node, from the node's HTTP listener (`/v1/status`), or from its client
//! port if HTTP is not configured.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::net::Stream;
use rowlock_env::{task, time};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Cluster, Secure};
use crate::exit::{Failure, UNAVAILABLE};
use crate::http_get::{self, HttpAccess};
use crate::http_get::{Addresses, HttpNodes};
use crate::print::{out, outln};
use crate::table::table;

/// Deadline of one answer. A node answers from memory: a second is long.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// Longest answer to `srvr`, normally a dozen short lines.
const ANSWER_MAX_BYTES: u64 = 64 << 10;

/// Show each node's role, position and load
#[derive(clap::Args)]
pub struct Status {
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    nodes: HttpNodes,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: StatusFormat,
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum StatusFormat {
    /// Aligned columns, for people.
    #[default]
    Table,
    /// JSON: the nodes' complete status documents.
    Json,
}

struct Line {
    cells: [String; 8],
    json: Value,
    answered: bool,
}

impl Status {
    /// Queries all nodes. Exits with 0 if all answer and serve, else with 69.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let lines = self.lines().await?;
        match self.output {
            StatusFormat::Json => {
                let all: Vec<&Value> = lines.iter().map(|line| &line.json).collect();
                outln!("{:#}", json!(all));
            }
            StatusFormat::Table => {
                let head = ["node", "address", "role", "term", "applied", "zxid", "sessions", "connections"];
                let rows: Vec<[String; 8]> = lines.iter().map(|line| line.cells.clone()).collect();
                out!("{}", table(head, &rows));
            }
        }
        Ok(if lines.iter().all(|line| line.answered) {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(UNAVAILABLE)
        })
    }

    async fn lines(&self) -> Result<Vec<Line>, Failure> {
        if let Some(Addresses { all, access }) = self.nodes.find(&self.cluster)? {
            let answers = fetch_all(&all, &access).await;
            let lines = all.iter().zip(answers);
            return Ok(lines
                .map(|(addr, answer)| answer.map_or_else(|e| silent(addr, &e), |r| line(addr, r)))
                .collect());
        }
        let endpoints = self.cluster.endpoints()?;
        let hosts = endpoints.split('/').next().unwrap_or_default();
        let secure = self.cluster.tls.secure()?;
        Ok(by_srvr(hosts.split(',').map(|host| host.trim().to_owned()).collect(), secure).await)
    }
}

fn line(addr: &str, report: Report) -> Line {
    let grace = report.raw["restore_grace_s"].as_u64().filter(|left| *left > 0);
    let grace = grace.map(|left| format!("grace: sessions in {left} s"));
    let waits = report.raw["raft"]["waits_for"].as_array().filter(|nodes| !nodes.is_empty());
    let waits = waits.map(|nodes| {
        let nodes: Vec<String> = nodes.iter().map(Value::to_string).collect();
        format!("waits for node {}", nodes.join(", "))
    });
    let troubles = [
        (report.raw["disk_hangs"] == true, "disk hangs"),
        (report.raw["commits_stalled"] == true, "no commits"),
        (!report.serving, "not serving"),
        (report.raw["forgotten"] == true, "lost unflushed locks with the power, not admitted yet"),
    ];
    let trouble = troubles.iter().find(|(is_so, _)| *is_so).map(|(_, text)| (*text).to_owned());
    let trouble = waits.or(trouble).or(grace);
    let role = trouble.as_ref().map_or(report.role.clone(), |trouble| format!("{} ({trouble})", report.role));
    let cells = [
        report.node.to_string(),
        addr.to_owned(),
        role,
        report.term.to_string(),
        report.applied_index.to_string(),
        format!("{:#x}", report.zxid),
        report.sessions.to_string(),
        report.connections.to_string(),
    ];
    Line { cells, json: document(addr, None, report.raw), answered: trouble.is_none() }
}

fn silent(addr: &str, e: &std::io::Error) -> Line {
    let mut cells = std::array::from_fn(|_| "-".to_owned());
    cells[1] = addr.to_owned();
    cells[2] = format!("no answer: {e}");
    Line { cells, json: document(addr, Some(&e.to_string()), json!({})), answered: false }
}

/// Returns a node's status document with the address and the error. These keys are there whatever is known:
/// null without a value.
fn document(addr: &str, error: Option<&str>, status: Value) -> Value {
    let mut document = json!({
        "address": addr, "error": error, "node": null, "serving": false, "connections": null,
        "raft": {"role": null, "term": null, "leader": null, "applied_index": null},
        "state": {"zxid": null, "sessions": null},
    });
    merge(&mut document, status);
    document
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

async fn by_srvr(addrs: Vec<String>, secure: Option<Secure>) -> Vec<Line> {
    let queries: Vec<_> = addrs
        .into_iter()
        .map(|addr| {
            let secure = secure.clone();
            task::spawn("srvr", async move {
                let answer = srvr(&addr, secure).await;
                answer.map_or_else(|e| silent(&addr, &e), |text| srvr_line(&addr, &text))
            })
        })
        .collect();
    let mut lines = Vec::with_capacity(queries.len());
    for line in queries {
        lines.push(line.await.unwrap_or_else(|e| silent("?", &std::io::Error::other(e))));
    }
    lines
}

/// Sends ZooKeeper's four-letter word `srvr` to a client address; returns the answer.
pub async fn srvr(addr: &str, secure: Option<Secure>) -> std::io::Result<String> {
    let exchange = async {
        let mut stream = Stream::connect(addr, ANSWER_DEADLINE).await?;
        if let Some(secure) = secure {
            stream = secure.connect(stream, addr).await?;
        }
        stream.write_all(b"srvr").await?;
        let mut answer = String::new();
        stream.take(ANSWER_MAX_BYTES).read_to_string(&mut answer).await?;
        Ok(answer)
    };
    time::timeout(ANSWER_DEADLINE, exchange)
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

fn srvr_line(addr: &str, answer: &str) -> Line {
    let value = |key: &str| {
        let found = answer.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(": "));
        found.map(|v| v.trim().to_owned())
    };
    let mode = value("Mode");
    let mut cells = std::array::from_fn(|_| "-".to_owned());
    cells[1] = addr.to_owned();
    let reason = why_no_sessions(answer);
    cells[2] = match (&mode, &reason) {
        (Some(mode), None) => mode.clone(),
        (Some(mode), Some(why)) => format!("{mode} ({why})"),
        (None, why) => why.clone().unwrap_or_else(|| "not serving".to_owned()),
    };
    cells[5] = value("Zxid").unwrap_or_else(|| "-".to_owned());
    cells[7] = value("Connections").unwrap_or_else(|| "-".to_owned());
    let zxid = value("Zxid").and_then(|hex| i64::from_str_radix(hex.strip_prefix("0x")?, 16).ok());
    let connections = value("Connections").and_then(|count| count.parse::<u64>().ok());
    let answered = mode.is_some() && reason.is_none();
    let known = json!({
        "serving": answered, "connections": connections, "raft": {"role": mode}, "state": {"zxid": zxid},
    });
    Line { cells, json: document(addr, reason.as_deref(), known), answered }
}

/// Returns a node's reason for refusing sessions, from its answer to `srvr`.
pub fn why_no_sessions(srvr: &str) -> Option<String> {
    let value = |key: &str| srvr.lines().find_map(|line| line.strip_prefix(key));
    let grace = value("Grace: ").map(|left| {
        format!("the cluster was restored or lost power: sessions are opened in {left}, at most")
    });
    grace.or_else(|| value("Reason: ").map(str::to_owned))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub node: u64,
    /// leader, follower, candidate or learner.
    pub role: String,
    pub term: u64,
    pub leader: Option<u64>,
    pub serving: bool,
    pub applied_index: u64,
    pub zxid: i64,
    pub digest: String,
    /// Open sessions of the cluster in the node's applied state.
    pub sessions: u64,
    pub connections: u64,
    pub raw: Value,
}

impl Report {
    /// Fetches the status from the node's HTTP listener at `addr`.
    pub async fn fetch(addr: &str, access: &HttpAccess) -> std::io::Result<Report> {
        let raw = http_get::json(addr, "/v1/status", access, ANSWER_DEADLINE).await?;
        Report::read(raw).ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{addr} is not a Rowlock node"))
        })
    }

    fn read(raw: Value) -> Option<Report> {
        let (raft, state) = (&raw["raft"], &raw["state"]);
        Some(Report {
            node: raw["node"].as_u64()?,
            role: raft["role"].as_str()?.to_owned(),
            term: raft["term"].as_u64()?,
            leader: raft["leader"].as_u64(),
            serving: raw["serving"].as_bool()?,
            applied_index: state["applied_index"].as_u64()?,
            zxid: state["zxid"].as_i64()?,
            digest: state["digest"].as_str()?.to_owned(),
            sessions: state["sessions"].as_u64()?,
            connections: raw["connections"].as_u64()?,
            raw,
        })
    }
}

/// Fetches the status of all nodes concurrently; the results are in the order of `addrs`.
pub async fn fetch_all(addrs: &[String], access: &HttpAccess) -> Vec<std::io::Result<Report>> {
    let fetches: Vec<_> = addrs
        .iter()
        .map(|addr| {
            let (addr, access) = (addr.clone(), access.clone());
            task::spawn("status", async move { Report::fetch(&addr, &access).await })
        })
        .collect();
    let mut answers = Vec::with_capacity(fetches.len());
    for answer in fetches {
        answers.push(answer.await.unwrap_or_else(|e| Err(std::io::Error::other(e))));
    }
    answers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn srvr_answer_fills_what_it_knows() {
        let line = srvr_line("h:1", "Zookeeper version: x\nConnections: 4\nZxid: 0x1f\nMode: leader\n");
        assert_eq!(line.cells, ["-", "h:1", "leader", "-", "-", "0x1f", "-", "4"]);
        assert!(line.answered);
        let restored = srvr_line("h:1", "Mode: leader\nGrace: 28 s\n");
        assert!(!restored.answered && restored.cells[2].contains("sessions are opened in 28 s"));
        let alone = srvr_line(
            "h:1",
            "This ZooKeeper instance is not currently serving requests\nReason: no quorum\n",
        );
        assert!(!alone.answered && alone.cells[2] == "no quorum");
        assert!(!srvr_line("h:1", "This ZooKeeper instance is not currently serving requests\n").answered);
    }

    #[test]
    fn status_document_of_a_node_is_read() {
        let raw = json!({
            "node": 2, "serving": true, "connections": 3,
            "raft": {"role": "leader", "term": 7, "leader": 2},
            "state": {"applied_index": 40, "zxid": 99, "digest": "ab", "sessions": 5},
        });
        let report = Report::read(raw).unwrap();
        assert_eq!((report.node, report.role.as_str(), report.term), (2, "leader", 7));
        assert_eq!((report.leader, report.zxid, report.sessions), (Some(2), 99, 5));
    }

    #[test]
    fn a_foreign_document_is_no_status() {
        assert_eq!(Report::read(json!({"status": "ok"})), None);
    }
}
