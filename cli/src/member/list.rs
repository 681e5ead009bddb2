//! `rowlock member ls`: lists the members with their states, and the number of tolerable failures. A member's
//! state comes from ZooKeeper's command `srvr` at its client address.

use std::collections::BTreeMap;
use std::process::ExitCode;

use rowlock_env::task;
use serde_json::{Value, json};

use super::membership;
use super::server::{MemberList, Server};
use crate::cluster::{Cluster, Secure, leave};
use crate::exit::{Failure, UNAVAILABLE};
use crate::moment;
use crate::print::{count, print};
use crate::status::srvr;
use crate::table::table;
use crate::znode::{Output, print_json};

/// Fewest missing writes that count as lag: writes go on during the queries.
const BEHIND_MIN: u64 = 10;

/// List members with state, release and addresses, and how many more voters may fail
#[derive(clap::Args)]
pub struct Ls {
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Ls {
    /// Exits with 0 if all members serve, else with 69.
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let found = membership(&client).await;
        leave(&client).await;
        let members = found?;
        let states = query_all(&self.cluster, &members).await?;
        match self.output {
            Output::Simple => print(listing(&members, &states).as_bytes())?,
            Output::Json => {
                let all: Vec<_> =
                    members.servers.iter().map(|(id, server)| document(&states, *id, server)).collect();
                let tolerates = members.tolerates(voters_up(&members, &states));
                print_json(&json!({ "members": all, "version": members.version, "tolerates": tolerates }))?;
            }
        }
        let all_up = states.values().all(MemberState::is_up);
        Ok(if all_up { ExitCode::SUCCESS } else { ExitCode::from(UNAVAILABLE) })
    }
}

fn document(states: &BTreeMap<u64, MemberState>, id: u64, server: &Server) -> Value {
    let (state, leader) = (&states[&id], leader(states));
    json!({
        "node": id,
        "votes": server.votes,
        "up": state.is_up(),
        "state": state.describe(leader, id),
        "behind": behind(states, id),
        "down_ms": leader.and_then(|leader| leader.silent.get(&id)).map(|silence| silence.ms),
        "release": state.release(),
        "peer": server.peer,
        "client": server.client,
    })
}

fn leader(states: &BTreeMap<u64, MemberState>) -> Option<&Serving> {
    states.values().find_map(MemberState::leader)
}

pub(super) fn voters_up(members: &MemberList, states: &BTreeMap<u64, MemberState>) -> usize {
    members.servers.iter().filter(|(id, server)| server.votes && states[id].is_up()).count()
}

/// Returns the number of writes by which a serving node lags behind the newest answer; `None` if the node
/// does not serve. All nodes are queried at the same time: a few missing writes under load are no lag.
fn behind(states: &BTreeMap<u64, MemberState>, id: u64) -> Option<u64> {
    let newest = states.values().filter_map(MemberState::zxid).max()?;
    Some(newest - states[&id].zxid()?)
}

fn listing(members: &MemberList, states: &BTreeMap<u64, MemberState>) -> String {
    let rows: Vec<[String; 6]> = members
        .servers
        .iter()
        .map(|(id, server)| {
            let role = if server.votes { "voter" } else { "learner" };
            let (peer, client) = (server.peer.clone(), server.client.clone());
            let release = states[id].release().unwrap_or("-").to_owned();
            let text = states[id].describe(leader(states), *id);
            let state = match behind(states, *id) {
                Some(writes @ BEHIND_MIN..) => format!("{text}, behind {writes}"),
                _ => text,
            };
            [id.to_string(), role.to_owned(), state, release, peer, client]
        })
        .collect();
    let up = voters_up(members, states);
    let verdict = match members.tolerates(up) {
        None => format!("{up} of {} answer: no majority", count(members.voters(), "voter")),
        Some(0) => "tolerates no failure".to_owned(),
        Some(more) => format!("tolerates {}", count(more, "failure")),
    };
    format!("{}{verdict}\n", table(["node", "role", "state", "release", "peer", "client"], &rows))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    Serves(Serving),
    NotServing,
    /// Drained by an operator: serves no clients.
    Drained,
    Silent(String),
}

/// Report of a node that serves clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    pub role: String,
    pub release: Option<String>,
    /// Zxid of the newest applied write.
    pub zxid: u64,
    /// Members silent for more than two seconds, in the answer of a leader.
    pub silent: BTreeMap<u64, Silence>,
}

/// Time since the leader last heard a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    pub ms: u64,
    /// True for a lower bound: the leader does not know the time before its election.
    pub is_least: bool,
}

impl Silence {
    fn text(self) -> String {
        let lasts = moment::span(i64::try_from(self.ms).unwrap_or(i64::MAX));
        if self.is_least { format!("{lasts} or more") } else { lasts }
    }
}

impl MemberState {
    fn serving(&self) -> Option<&Serving> {
        if let MemberState::Serves(serving) = self { Some(serving) } else { None }
    }

    /// Returns the zxid of the newest applied write, if the node serves.
    pub fn zxid(&self) -> Option<u64> {
        self.serving().map(|serving| serving.zxid)
    }

    pub fn is_up(&self) -> bool {
        matches!(self, MemberState::Serves(..))
    }

    /// Returns the release, if the node serves and reports one.
    pub fn release(&self) -> Option<&str> {
        self.serving()?.release.as_deref()
    }

