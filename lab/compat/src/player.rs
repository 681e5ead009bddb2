//! Plays a script against one cluster and records the replies.
//!
//! One client acts at a time, and the next client starts after all replies to the previous client have
//! arrived; one client's requests are pipelined. So every reply and event has exactly one right position,
//! also when clients use different servers: there each turn begins with a sync.
//!
//! Invariant: a transcript depends on the script and on the server's semantics, never on timing.

use std::collections::VecDeque;

use anyhow::ensure;
use rowlock_proto::response::ConnectResponse;
use rowlock_proto::{OpCode, Request, SessionId, Xid, Zxid};

use crate::answer::{self, Frame, PendingRequest};
use crate::connection::{Connection, Incoming, Session};
use crate::script::{Action, Comeback, Relative, Script, Step, body, frame, set_watches};
use crate::transcript::{Cause, Line, Transcript};

/// Plays the steps of `script` whose numbers `keep` accepts. An error means that the cluster does not serve.
pub async fn play(
    hosts: &[String],
    script: &Script,
    keep: impl Fn(usize) -> bool,
) -> anyhow::Result<Transcript> {
    let mut player = Player::new(hosts, script);
    player.begin().await?;
    for (number, step) in script.steps.iter().enumerate().filter(|(number, _)| keep(*number)) {
        player.step(number, step).await?;
    }
    player.end().await?;
    Ok(player.transcript)
}

struct Client {
    server: usize,
    connection: Option<Connection>,
    session: Session,
    next_xid: i32,
    seen: Zxid,
    pending: VecDeque<(Cause, PendingRequest)>,
}

struct Player<'a> {
    hosts: &'a [String],
    script: &'a Script,
    clients: Vec<Client>,
    acting: usize,
    transcript: Transcript,
}

impl<'a> Player<'a> {
    fn new(hosts: &'a [String], script: &'a Script) -> Self {
        let client = |server: &usize| Client {
            server: *server,
            connection: None,
            session: Session::default(),
            next_xid: 1,
            seen: Zxid(0),
            pending: VecDeque::new(),
        };
        let clients: Vec<Client> = script.servers.iter().map(client).collect();
        let transcript = Transcript::new(script.above(), clients.len());
        Player { hosts, script, clients, acting: 0, transcript }
    }

    /// Opens a session for every client; the first client creates the root and its parent. A script may read
    /// and change the root's siblings, which belong to this script alone.
    async fn begin(&mut self) -> anyhow::Result<()> {
        for slot in 0..self.clients.len() {
            self.connect(slot).await?;
        }
        for path in [self.script.above(), &self.script.root] {
            let (path, acl) = (path.to_owned(), Some(rowlock_proto::Acl::shared_open()));
            let create = Request::Create(rowlock_proto::request::Create { path, data: None, acl, flags: 0 });
            self.queue(0, Cause::Between, OpCode::Create.as_i32(), &body(&create));
        }
        self.drain(0).await?;
        self.acting = 0;
        Ok(())
    }

    async fn step(&mut self, number: usize, step: &Step) -> anyhow::Result<()> {
        let Step { slot, action } = step;
        let (slot, cause) = (*slot, Cause::Step(number));
        if slot != self.acting {
            self.drain(self.acting).await?;
            self.acting = slot;
            self.connect(slot).await?;
            self.sync(slot);
        }
        self.connect(slot).await?;
        match action {
            Action::Send { opcode, body, alone: false, .. } => self.queue(slot, cause, *opcode, body),
            Action::Send { opcode, body, .. } => {
                self.drain(slot).await?;
                self.connect(slot).await?;
                self.queue(slot, cause, *opcode, body);
                self.drain(slot).await?;
                self.probe(slot).await?;
            }
            Action::SetWatches { relative, watches, two } => {
                self.drain(slot).await?;
                self.connect(slot).await?;
                let since = match relative {
                    Relative::Zero => Zxid(0),
                    Relative::LastSeen => self.clients[slot].seen,
                    Relative::Future => Zxid(i64::MAX),
                };
                let (opcode, body) = set_watches(watches, *two, since);
                self.queue(slot, cause, opcode.as_i32(), &body);
            }
            Action::Reconnect(how) => {
                self.drain(slot).await?;
                self.come_back(slot, *how, cause).await?;
            }
            Action::Close => self.close_session(slot, cause).await?,
        }
        Ok(())
    }

