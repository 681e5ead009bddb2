//! Status of a node: the fields of `/v1/status` shown by the command line.

use std::time::Duration;

use rowlock_env::task;
use serde_json::Value;

use crate::http_get::{self, HttpAccess};

/// Deadline of one answer. A node answers from memory: a second is long.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);

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
