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
    /// It serves: `leader`, `follower`, `observer`.
    Serves(String),
    /// It answers, and serves no clients.
    Stands,
    /// It does not answer, for this reason.
    Silent(String),
}

impl State {
    /// Whether it serves clients.
    pub fn is_up(&self) -> bool {
        matches!(self, State::Serves(_))
    }

    /// For people.
    pub fn text(&self) -> String {
        match self {
            State::Serves(role) => role.clone(),
            State::Stands => "not serving".to_owned(),
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
        Ok(answer) => match answer.lines().find_map(|line| line.strip_prefix("Mode: ")) {
            Some(role) => State::Serves(role.trim().to_owned()),
            None => State::Stands,
        },
    }
}