    /// Receives all pending replies and events, then ends the sessions.
    async fn end(&mut self) -> anyhow::Result<()> {
        self.drain(self.acting).await?;
        for slot in 0..self.clients.len() {
            self.receive_events(slot).await?;
        }
        for client in &mut self.clients {
            if let Some(connection) = &mut client.connection {
                let xid = Xid(client.next_xid);
                connection.queue(&frame(xid, OpCode::CloseSession.as_i32(), &[]));
                // The server has received all earlier requests; a session that fails to close expires.
                let _ = connection.flush().await;
            }
        }
        for connection in self.clients.iter_mut().filter_map(|client| client.connection.take()) {
            let mut connection = connection;
            while let Incoming::Frame(_) = connection.receive().await {}
        }
        Ok(())
    }

    /// Queues a request; the next [`Self::drain`] sends the queue.
    fn queue(&mut self, slot: usize, cause: Cause, opcode: i32, body: &[u8]) {
        let client = &mut self.clients[slot];
        let Some(connection) = &mut client.connection else { return };
        let xid = match OpCode::from_i32(opcode) {
            Some(OpCode::Auth) => Xid::AUTH,
            Some(OpCode::Ping) => Xid::PING,
            Some(OpCode::SetWatches | OpCode::SetWatches2) => Xid::SET_WATCHES,
            _ => {
                client.next_xid += 1;
                Xid(client.next_xid - 1)
            }
        };
        connection.queue(&frame(xid, opcode, body));
        let pending = PendingRequest { xid, opcode, restrictive: self.script.restrictive };
        client.pending.push_back((cause, pending));
    }

    fn sync(&mut self, slot: usize) {
        let sync = body(&Request::Sync(self.script.root.clone()));
        self.queue(slot, Cause::Between, OpCode::Sync.as_i32(), &sync);
    }

    /// Checks that the connection is still open after the last reply.
    async fn probe(&mut self, slot: usize) -> anyhow::Result<()> {
        self.queue(slot, Cause::Between, OpCode::Ping.as_i32(), &[]);
        self.drain(slot).await
    }

    /// Receives every event of earlier steps.
    async fn receive_events(&mut self, slot: usize) -> anyhow::Result<()> {
        if self.clients[slot].connection.is_some() {
            self.sync(slot);
            self.drain(slot).await?;
        }
        Ok(())
    }

    /// Sends the queued requests and receives all replies.
    async fn drain(&mut self, slot: usize) -> anyhow::Result<()> {
        let client = &mut self.clients[slot];
        let Some(connection) = &mut client.connection else { return Ok(()) };
        let mut open = connection.flush().await.is_ok();
        while open && !client.pending.is_empty() {
            match connection.receive().await {
                Incoming::Frame(bytes) => {
                    let pending = client.pending.front().map(|(_, pending)| pending);
                    match answer::read(bytes, pending, client.seen, &mut self.transcript) {
                        Frame::Event(line) => self.transcript.push(slot, Cause::Event, line),
                        Frame::Reply { line, zxid } => {
                            let cause = client.pending.pop_front().map_or(Cause::Between, |(cause, _)| cause);
                            client.seen = client.seen.max(zxid);
                            self.transcript.push(slot, cause, line);
                        }
                    }
                }
                Incoming::Closed => open = false,
                Incoming::Silence => {
                    self.transcript.push(slot, Cause::Between, Line::new("SILENCE"));
                    open = false;
                }
            }
        }
        if !open {
            for (cause, _) in client.pending.drain(..) {
                self.transcript.push(slot, cause, Line::new("no reply: closed"));
            }
            client.connection = None;
        }
        Ok(())
    }

