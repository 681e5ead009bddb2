//! The announcement: a znode with the node's extensions of ZooKeeper's protocol and the leader's address
//! (docs/protocol.md).
//!
//! The announcement belongs to the binary and not to the state: no log entry creates it, no list of children
//! shows it (a copy of the tree must not contain it), and a node without a quorum serves it. Reads find the
//! announcement before the state; writes go to the state, where the name stays free.

use bytes::Bytes;
use rowlock_consensus::status::Status;
use rowlock_env::sync::watch;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_proto::{ClusterId, Stat};
use rowlock_state::Machine;

use crate::config::NodeConfig;
use crate::node::delivery::registry::Door;

/// Supported extensions, one `name version` per line.
const TEXT: &str = match (cfg!(feature = "access"), cfg!(feature = "cluster")) {
    (true, true) => "acquire 3\ntagged 1\nsession-options 1\nreport 1\noperate 1\n",
    (true, false) => "acquire 3\ntagged 1\nsession-options 1\nreport 1\n",
    (false, true) => "acquire 3\ntagged 1\nsession-options 1\noperate 1\n",
    (false, false) => "acquire 3\ntagged 1\nsession-options 1\n",
};

/// Sources of the leader's client address.
#[derive(Clone, Copy)]
pub(super) struct Whereabouts<'a> {
    pub(super) status: &'a watch::Receiver<Status>,
    pub(super) config: &'a NodeConfig,
    /// Listener of the client, which selects the leader's address.
    pub(super) door: Door,
}

impl<'a> Whereabouts<'a> {
    /// Returns whether this node leads.
    fn leads(self) -> bool {
        let status = self.status.borrow();
        status.leader == Some(status.node)
    }

    /// Returns the leader's client address: `None` without a leader, if `cluster.toml` does not list the
    /// leader (an operator added it later), or if the leader lacks such a listener.
    fn leader(self) -> Option<&'a str> {
        let leader = self.status.borrow().leader?;
        let entry = self.config.nodes.iter().find(|member| member.id == leader)?;
        match self.door {
            Door::Plain => entry.client_addr.as_deref(),
            Door::Secure => entry.secure_client_addr.as_deref(),
        }
    }
}

/// Returns data and Stat, if the path is the announcement's. `invite` decides whether the reader should move
/// to the leader; it is called once, if another node leads.
pub(super) fn shown(
    path: &str,
    whereabouts: Whereabouts<'_>,
    cluster: Option<ClusterId>,
    invite: impl FnOnce() -> bool,
) -> Option<(Bytes, Stat)> {
    if path != ANNOUNCEMENT {
        return None;
    }
    let cluster = cluster.map(|id| format!("cluster {id}\n")).unwrap_or_default();
    let leader = whereabouts.leader().map(|address| format!("leader {address}\n"));
    let is_invited = leader.is_some() && !whereabouts.leads() && invite();
    let (leader, invites) = (leader.unwrap_or_default(), if is_invited { "invites 1\n" } else { "" });
    let data = Bytes::from(format!("{TEXT}{cluster}{leader}{invites}"));
    let stat = Stat { data_length: data.len() as i32, ..Stat::default() };
    Some((data, stat))
}

/// Returns the ACL: any client may read, no client may do more.
pub(super) fn acl() -> Vec<Acl> {
    vec![Acl { perms: perms::READ, id: Id::anyone() }]
}

/// Returns a znode's Stat without checking permissions: the announcement's, as if it had never changed and
/// without its length, or the state's.
pub(super) fn stat(machine: &Machine, path: &str) -> Option<Stat> {
    if path == ANNOUNCEMENT { Some(Stat::default()) } else { machine.stat(path) }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::NodeId;

    use super::*;
    use crate::config::NodeEntry;

    #[test]
    fn a_known_and_configured_leader_is_announced() {
        let mut config = NodeConfig::single("/data");
        let entry = config.nodes[0].clone();
        let of = |n: u64| NodeEntry {
            api_addr: None,
            id: NodeId(n),
            client_addr: Some(format!("10.0.0.{n}:2181")),
            secure_client_addr: (n == 2).then(|| "10.0.0.2:2182".to_owned()),
            ..entry.clone()
        };
        config.nodes = vec![of(1), of(2)];
        let shown_by = |door, leader: Option<u64>, cluster, invite: fn() -> bool| {
            let status = Status { node: NodeId(1), leader: leader.map(NodeId), ..Status::default() };
            let (_, status) = watch::channel(status);
            let whereabouts = Whereabouts { status: &status, config: &config, door };
            let (data, stat) = shown(ANNOUNCEMENT, whereabouts, cluster, invite).unwrap();
            assert_eq!(stat.data_length as usize, data.len());
            String::from_utf8(data.to_vec()).unwrap()
        };
        let by = |door, leader| shown_by(door, leader, None, || false);
        let text = |leader| by(Door::Plain, leader);
        assert_eq!(text(None), TEXT);
        assert_eq!(text(Some(2)), format!("{TEXT}leader 10.0.0.2:2181\n"));
        assert_eq!(text(Some(3)), TEXT, "added later, and unknown here");
        assert_eq!(by(Door::Secure, Some(2)), format!("{TEXT}leader 10.0.0.2:2182\n"));
        assert_eq!(by(Door::Secure, Some(1)), TEXT, "it has no such listener");
        let cluster = Some(ClusterId(0xc1));
        assert_eq!(
            shown_by(Door::Plain, None, cluster, || false),
            format!("{TEXT}cluster {}\n", ClusterId(0xc1))
        );
        let invited = |leader| shown_by(Door::Plain, Some(leader), None, || true);
        assert_eq!(invited(2), format!("{TEXT}leader 10.0.0.2:2181\ninvites 1\n"));
        assert_eq!(invited(1), format!("{TEXT}leader 10.0.0.1:2181\n"), "it is here");
        assert_eq!(invited(3), TEXT, "no client would know where to go");
    }
}
