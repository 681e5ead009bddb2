//! Keeps `/zookeeper/config` equal to the membership: Curator and other clients read and watch that znode,
//! and connect to the client addresses in its text.

use std::fmt::Write as _;

use rowlock_consensus::reconfiguration::Members;
use rowlock_state::Machine;
use rowlock_state::command::Command;

/// Returns the command that writes the membership to `/zookeeper/config`, if the text differs.
pub(super) fn due(state: &Machine, members: &Members, version: u64) -> Option<Command> {
    let config = text(members, version);
    let current = state.get_data("/zookeeper/config", &[]);
    let is_current = matches!(current, Ok((Some(data), _)) if data == config.as_bytes());
    (!is_current).then_some(Command::Configure { config })
}

/// Formats the membership as ZooKeeper's dynamic configuration: a line per server, then the version (here the
/// log index of the membership).
fn text(members: &Members, version: u64) -> String {
    let mut out = String::new();
    for (id, member) in &members.nodes {
        let role = if members.voters.contains(id) { "participant" } else { "observer" };
        // Curator parses the line as ZooKeeper's server does, and uses the part after the `;`.
        let _ = writeln!(out, "server.{id}={}:{role};{}", member.zookeeper_addr(), member.client_addr);
    }
    let _ = write!(out, "version={version:x}");
    out
}

#[cfg(test)]
mod tests {
    use rowlock_proto::NodeId;
    use rowlock_wal::entry::Member;

    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn each_change_of_the_members_is_written_once() {
        let (mut state, members) = (Machine::new(), |voters: &[u64]| {
            let member = |id: u64| Member { peer_addr: format!("p{id}:1"), client_addr: format!("c{id}:2") };
            let nodes = voters.iter().map(|id| (NodeId(*id), member(*id))).collect();
            Members { nodes, voters: voters.iter().map(|id| NodeId(*id)).collect() }
        });
        for (voters, version) in [(&[1][..], 5), (&[1, 2], 5), (&[1, 2], 6)] {
            let command = due(&state, &members(voters), version).expect("it has changed");
            state
                .apply(1_000, &crate::node::proposer::of_the_cluster(command), &mut ())
                .result
                .expect("is taken");
            assert_eq!(due(&state, &members(voters), version), None);
        }
    }

    #[test]
    fn the_text_lists_client_addresses_as_zookeeper_does() {
        let member = |n: u64| Member {
            peer_addr: format!("10.0.0.{n}:2281"),
            client_addr: format!("10.0.0.{n}:2181"),
        };
        let nodes: BTreeMap<NodeId, Member> = (1..=2).map(|n| (NodeId(n), member(n))).collect();
        let text = text(&Members { nodes, voters: BTreeSet::from([NodeId(1)]) }, 0);
        assert_eq!(
            text,
            "server.1=10.0.0.1:2281:2282:participant;10.0.0.1:2181\n\
             server.2=10.0.0.2:2281:2282:observer;10.0.0.2:2181\n\
             version=0"
        );
    }
}