    /// Connects a client without a connection to its session, or to a new session if the old one has ended.
    async fn connect(&mut self, slot: usize) -> anyhow::Result<()> {
        if self.clients[slot].connection.is_some() {
            return Ok(());
        }
        let session = self.clients[slot].session.clone();
        let is_new = session.id == SessionId::NONE;
        if !self.handshake(slot, &session, Cause::Between).await? {
            ensure!(!is_new, "{} refuses a new session", self.host(slot));
            let accepted = self.handshake(slot, &Session::default(), Cause::Between).await?;
            ensure!(accepted, "{} refuses a new session", self.host(slot));
        }
        Ok(())
    }

    fn host(&self, slot: usize) -> &str {
        &self.hosts[self.clients[slot].server % self.hosts.len()]
    }

    /// Performs a handshake. A refused handshake leaves the client without a connection.
    async fn handshake(&mut self, slot: usize, session: &Session, cause: Cause) -> anyhow::Result<bool> {
        let (connection, response) =
            Connection::open(self.host(slot), session, self.clients[slot].seen).await?;
        let ConnectResponse { timeout_ms, session_id, password, read_only, .. } = response;
        let accepted = session_id != SessionId::NONE;
        let requested = session.id;
        let outcome = match (accepted, requested) {
            (false, _) => "refused",
            (true, SessionId::NONE) => "a new session",
            (true, own) if own == session_id && password == session.password => "the session",
            (true, _) => "ANOTHER session",
        };
        let text = format!("{outcome}, timeout {timeout_ms}, {} bytes, {read_only:?}", password.len());
        if accepted {
            self.transcript.name_session(session_id, slot);
            let client = &mut self.clients[slot];
            client.session = Session { id: session_id, password };
            client.connection = Some(connection);
        }
        self.transcript.push(slot, cause, Line::new(text));
        Ok(accepted)
    }

    async fn come_back(&mut self, slot: usize, how: Comeback, cause: Cause) -> anyhow::Result<()> {
        self.clients[slot].connection = None;
        let own = self.clients[slot].session.clone();
        match how {
            Comeback::Resume => {}
            Comeback::Move if self.script.servers.iter().any(|server| *server != self.script.servers[0]) => {
                self.clients[slot].server += 1;
            }
            Comeback::Move => {}
            Comeback::WrongPassword => {
                let wrong = Session { password: bytes::Bytes::from_static(&[7; 16]), ..own.clone() };
                self.handshake(slot, &wrong, cause).await?;
            }
            Comeback::NoSuchSession => {
                let unknown = Session { id: SessionId(0x0123_4567_89ab), ..own.clone() };
                self.handshake(slot, &unknown, cause).await?;
            }
            Comeback::Fresh => self.clients[slot].session = Session::default(),
        }
        self.connect(slot).await
    }

    /// Closes the client's session. One transaction causes all resulting events: every other client receives
    /// the events together, in any order, so the transcript sorts them.
    async fn close_session(&mut self, slot: usize, cause: Cause) -> anyhow::Result<()> {
        for other in 0..self.clients.len() {
            self.drain(other).await?;
            self.receive_events(other).await?;
        }
        self.connect(slot).await?;
        let marks: Vec<usize> = (0..self.clients.len()).map(|client| self.transcript.len(client)).collect();
        self.queue(slot, cause, OpCode::CloseSession.as_i32(), &[]);
        self.drain(slot).await?;
        self.probe(slot).await?;
        for (other, mark) in marks.into_iter().enumerate() {
            self.receive_events(other).await?;
            self.transcript.sort_events(other, mark);
        }
        Ok(())
    }
}
