//! `rowlock member ls`: lists the members with their states, and the number of tolerable failures.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::membership;
use super::server::{MemberList, Server};
use super::state::{MemberState, Serving, query_all};
use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, UNAVAILABLE};
use crate::print::print;
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
        None => format!("{up} of {} voters answer: no majority", members.voters()),
        Some(0) => "tolerates no failure".to_owned(),
        Some(1) => "tolerates 1 failure".to_owned(),
        Some(more) => format!("tolerates {more} failures"),
    };
    format!("{}{verdict}\n", table(["node", "role", "state", "release", "peer", "client"], &rows))
}
