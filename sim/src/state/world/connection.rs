//! Connections: the messages under way in both directions, and what is lost when a side goes.

use std::collections::VecDeque;

use rowlock_proto::SessionId;
use rowlock_proto::lock::{Notice, NoticeEvent};
use rowlock_state::command::{Attachment, Proposal};
use rowlock_state::outcome::Outcome;

use crate::history::{ConnectionId, Fact};
use crate::state::client::{Moment, lock_of};
use crate::state::message::{Down, Up};
use crate::state::mutant::Mutant;
use crate::state::node::Push;

use super::{Step, World};

/// One connection, with everything that is on its way.
pub(super) struct Connection {
    pub(super) client: usize,
    pub(super) node: usize,
    /// As the node knows it, after the handshake.
    session: SessionId,
    attachment: Attachment,
    /// From the client, not yet read by the node.
    up: VecDeque<Up>,
    /// From the node to the leader, in order.
    pub(super) forward: VecDeque<Proposal>,
    /// To the client.
    down: VecDeque<Down>,
    /// Writes that the node has not answered: a read waits for them.
    unanswered: usize,
    client_open: bool,
    node_open: bool,
}

impl Connection {
    /// The answer to a read goes after the events of the changes that it shows.
    fn reply(&mut self, down: Down, mutant: Option<Mutant>) {
        let events = self.down.iter().rev().take_while(is_event).count();
        let overtaken = if mutant == Some(Mutant::EventAfterReply) { events } else { 0 };
        self.down.insert(self.down.len() - overtaken, down);
    }
}

fn is_event(down: &&Down) -> bool {
    matches!(down, Down::Event { .. } | Down::Notice { .. })
}

impl World {
    /// A client connects to a node, if one is there that has seen what the client has seen.
    pub(super) fn connect(&mut self, client: usize, handshake: Up) {
        let node = self.rng.below(self.nodes.len());
        let target = &self.nodes[node];
        if !target.up || target.machine.last_zxid() < self.clients[client].last_zxid() {
            self.clients[client].disconnected();
            return;
        }
        self.next_connection += 1;
        let connection = Connection {
            client,
            node,
            session: SessionId::NONE,
            attachment: Attachment::default(),
            up: VecDeque::from([handshake]),
            forward: VecDeque::new(),
            down: VecDeque::new(),
            unanswered: 0,
            client_open: true,
            node_open: true,
        };
        let id = ConnectionId(self.next_connection);
        self.connections.insert(id, connection);
        self.clients[client].connection = Some(id);
    }

    /// A client sends over its connection, if it still has it.
    pub(super) fn send(&mut self, client: usize, up: Up) {
        let connection = self.clients[client].connection.and_then(|id| self.connections.get_mut(&id));
        if let Some(connection) = connection {
            connection.up.push_back(up);
        }
    }

    /// The client's side of its connection goes. A part of what it sent still arrives, maybe much later.
    pub(super) fn cut(&mut self, client: usize) {
        let Some(id) = self.clients[client].connection else { return };
        self.clients[client].disconnected();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.client_open = false;
        connection.down.clear();
        let arrive = self.rng.below(connection.up.len() + 1);
        connection.up.truncate(arrive);
    }

    /// The node's side of a connection goes. A part of what it sent still arrives.
    pub(super) fn close(&mut self, id: ConnectionId, by_crash: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.node_open = false;
        connection.up.clear();
        if by_crash {
            let arrive = self.rng.below(connection.down.len() + 1);
            connection.down.truncate(arrive);
            let arrive = self.rng.below(connection.forward.len() + 1);
            connection.forward.truncate(arrive);
        }
        connection.down.push_back(Down::Closed);
        self.nodes[connection.node].disconnect(id);
    }

    /// Connections of a node, in order.
    pub(super) fn connections_of(&self, node: usize) -> Vec<ConnectionId> {
        let of_node = self.connections.iter().filter(|(_, c)| c.node == node && c.node_open);
        of_node.map(|(id, _)| *id).collect()
    }

