//! session-moves: a session moves to another connection only at its client's request, and no client is
//! answered SessionMoved (-118). A client reads nothing from a connection that the client has left. A client
//! keeps its session on every other connection.
//!
//! An attach may be late in the log: its client may have come through another node meanwhile. A late attach
//! changes nothing. Where nodes cannot detect that a client has hung up, a late attach may take the session,
//! and the client reconnects once more.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::SessionId;

use super::super::Invariant;
use crate::history::client::{ClientFact, ClientId, Connect};
use crate::history::{Book, Fact};

/// Connections of plain sessions.
pub struct SessionMoves {
    hears_of_hang_ups: bool,
    /// Client of each connected session, by the client's report, since a node's answer.
    attached: BTreeMap<SessionId, ClientId>,
    /// Sessions that a node may not have known at the client's connect: the node attaches such a session from
    /// any connection.
    unknown: BTreeSet<SessionId>,
}

impl SessionMoves {
    /// Creates the checker. `hears_of_hang_ups`: nodes notice at once that a client has hung up.
    pub fn new(hears_of_hang_ups: bool) -> Self {
        SessionMoves { hears_of_hang_ups, attached: BTreeMap::new(), unknown: BTreeSet::new() }
    }
}

impl Invariant for SessionMoves {
    fn name(&self) -> &'static str {
        "session-moves"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Client { client, at, what: ClientFact::Connects { session, what } } => match what {
                Connect::Begins { has_seen } => {
                    self.attached.remove(session);
                    self.unknown.extend((!has_seen).then_some(*session));
                }
                Connect::Done => drop(self.attached.insert(*session, *client)),
                Connect::Left => drop(self.attached.remove(session)),
                Connect::ToldMoved => {
                    return Err(format!(
                        "client {} was told at {at} that session {session} has moved, on a connection that it had not left",
                        client.0
                    ));
                }
            },
            Fact::Client { client, what: ClientFact::Ended, .. } => {
                self.attached.retain(|_, who| who != client);
            }
            Fact::SessionAttached { session, .. } if self.hears_of_hang_ups => {
                if let Some(client) = self.attached.get(session).filter(|_| !self.unknown.contains(session)) {
                    return Err(format!(
                        "session {session} of client {} has moved, although it had a connection and asked for no other",
                        client.0
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
