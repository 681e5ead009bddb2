//! Counts of open sessions per host. With these counts nodes keep one host from opening all sessions.

use super::session::{Host, Session};
use crate::shared_map::SharedMap;

/// Timeout in milliseconds from which a session counts as lasting: its client sends no keepalives.
pub const LASTING_MS: u32 = 24 * 3_600_000;

/// Session timeout for a state lock in milliseconds: 24 days, about the longest that the protocol can
/// express. Beyond: the lock is free.
pub const STATE_LOCK_MS: u32 = 24 * 24 * 3_600_000;

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
    pub(super) by_host: SharedMap<Host, Opened>,
    pub(super) all: Opened,
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

    /// Compares the counts with the open sessions.
    pub(super) fn check<'a>(&self, sessions: impl Iterator<Item = &'a Session>) -> Result<(), String> {
        self.by_host.check()?;
        let mut counted = Hosts::default();
        sessions.for_each(|session| counted.add(session));
        if counted.all == self.all && counted.by_host.iter().eq(self.by_host.iter()) {
            Ok(())
        } else {
            Err("the sessions of hosts are miscounted".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::acl::Id;
    use rowlock_proto::{NodeId, Request, SessionId};

    use super::*;
    use crate::Machine;
    use crate::command::{Attachment, Command, Origin, Proof, Proposal};

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
