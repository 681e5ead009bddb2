//! What each member says of itself, asked at the address for clients by ZooKeeper's word `srvr`.

use std::collections::BTreeMap;

use rowlock_env::task;

use super::server::Membership;
use crate::cluster::{Cluster, Secure};
use crate::exit::Failure;
use crate::status::srvr;

/// What a member does, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It serves.
    Serves(Serving),
    /// It answers, and serves no clients.
    Stands,
    /// The same, because an operator has drained it.
    Drained,
    /// It does not answer, for this reason.
    Silent(String),
}

/// What a node that serves says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// `leader`, `follower`, `observer`.
    pub role: String,
    /// Its release, if it says so.
    pub release: Option<String>,
    /// The newest write that it has applied.
    pub zxid: u64,
}

impl State {
    /// The newest write that it has applied, if it is up.
    pub fn zxid(&self) -> Option<u64> {
        match self {
            State::Serves(serving) => Some(serving.zxid),
            State::Stands | State::Drained | State::Silent(_) => None,
        }
    }

    /// Whether it serves clients.
    pub fn is_up(&self) -> bool {
        matches!(self, State::Serves(..))
    }

    /// Its release, if it is up and says so.
    pub fn release(&self) -> Option<&str> {
        match self {
            State::Serves(serving) => serving.release.as_deref(),
            State::Stands | State::Drained | State::Silent(_) => None,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        match self {
            State::Serves(serving) => serving.role.clone(),
            State::Stands => "not serving".to_owned(),
            State::Drained => "drained".to_owned(),
            State::Silent(why) => format!("no answer: {why}"),
        }
    }
}

/// Asks all members at once.
pub async fn ask_all(cluster: &Cluster, members: &Membership) -> Result<BTreeMap<u64, State>, Failure> {
    let secure = cluster.tls.secure()?;
    let asked: Vec<_> = members
        .servers
        .iter()
        .map(|(id, server)| {
            let (address, secure) = (server.client.clone(), secure.clone());
            (*id, task::spawn("srvr", async move { ask(&address, secure).await }))
        })
        .collect();
    let mut states = BTreeMap::new();
    for (id, answer) in asked {
        states.insert(id, answer.await.unwrap_or_else(|e| State::Silent(e.to_string())));
    }
    Ok(states)
}

async fn ask(address: &str, secure: Option<Secure>) -> State {
    match srvr(address, secure).await {
        Err(error) => State::Silent(error.to_string()),
        Ok(answer) => said(&answer),
    }
}

/// What an answer to `srvr` says.
fn said(srvr: &str) -> State {
    match srvr.lines().find_map(|line| line.strip_prefix("Mode: ")) {
        Some(role) => {
            State::Serves(Serving { role: role.trim().to_owned(), release: release(srvr), zxid: zxid(srvr) })
        }
        None if srvr.lines().any(|line| line == "Drained: true") => State::Drained,
        None => State::Stands,
    }
}

/// What the line `Zxid: 0x2f` says; 0 without it.
fn zxid(srvr: &str) -> u64 {
    let said = srvr.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
    said.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// What the line `Zookeeper version: 3.9.3-rowlock-0.2.0` says.
fn release(srvr: &str) -> Option<String> {
    let version = srvr.lines().find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    Some(version.split_once("-rowlock-")?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_serves_nobody_says_whether_an_operator_has_drained_it() {
        let standing = "This ZooKeeper instance is not currently serving requests\n";
        assert_eq!(said(standing), State::Stands);
        assert_eq!(said(&format!("{standing}Drained: true\n")), State::Drained);
        let serving = Serving { role: "leader".to_owned(), release: None, zxid: 0x2f };
        assert_eq!(said("Zxid: 0x2f\nMode: leader\n"), State::Serves(serving));
    }

    #[test]
    fn the_release_stands_behind_the_dialect_in_the_answer_to_srvr() {
        let answer = "Zookeeper version: 3.9.3-rowlock-0.2.0\nMode: leader\n";
        assert_eq!(release(answer).as_deref(), Some("0.2.0"));
        assert_eq!(release("Zookeeper version: 3.9.3--1, built on\n"), None);
    }
}
