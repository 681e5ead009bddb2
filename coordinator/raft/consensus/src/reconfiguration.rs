//! A reconfiguration in the text form of ZooKeeper's clients, and the resulting membership. Pure.
//!
//! The node that receives the request checks the form here; the leader computes the new membership here. Must
//! never accept a text that ZooKeeper's server refuses.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{ErrorCode, NodeId};
use rowlock_wal::entry::{Member, election_port};
use serde::{Deserialize, Serialize};

/// Valid node ids. ZooKeeper's session ids have the server's number in their top byte, where 0 and 0xff have
/// other meanings.
const NODE_IDS: std::ops::RangeInclusive<u64> = 1..=254;

/// A reconfig request as received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// `server.N=host:peer:election[:role];[host:]client`, separated by commas.
    pub joining: Option<String>,
    /// Ids of servers, separated by commas.
    pub leaving: Option<String>,
    /// The whole new list, separated by commas or newlines; then the node ignores the other two fields.
    pub new_members: Option<String>,
    /// Required version of /zookeeper/config, -1 for any.
    pub config_id: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    pub nodes: BTreeMap<NodeId, Member>,
    pub voters: BTreeSet<NodeId>,
}

impl Members {
    /// Iterates over the members that do not vote.
    pub fn learners(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied().filter(|node| !self.voters.contains(node))
    }
}

/// The membership change of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Removes the leaving members, then adds or changes the joining members.
    Incremental {
        /// New members, or members with another role or address.
        joining: Vec<Server>,
        leaving: Vec<NodeId>,
    },
    Replace(Vec<Server>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    id: NodeId,
    member: Member,
    votes: bool,
}

impl Wanted {
    /// Parses the request of `reconfig`.
    ///
    /// # Errors
    /// `BadArguments`: the text does not have ZooKeeper's form; `MarshallingError`: a server's id is not a
    /// number, as in ZooKeeper.
    pub fn change(&self) -> Result<Change, ErrorCode> {
        if let Some(list) = &self.new_members {
            let lines = list.split([',', '\n']).map(str::trim).filter(|line| !line.is_empty());
            let servers = lines.filter(|line| !line.starts_with("version=")).map(Server::parse);
            return Ok(Change::Replace(servers.collect::<Result<_, _>>()?));
        }
        let entries = |list: &Option<String>| -> Vec<String> {
            let list = list.as_deref().unwrap_or_default();
            list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
        };
        let id = |entry: &String| number(entry);
        Ok(Change::Incremental {
            joining: entries(&self.joining)
                .iter()
                .map(|entry| Server::parse(entry))
                .collect::<Result<_, _>>()?,
            leaving: entries(&self.leaving).iter().map(id).collect::<Result<_, _>>()?,
        })
    }
}

impl Change {
    /// Returns the membership after the change.
    ///
    /// # Errors
    /// `BadArguments`: no server would vote, two servers would share an address, or an id is outside the
    /// valid range.
    pub fn apply(self, current: &Members) -> Result<Members, ErrorCode> {
        let (mut target, joining) = match self {
            Change::Replace(servers) => (Members::default(), servers),
            Change::Incremental { joining, leaving } => {
                let mut target = current.clone();
                for id in leaving {
                    target.nodes.remove(&id);
                    target.voters.remove(&id);
                }
                (target, joining)
            }
        };
        for Server { id, member, votes } in joining {
            let taken =
                |other: &Member| other.dial_addr() == member.dial_addr() || shares_client(other, &member);
            let duplicate = target.nodes.iter().any(|(other, m)| *other != id && taken(m));
            if duplicate || !NODE_IDS.contains(&id.0) {
                return Err(ErrorCode::BadArguments);
            }
            // The address that /zookeeper/config shows for a member is not a change.
            let known = target.nodes.remove(&id).filter(|known| same_addresses(known, &member));
            target.nodes.insert(id, known.unwrap_or(member));
            if votes {
                target.voters.insert(id);
            } else {
                target.voters.remove(&id);
            }
        }
        if target.voters.is_empty() { Err(ErrorCode::BadArguments) } else { Ok(target) }
    }
}

/// Returns true if both members have the same client address. An address that means "any" does not identify a
/// machine.
fn shares_client(one: &Member, other: &Member) -> bool {
    one.client_addr == other.client_addr && !one.client_addr.starts_with("0.0.0.0:")
}

fn same_addresses(one: &Member, other: &Member) -> bool {
    one.zookeeper_addr() == other.zookeeper_addr() && one.client_addr == other.client_addr
}

impl Server {
    fn parse(text: &str) -> Result<Server, ErrorCode> {
        let (key, spec) = text.split_once('=').ok_or(ErrorCode::BadArguments)?;
        let id = number(key.rsplit_once('.').map_or(key, |(_, id)| id))?;
        Self::of(id, spec).ok_or(ErrorCode::BadArguments)
    }

