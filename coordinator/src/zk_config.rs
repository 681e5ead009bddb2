//! Keeps `/zookeeper/config` equal to the membership: Curator and others read it, watch it, and go to the
//! client addresses that it lists.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_types::reconfiguration::Members;
use tokio::sync::mpsc;

use crate::replica::Replica;

/// How often the leader compares. A change is rare, and a proposal that got lost is made again.
const EVERY: Duration = Duration::from_millis(100);

/// What the task needs.
pub struct ZkConfig {
    /// This node.
    pub me: NodeId,
    /// The membership.
    pub raft: Raft,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// What is written there now.
    pub replica: Arc<Replica>,
    /// Where the command goes.
    pub batcher: mpsc::Sender<TermBatch>,
}

impl ZkConfig {
    /// Runs until `shutdown`.
    pub async fn run(self, shutdown: Shutdown) {
        let mut leadership = self.leadership.clone();
        loop {
            let view = *leadership.borrow_and_update();
            if view.ready && view.leader == Some(self.me) {
                self.write_if_changed(view.term);
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                changed = leadership.changed() => if changed.is_err() { return },
                () = time::sleep_about(EVERY) => {}
            }
        }
    }

    fn write_if_changed(&self, term: u64) {
        // On the way from one set of voters to another: what is written stands until the new set is in force.
        let Some((members, version)) = facts::settled_members(&self.raft) else { return };
        let config = text(&members, version);
        let current = self.replica.state.read().get_data("/zookeeper/config", &[]);
        if matches!(current, Ok((Some(data), _)) if data == config.as_bytes()) {
            return;
        }
        let proposal = Proposal {
            origin: Origin::default(),
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command: Command::Configure { config },
        };
        // A full queue: tried again.
        let _ = self.batcher.try_send(TermBatch { term, proposals: vec![proposal] });
    }
}

/// ZooKeeper's dynamic configuration: a line per server, then the version (here the log index of the
/// membership).
fn text(members: &Members, version: u64) -> String {
    let mut out = String::new();
    for (id, member) in &members.nodes {
        let role = if members.voters.contains(id) { "participant" } else { "observer" };
        // Clients read only what follows the `;`.
        let _ = writeln!(out, "server.{id}={}:{role};{}", member.zookeeper_addr(), member.client_addr);
    }
    let _ = write!(out, "version={version:x}");
    out
}

#[cfg(test)]
mod tests {
    use rowlock_types::member::Member;

    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

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
            "server.1=10.0.0.1:2281:2281:participant;10.0.0.1:2181\n\
             server.2=10.0.0.2:2281:2281:observer;10.0.0.2:2181\n\
             version=0"
        );
    }
}