    /// A node reads the next message of one of its connections.
    pub(super) fn deliver_up(&mut self) -> Step {
        let ready = |(id, c): (&ConnectionId, &Connection)| (c.node_open && !c.up.is_empty()).then_some(*id);
        let ready: Vec<ConnectionId> = self.connections.iter().filter_map(ready).collect();
        if ready.is_empty() {
            return Ok(());
        }
        let id = self.rng.pick(&ready);
        let connection = self.connections.get_mut(&id).expect("just found");
        let node = &mut self.nodes[connection.node];
        let up = connection.up.pop_front().expect("it is not empty");
        match up {
            Up::Write { tag, command } => {
                let origin = node.origin(id, tag);
                let (session, attachment) = (connection.session, connection.attachment);
                connection.unanswered += 1;
                connection.forward.push_back(Proposal {
                    origin,
                    session,
                    attachment,
                    identities: Default::default(),
                    command,
                });
            }
            // FIFO: a read sees what this connection wrote before.
            Up::List { .. } | Up::Watch { .. } if connection.unanswered > 0 => connection.up.push_front(up),
            Up::List { tag, path } => connection.reply(node.list(tag, &path), self.mutant),
            Up::Watch { tag, path } => connection.reply(node.watch(id, tag, &path), self.mutant),
            // A node without contact to the leader cannot confirm: the ping waits.
            Up::Ping { .. } if node.isolated => connection.up.push_front(up),
            Up::Ping { sent } => {
                let session = connection.session;
                let confirmed = self.leader.touch(session, self.now);
                if confirmed {
                    connection.down.push_back(Down::Pong { sent });
                    self.tell(Fact::SessionTouched { session, at: self.now })?;
                }
            }
        }
        Ok(())
    }

    /// A client gets the next message of its connection.
    pub(super) fn deliver_down(&mut self) -> Step {
        let awake = |c: &Connection| self.clients[c.client].paused_until <= self.now;
        let ready = |(id, c): (&ConnectionId, &Connection)| (!c.down.is_empty() && awake(c)).then_some(*id);
        let ready: Vec<ConnectionId> = self.connections.iter().filter_map(ready).collect();
        if ready.is_empty() {
            self.forget_connections();
            return Ok(());
        }
        let id = self.rng.pick(&ready);
        let connection = self.connections.get_mut(&id).expect("just found");
        let down = connection.down.pop_front().expect("it is not empty");
        let client = connection.client;
        if !connection.client_open || self.clients[client].connection != Some(id) {
            return Ok(());
        }
        self.trace.line(format_args!("{} to client {client}: {down:?}", self.now.0));
        let mut facts = Vec::new();
        let mut moment = Moment {
            now: self.now,
            settling: self.settling,
            eager: self.eager,
            above: None,
            rng: &mut self.rng,
            facts: &mut facts,
        };
        let acts = self.clients[client].receive(down, &mut moment);
        self.told_by_client(client, facts, acts)
    }

    /// Messages that a node made while it applied.
    pub(super) fn push(&mut self, pushes: Vec<Push>) -> Step {
        for (id, down) in pushes {
            let Some(connection) = self.connections.get_mut(&id).filter(|connection| connection.node_open)
            else {
                continue;
            };
            match &down {
                Down::Closed => {
                    self.close(id, false);
                    continue;
                }
                Down::Answer { result, .. } => {
                    connection.unanswered -= 1;
                    if let Ok(Outcome::Session { session, attachment, .. }) = result {
                        (connection.session, connection.attachment) = (*session, *attachment);
                    }
                }
                Down::Event { .. } if self.mutant == Some(Mutant::LoseEvents) && self.rng.chance(20) => {
                    continue;
                }
                Down::Notice { .. } if self.mutant == Some(Mutant::LoseNotices) && self.rng.chance(20) => {
                    continue;
                }
                _ => {}
            }
            let granted = pushed(&down);
            connection.down.push_back(down);
            if let Some(fact) = granted {
                self.tell(fact)?;
            }
        }
        Ok(())
    }

    /// Connections that the client has left and that carry nothing any more: the node learns it now.
    fn forget_connections(&mut self) {
        let over = |c: &Connection| !c.client_open && c.up.is_empty() && c.forward.is_empty();
        for (id, connection) in self.connections.iter().filter(|(_, connection)| over(connection)) {
            self.nodes[connection.node].disconnect(*id);
        }
        self.connections.retain(|_, connection| !over(connection));
    }
}

/// A grant that is on its way to its session.
fn pushed(down: &Down) -> Option<Fact> {
    let Down::Notice { zxid, notice: Notice { claim, event: NoticeEvent::Granted } } = down else {
        return None;
    };
    let lock = lock_of(&claim.path)?;
    Some(Fact::Pushed { lock, token: claim.token, zxid: *zxid })
}
