//! Counts of open sessions per host. With these counts nodes keep one host from opening all sessions.

use std::net::IpAddr;

use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use serde::{Deserialize, Serialize};

use super::{Session, Sessions};
use crate::machine::Machine;
use crate::shared_map::SharedMap;

/// Timeout in milliseconds from which a session counts as lasting: its client sends no keepalives.
pub const LASTING_MS: u32 = 24 * 3_600_000;

/// Host that opened a session: an IPv4 address, or the /64 of an IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Host(u128);

impl Host {
    /// Unknown address. All sessions of unknown addresses count as sessions of one host.
    pub const UNKNOWN: Host = Host(0);

    pub fn of(address: IpAddr) -> Host {
        match address.to_canonical() {
            IpAddr::V4(v4) => Host(v4.to_ipv6_mapped().to_bits()),
            IpAddr::V6(v6) if v6.is_loopback() => Host(v6.to_bits()),
            IpAddr::V6(v6) => Host(v6.to_bits() >> 64 << 64),
        }
    }

    pub(super) fn among(who: &[Id]) -> Host {
        let address = who.iter().find(|id| id.scheme == "ip").and_then(|id| id.id.parse().ok());
        address.map_or(Host::UNKNOWN, Host::of)
    }

    pub(super) fn words(self) -> [u64; 2] {
        [(self.0 >> 64) as u64, self.0 as u64]
    }
}

/// Counts of open sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    pub sessions: u64,
    /// Sessions with a long timeout ([`LASTING_MS`]).
    pub lasting: u64,
}

impl Opened {
    fn change(&mut self, session: &Session, count: impl Fn(u64) -> Option<u64>) {
        let counted = "what ends or changes has been counted";
        self.sessions = count(self.sessions).expect(counted);
        if session.timeout_ms >= LASTING_MS {
            self.lasting = count(self.lasting).expect(counted);
        }
        assert!(self.lasting <= self.sessions, "a lasting session is a session");
    }
}

/// The open sessions, by host.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    /// Invariant: no host without sessions.
    by_host: SharedMap<Host, Opened>,
    all: Opened,
}

impl Hosts {
    pub(super) fn add(&mut self, session: &Session) {
        let one_more = |count: u64| count.checked_add(1);
        self.all.change(session, one_more);
        match self.by_host.get_mut(&session.host) {
            Some(of_host) => of_host.change(session, one_more),
            None => {
                let mut of_host = Opened::default();
                of_host.change(session, one_more);
                self.by_host.insert(session.host, of_host);
            }
        }
        assert!(self.by_host.len() as u64 <= self.all.sessions, "a host without sessions is counted");
    }

    pub(super) fn remove(&mut self, session: &Session) {
        let one_less = |count: u64| count.checked_sub(1);
        self.all.change(session, one_less);
        let of_host = self.by_host.get_mut(&session.host).expect("the host of an open session is counted");
        of_host.change(session, one_less);
        if of_host.sessions == 0 {
            self.by_host.remove(&session.host);
        }
        assert_eq!(self.by_host.is_empty(), self.all.sessions == 0, "every session has a host");
    }

    pub(super) fn check(&self, sessions: &Sessions) -> Result<(), String> {
        self.by_host.check()?;
        let mut counted = Hosts::default();
        sessions.iter().for_each(|(_, session)| counted.add(session));
        if counted.all == self.all && counted.by_host.iter().eq(self.by_host.iter()) {
            Ok(())
        } else {
            Err("the sessions of hosts are miscounted".to_owned())
        }
    }
}

impl Session {
    /// Sets the host that opened the session.
    pub(crate) fn opened_from(self, host: Host) -> Self {
        Session { host, ..self }
    }

    /// Returns the host that opened the session.
    pub fn host(&self) -> Host {
        self.host
    }
}

impl Sessions {
    /// Raises the longest timeout of an open session. For snapshots.
    pub(crate) fn had_timeout(&mut self, id: SessionId, timeout_ms: u32) {
        self.change(id, |session| session.longest_timeout_ms = session.longest_timeout_ms.max(timeout_ms));
    }

    /// Sets the host of an open session. For snapshots.
    pub(crate) fn was_opened_from(&mut self, id: SessionId, host: Host) {
        self.change(id, |session| session.host = host);
    }

    /// Changes counted properties of an open session.
    pub(super) fn change(&mut self, id: SessionId, change: impl FnOnce(&mut Session)) {
        let session = self.map.get_mut(&id).expect("the caller has found the session");
        self.hosts.remove(session);
        change(session);
        self.hosts.add(session);
        assert!(session.timeout_ms <= session.longest_timeout_ms, "{id} has had its timeout");
        session.hasher = session.hasher(id);
        let (new, old) = session.rehash();
        self.digest = self.digest.wrapping_sub(old).wrapping_add(new);
    }
}

impl Machine {
    /// Returns the counts of a host's open sessions.
    pub fn opened_by(&self, host: Host) -> Opened {
        self.sessions.hosts.by_host.get(&host).copied().unwrap_or_default()
    }

    pub fn opened(&self) -> Opened {
        self.sessions.hosts.all
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::{NodeId, Request};

    use super::*;
    use crate::command::{Attachment, Command, Origin, Proposal};
    use crate::proof::Proof;

    fn apply(machine: &mut Machine, session: SessionId, from: &str, command: Command) {
        let identities = [Id { scheme: "ip".to_owned(), id: from.to_owned() }].into();
        let (origin, attachment) = (Origin { node: NodeId(1), ..Origin::default() }, Attachment(1));
        let proposal = Proposal { origin, session, attachment, identities, command };
        machine.apply(1, &proposal, &mut ()).result.unwrap();
        machine.check().unwrap();
    }

    #[test]
    fn a_snapshot_keeps_the_counts_of_sessions_per_host() {
        let mut machine = Machine::new();
        let proof = Proof::of(b"p");
        let open = |timeout_ms| Command::OpenSession { proof, timeout_ms };
        for (from, timeout_ms) in [
            ("10.0.0.1", 4_000),
            ("::ffff:10.0.0.1", LASTING_MS),
            ("2001:db8::1", 4_000),
            ("2001:db8::2", 4_000),
        ] {
            apply(&mut machine, SessionId::NONE, from, open(timeout_ms));
        }
        let counts = |machine: &Machine, from: &str| machine.opened_by(Host::of(from.parse().unwrap()));
        let all: Vec<SessionId> = machine.sessions().map(|(id, _)| id).collect();
        assert_eq!(counts(&machine, "10.0.0.1"), Opened { sessions: 2, lasting: 1 });
        assert_eq!(counts(&machine, "2001:db8::99"), Opened { sessions: 2, lasting: 0 }, "one /64");
        assert_eq!(counts(&machine, "10.0.0.2"), Opened::default());
        let lasting = Command::Reattach { from: None, session: all[0], proof, timeout_ms: LASTING_MS };
        apply(&mut machine, SessionId::NONE, "10.0.0.9", lasting);
        let mut bytes = Vec::new();
        machine.freeze().encode(&mut bytes).unwrap();
        let mut restored = Machine::decode(&mut bytes.as_slice()).unwrap();
        assert_eq!(restored.digest(), machine.digest());
        assert_eq!(counts(&restored, "10.0.0.1"), Opened { sessions: 2, lasting: 2 }, "where it was opened");
        apply(&mut restored, all[1], "10.0.0.1", Command::Client(Request::CloseSession));
        assert_eq!(counts(&restored, "10.0.0.1"), Opened { sessions: 1, lasting: 1 });
        assert_eq!(restored.opened(), Opened { sessions: 3, lasting: 1 });
    }
}