    fn of(id: NodeId, spec: &str) -> Option<Server> {
        let (server, client) = spec.split_once(';')?;
        let server = server.trim();
        let host_len = if server.starts_with('[') { server.find(']')? + 1 } else { server.find(':')? };
        let (host, rest) = server.split_at(host_len);
        let mut parts = rest.strip_prefix(':')?.split(':');
        let (peer, election) = (port(parts.next()?)?, port(parts.next()?)?);
        let votes = match parts.next().map(str::to_ascii_lowercase).as_deref() {
            None | Some("participant") => true,
            Some("observer") => false,
            Some(_) => return None,
        };
        if host.is_empty() || parts.next().is_some() || peer == election {
            return None;
        }
        let client = client.trim();
        let client_addr = match client.rsplit_once(':') {
            Some((host, client)) if !host.is_empty() => format!("{host}:{}", port(client)?),
            _ => format!("0.0.0.0:{}", port(client)?),
        };
        let election = if election == election_port(peer) { String::new() } else { format!(":{election}") };
        let member = Member { peer_addr: format!("{host}:{peer}{election}"), client_addr };
        Some(Server { id, member, votes })
    }
}

fn number(text: &str) -> Result<NodeId, ErrorCode> {
    text.trim().parse().map(NodeId).map_err(|_| ErrorCode::MarshallingError)
}

fn port(text: &str) -> Option<u16> {
    text.trim().parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joining(text: &str) -> Wanted {
        Wanted { joining: Some(text.to_owned()), config_id: -1, ..Wanted::default() }
    }

    fn three() -> Members {
        let member = |n| Member { peer_addr: format!("h{n}:2281"), client_addr: format!("h{n}:2181") };
        Members {
            nodes: (1..=3).map(|n| (NodeId(n), member(n))).collect(),
            voters: (1..=3).map(NodeId).collect(),
        }
    }

    fn applied(wanted: &Wanted) -> Result<Members, ErrorCode> {
        wanted.change()?.apply(&three())
    }

    fn ids(nodes: impl IntoIterator<Item = u64>) -> BTreeSet<NodeId> {
        nodes.into_iter().map(NodeId).collect()
    }

    #[test]
    fn servers_join_as_voters_unless_they_are_called_observers() {
        let members = applied(&joining("server.4=h4:1:3;2181, server.5=[::1]:1:2:observer;[::1]:9")).unwrap();
        assert_eq!(members.voters, ids(1..=4));
        let four = &members.nodes[&NodeId(4)];
        assert_eq!((four.dial_addr().as_str(), four.client_addr.as_str()), ("h4:1", "0.0.0.0:2181"));
        assert_eq!(four.zookeeper_addr(), "h4:1:3");
        let five = &members.nodes[&NodeId(5)];
        assert_eq!((five.peer_addr.as_str(), five.client_addr.as_str()), ("[::1]:1", "[::1]:9"));
    }

    #[test]
    fn a_voter_becomes_an_observer_and_others_leave() {
        let mut wanted = joining("server.3=h3:2281:2282:observer;h3:2181");
        wanted.leaving = Some("2,7".to_owned());
        let members = applied(&wanted).unwrap();
        assert_eq!(members.voters, ids([1]));
        assert_eq!(members.nodes.keys().copied().collect::<BTreeSet<_>>(), ids([1, 3]));
        assert_eq!(members.nodes[&NodeId(3)], three().nodes[&NodeId(3)]);
    }

    #[test]
    fn a_full_list_replaces_everything() {
        let list = "server.1=h1:2281:2282:participant;h1:2181\nserver.9=h9:1:2;3\nversion=100";
        let wanted = Wanted { new_members: Some(list.to_owned()), ..Wanted::default() };
        assert_eq!(applied(&wanted).unwrap().voters, ids([1, 9]));
    }

    #[test]
    fn texts_that_zookeeper_refuses_are_refused() {
        for bad in [
            "some thing",
            "server.4=h4:1:2",
            "server.4=h4:1;2",
            "server.4=h4;2",
            "server.4=h4:1:2:king;3",
            "server.4=h4:1:2;0",
            "server.4=h4:1:1;2",
            "server.4=[::1]:1:1:observer;2",
            "server.4=h1:2281:9;3",
            "server.4=h4:1:2;h1:2181",
            "server.255=h4:1:2;3",
        ] {
            assert_eq!(applied(&joining(bad)), Err(ErrorCode::BadArguments), "{bad}");
        }
        let no_voter = Wanted { leaving: Some("1,2,3".to_owned()), ..Wanted::default() };
        assert_eq!(applied(&no_voter), Err(ErrorCode::BadArguments));
        let words = Wanted { leaving: Some("one".to_owned()), ..Wanted::default() };
        assert_eq!(applied(&words), Err(ErrorCode::MarshallingError));
        assert_eq!(applied(&joining("server.x=h4:1:2;3")), Err(ErrorCode::MarshallingError));
    }
}
