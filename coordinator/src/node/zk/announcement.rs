//! The znode by which a node says what it understands beyond ZooKeeper's protocol, and which node leads
//! (docs/protocol.md).
//!
//! It belongs to the binary and not to the state: no log entry makes it, no list of children shows it (a copy
//! of the tree must not try to copy it), and it is readable on a node without a quorum. For reads it stands
//! in front of the state; writes go to the state, which keeps its name free.

use bytes::Bytes;
use rowlock_env::sync::watch;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_proto::{ClusterId, Stat};
use rowlock_state::Machine;
use rowlock_types::status::Status;

use crate::config::NodeConfig;
use crate::delivery::registry::Door;

/// One `name version` per line.
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
    /// By which listener the client has come: so it gets to the leader, too.
    pub(super) door: Door,
}

impl<'a> Whereabouts<'a> {
    /// Whether this node leads.
    fn leads(self) -> bool {
        let status = self.status.borrow();
        status.leader == Some(status.node)
    }

    /// Nothing without a leader, or if `cluster.toml` does not name it (it was added later) or no such
    /// listener of it.
    fn leader(self) -> Option<&'a str> {
        let leader = self.status.borrow().leader?;
        let entry = self.config.nodes.iter().find(|member| member.id == leader)?;
        match self.door {
            Door::Plain => entry.client_addr.as_deref(),
            Door::Secure => entry.secure_client_addr.as_deref(),
        }
    }
}

/// Data and Stat, if the path is the announcement's. `invite` says whether the reader may move to the leader;
/// asked once, if there is one elsewhere.
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

/// Everyone may read it, and do nothing else.
pub(super) fn acl() -> Vec<Acl> {
    vec![Acl { perms: perms::READ, id: Id::anyone() }]
}

/// The Stat of a znode as clients see it, whatever their permissions, but for the length: of the
/// announcement, which is as if it had never changed, or of the state's.
pub(super) fn stat(machine: &Machine, path: &str) -> Option<Stat> {
    if path == ANNOUNCEMENT { Some(Stat::default()) } else { machine.stat(path) }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::NodeId;

    use super::*;
    use crate::config::NodeEntry;

    #[test]
    fn the_leader_is_named_while_it_is_known_and_in_the_configuration() {
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
