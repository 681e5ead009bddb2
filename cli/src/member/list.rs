//! `rowlock member ls`: who belongs to the cluster, who answers, and how many more may fail.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::membership;
use super::server::{MemberList, Server};
use super::state::{MemberState, Serving, ask_all};
use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, UNAVAILABLE};
use crate::print::print;
use crate::table::table;
use crate::znode::{Output, print_json};

/// A node that lacks fewer writes is not late: writes go on while the nodes are asked.
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
    /// Exit code 0 if all members serve, 69 otherwise.
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let found = membership(&client).await;
        leave(&client).await;
        let members = found?;
        let states = ask_all(&self.cluster, &members).await?;
        match self.output {
            Output::Simple => print(shown(&members, &states).as_bytes())?,
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

/// What the leader says, if it has answered.
fn leader(states: &BTreeMap<u64, MemberState>) -> Option<&Serving> {
    states.values().find_map(MemberState::leader)
}

/// How many of those that vote serve.
pub(super) fn voters_up(members: &MemberList, states: &BTreeMap<u64, MemberState>) -> usize {
    members.servers.iter().filter(|(id, server)| server.votes && states[id].is_up()).count()
}

/// How many writes a node lacks that another one had applied when it was asked: nodes are asked at once, so
/// one that lacks a few under load is no late one. `None`: it does not serve.
fn behind(states: &BTreeMap<u64, MemberState>, id: u64) -> Option<u64> {
    let newest = states.values().filter_map(MemberState::zxid).max()?;
    Some(newest - states[&id].zxid()?)
}

fn shown(members: &MemberList, states: &BTreeMap<u64, MemberState>) -> String {
    let rows: Vec<[String; 6]> = members
        .servers
        .iter()
        .map(|(id, server)| {
            let role = if server.votes { "voter" } else { "learner" };
            let (peer, client) = (server.peer.clone(), server.client.clone());
            let release = states[id].release().unwrap_or("-").to_owned();
            let told = states[id].describe(leader(states), *id);
            let state = match behind(states, *id) {
                Some(writes @ BEHIND_MIN..) => format!("{told}, behind {writes}"),
                _ => told,
            };
            [id.to_string(), role.to_owned(), state, release, peer, client]
        })
        .collect();
    let up = voters_up(members, states);
    let verdict = match members.tolerates(up) {
        None => format!("{up} of {} voters answer: no majority", members.voters()),
        Some(0) => "tolerates no failure".to_owned(),
        Some(1) => "tolerates 1 failure".to_owned(),
        Some(more) => format!("tolerates {more} failures"),
    };
    format!("{}{verdict}\n", table(["node", "role", "state", "release", "peer", "client"], &rows))
}