    /// Describes the state, with the time since the leader last heard the member.
    pub fn describe(&self, leader: Option<&Serving>, node: u64) -> String {
        let Some(leader) = leader else { return self.text() };
        match (self, leader.silent.get(&node)) {
            (MemberState::Silent(why), Some(silence)) => format!("down {}: {why}", silence.text()),
            (MemberState::Silent(why), None) => format!("no answer: {why}; the leader hears it"),
            (_, Some(silence)) => {
                format!("{}, the leader has not heard it for {}", self.text(), silence.text())
            }
            (_, None) => self.text(),
        }
    }

    pub fn leader(&self) -> Option<&Serving> {
        self.serving().filter(|serving| matches!(&*serving.role, "leader" | "standalone"))
    }

    pub fn text(&self) -> String {
        match self {
            MemberState::Serves(serving) => serving.role.clone(),
            MemberState::NotServing => "not serving".to_owned(),
            MemberState::Drained => "drained".to_owned(),
            MemberState::Silent(why) => format!("no answer: {why}"),
        }
    }
}

pub async fn query_all(
    cluster: &Cluster,
    members: &MemberList,
) -> Result<BTreeMap<u64, MemberState>, Failure> {
    let secure = cluster.tls.secure()?;
    let queries: Vec<_> = members
        .servers
        .iter()
        .map(|(id, server)| {
            let (address, secure) = (server.client.clone(), secure.clone());
            (*id, task::spawn("srvr", async move { query(&address, secure).await }))
        })
        .collect();
    let mut states = BTreeMap::new();
    for (id, answer) in queries {
        states.insert(id, answer.await.unwrap_or_else(|e| MemberState::Silent(e.to_string())));
    }
    Ok(states)
}

async fn query(address: &str, secure: Option<Secure>) -> MemberState {
    match srvr(address, secure).await {
        Err(error) => MemberState::Silent(error.to_string()),
        Ok(answer) => parse(&answer),
    }
}

fn parse(srvr: &str) -> MemberState {
    match srvr.lines().find_map(|line| line.strip_prefix("Mode: ")) {
        Some(role) => {
            let (role, silent) = (role.trim().to_owned(), srvr.lines().filter_map(silence).collect());
            MemberState::Serves(Serving { role, release: release(srvr), zxid: zxid(srvr), silent })
        }
        None if srvr.lines().any(|line| line == "Drained: true") => MemberState::Drained,
        None => MemberState::NotServing,
    }
}

/// Parses the line `Zxid: 0x2f`; 0 without such a line.
fn zxid(srvr: &str) -> u64 {
    let hex = srvr.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
    hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// Parses a line `Silent: 4 34012 ms` or `Silent: 4 at least 34012 ms`.
fn silence(line: &str) -> Option<(u64, Silence)> {
    let (node, lasts) = line.strip_prefix("Silent: ")?.strip_suffix(" ms")?.split_once(' ')?;
    let (is_least, ms) = lasts.strip_prefix("at least ").map_or((false, lasts), |ms| (true, ms));
    Some((node.parse().ok()?, Silence { ms: ms.parse().ok()?, is_least }))
}

/// Parses the line `Zookeeper version: 3.9.3-rowlock-0.2.0`.
fn release(srvr: &str) -> Option<String> {
    let version = srvr.lines().find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    Some(version.split_once("-rowlock-")?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drained_node_differs_from_one_that_cannot_serve() {
        let not_serving = "This ZooKeeper instance is not currently serving requests\n";
        assert_eq!(parse(not_serving), MemberState::NotServing);
        assert_eq!(parse(&format!("{not_serving}Drained: true\n")), MemberState::Drained);
        let serving =
            Serving { role: "leader".to_owned(), release: None, zxid: 0x2f, silent: BTreeMap::new() };
        assert_eq!(parse("Zxid: 0x2f\nMode: leader\n"), MemberState::Serves(serving));
    }

    #[test]
    fn the_leader_reports_the_silence_of_each_member() {
        let leading = parse("Mode: leader\nSilent: 4 34012 ms\nSilent: 5 at least 125000 ms\nSilent: x\n");
        let (leader, gone) = (leading.leader(), MemberState::Silent("refused".to_owned()));
        assert_eq!(gone.describe(leader, 4), "down 34 s: refused");
        assert_eq!(gone.describe(leader, 5), "down 2 min 5 s or more: refused");
        assert_eq!(gone.describe(leader, 2), "no answer: refused; the leader hears it");
        assert_eq!(gone.describe(None, 4), "no answer: refused");
        let cut_off = MemberState::NotServing.describe(leader, 4);
        assert_eq!(cut_off, "not serving, the leader has not heard it for 34 s");
        assert_eq!(leading.describe(leader, 1), "leader");
        assert_eq!(parse("Mode: follower\nSilent: 4 34012 ms\n").leader(), None);
    }

    #[test]
    fn the_release_follows_the_dialect_in_the_answer_to_srvr() {
        let answer = "Zookeeper version: 3.9.3-rowlock-0.2.0\nMode: leader\n";
        assert_eq!(release(answer).as_deref(), Some("0.2.0"));
        assert_eq!(release("Zookeeper version: 3.9.3--1, built on\n"), None);
    }
}
