//! What a server in memory decides: the real replicated state, with its notices, and cuts at chosen requests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::{ANNOUNCEMENT, NoticeEvent, SessionOptions};
use rowlock_proto::request::{Create, PathWatch, RequestFrame, SetWatches};
use rowlock_proto::response::{ConnectResponse, ReplyHeader};
use rowlock_proto::{
    ConnectRequest, CreateMode, ErrorCode, EventType, OpCode, Request, Response, SessionId, Stat, Version,
    WatchedEvent, Xid, Zxid, encode, path,
};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::Applied;
use rowlock_state::{ContenderView, Machine};

use super::Outbox;
use super::commands::{Collected, path_of};

pub const ANNOUNCED: &str = "acquire 3\ntagged 1\nsession-options 1\nreport 1\n";

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The request never arrives.
    Before,
    /// It is done, the reply never arrives.
    AfterDone,
    AfterReply,
}

type Fits = Box<dyn Fn(&Request) -> bool + Send>;

struct Connection {
    session: SessionId,
    attachment: Attachment,
    outbox: Outbox,
    data: BTreeSet<String>,
    child: BTreeSet<String>,
}

pub struct Keeper {
    pub machine: Machine,
    /// Nothing is answered, nor done.
    pub silent: bool,
    /// It does not know Rowlock's own requests.
    is_plain: bool,
    connections: BTreeMap<u64, Connection>,
    /// What was asked but for heartbeats: a tagged write as what it carries, with its id.
    pub log: Vec<(SessionId, Option<u64>, Request)>,
    pub pings: usize,
    heard: BTreeMap<SessionId, Instant>,
    /// Schemes of the credentials that were presented.
    pub auths: Vec<String>,
    pub events: BTreeMap<SessionId, usize>,
    /// The next sequential child of this parent gets this number.
    pub next_sequence: BTreeMap<String, i32>,
    /// Cuts at the next request that fits.
    pub faults: Vec<(Cut, Fits)>,
    /// Frames sent behind the handshakes, but for replies to heartbeats, by session.
    pub sent: BTreeMap<SessionId, usize>,
    pub grants: usize,
    /// Cut the connection of the so manyeth request from now, counted from 0, but for heartbeats.
    pub cut: Option<(usize, Cut)>,
    /// A client that reads this znode loses the connection.
    pub poison: Option<&'static str>,
    /// Number of tagged writes to refuse.
    pub throttle: usize,
    /// What the nodes say they understand.
    pub announced: Option<String>,
    pub options: Vec<SessionOptions>,
    /// Returning clients are turned away without an answer.
    pub silent_on_attach: bool,
    /// How far the cluster's wall clock is ahead of ours.
    pub clock_ahead_ms: i64,
}

impl Keeper {
    /// Of a Rowlock, or of a plain ZooKeeper.
    pub fn new(is_plain: bool) -> Self {
        Keeper {
            machine: Machine::new(),
            silent: false,
            is_plain,
            connections: BTreeMap::new(),
            log: Vec::new(),
            pings: 0,
            heard: BTreeMap::new(),
            auths: Vec::new(),
            events: BTreeMap::new(),
            next_sequence: BTreeMap::new(),
            faults: Vec::new(),
            sent: BTreeMap::new(),
            grants: 0,
            cut: None,
            poison: None,
            throttle: 0,
            announced: (!is_plain).then(|| ANNOUNCED.to_owned()),
            options: Vec::new(),
            silent_on_attach: false,
            clock_ahead_ms: 0,
        }
    }

    /// The queue of a lock: holders, then waiters.
    pub fn queue(&self, lock: &str) -> Vec<ContenderView> {
        let view = self.machine.lock_queue(lock);
        view.map(|view| view.holders().chain(view.waiters()).collect()).unwrap_or_default()
    }

    /// How many stand in the queue of a lock.
    pub fn contenders(&self, lock: &str) -> usize {
        self.machine.lock_queue(lock).map_or(0, |view| view.holder_count() + view.waiter_count())
    }

    pub fn holders(&self, lock: &str) -> usize {
        self.machine.lock_queue(lock).map_or(0, |view| view.holder_count())
    }

    /// How many requests of a session were of this kind.
    pub fn asked(&self, session: SessionId, is: impl Fn(&Request) -> bool) -> usize {
        self.log.iter().filter(|(by, _, request)| *by == session && is(request)).count()
    }

    /// The requests but for heartbeats: session, opcode, and the path that is read or created.
    pub fn requests(&self) -> impl Iterator<Item = (SessionId, OpCode, String)> {
        self.log.iter().map(|(session, _, request)| (*session, request.opcode(), path_of(request)))
    }

    pub fn attachments(&self) -> usize {
        self.connections.len()
    }

    pub fn has_session(&self, session: SessionId) -> bool {
        self.machine.session(session).is_some()
    }

    /// The instant at which the servers would expire the session.
    pub fn expiry(&self, session: SessionId) -> Instant {
        let timeout_ms = self.machine.session(session).unwrap().timeout_ms;
        self.heard[&session] + Duration::from_millis(timeout_ms.into())
    }

    /// Deletes a znode, as a session of no client.
    pub fn delete(&mut self, path: &str) -> Result<Response, ErrorCode> {
        let open = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 1 << 30 };
        let opened = self.run(SessionId::NONE, Attachment::default(), open);
        let session = opened.attached.expect("a session opens").session;
        self.act(session, Command::Client(Request::Delete { path: path.to_owned(), version: Version::ANY }))
    }

    pub fn children(&self, path: &str) -> Vec<String> {
        self.machine.get_children(path, &[]).map(|(names, _)| names).unwrap_or_default()
    }

    /// The door through which a session has come, counted from 0.
    pub fn door_of(&self, session: SessionId) -> Option<u64> {
        let theirs = self.connections.iter().find(|(_, connection)| connection.session == session);
        theirs.map(|(number, _)| number / super::CONNECTIONS_PER_DOOR)
    }

    /// Something that the cluster itself does.
    pub fn propose(&mut self, command: Command) -> Result<Response, ErrorCode> {
        self.run(SessionId::NONE, Attachment::default(), command).result
    }

    /// What another session of no client would do.
    pub fn act(&mut self, session: SessionId, command: Command) -> Result<Response, ErrorCode> {
        let attachment = self.machine.session(session).unwrap().attachment;
        self.run(session, attachment, command).result
    }

    fn run(&mut self, session: SessionId, attachment: Attachment, command: Command) -> Applied {
        let mut news = Collected::default();
        let proposal = Proposal {
            origin: Origin::default(),
            session,
            attachment,
            identities: Default::default(),
            command,
        };
        let applied = self.machine.apply(time::wall_ms() + self.clock_ahead_ms, &proposal, &mut news);
        for (event_type, path, zxid) in news.events {
            self.fire(event_type, &path, zxid);
        }
        for (session, zxid, notice) in news.notices {
            self.grants += usize::from(notice.event == NoticeEvent::Granted);
            let mut out = BytesMut::new();
            encode::notice(zxid, &notice, &mut out);
            self.send(session, out.freeze());
        }
        applied
    }

    fn send(&mut self, session: SessionId, frame: Bytes) {
        let theirs = self.connections.values().find(|connection| connection.session == session);
        if let Some(connection) = theirs {
            let _ = connection.outbox.send(Some(frame));
            *self.sent.entry(session).or_default() += 1;
        }
    }

    fn fire(&mut self, event_type: EventType, path: &str, zxid: Zxid) {
        let mut told = Vec::new();
        for connection in self.connections.values_mut() {
            let data = event_type != EventType::NodeChildrenChanged && connection.data.remove(path);
            let child = matches!(event_type, EventType::NodeChildrenChanged | EventType::NodeDeleted)
                && connection.child.remove(path);
            if data || child {
                told.push(connection.session);
            }
        }
        for session in told {
            self.tell(session, event_type, path, zxid);
        }
    }

    fn tell(&mut self, session: SessionId, event_type: EventType, path: &str, zxid: Zxid) {
        let mut out = BytesMut::new();
        encode::event(&WatchedEvent { zxid, event_type, state: 3, path: path.to_owned() }, &mut out);
        self.send(session, out.freeze());
        *self.events.entry(session).or_default() += 1;
    }

    fn close(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            let _ = connection.outbox.send(None);
        }
    }

    fn answer(&mut self, number: u64, xid: Xid, answer: &Result<Response, ErrorCode>) {
        let mut out = BytesMut::new();
        let header = ReplyHeader { xid, zxid: self.machine.last_zxid(), err: answer.as_ref().err().copied() };
        encode::reply(header, answer.as_ref().ok(), &mut out);
        if let Some(connection) = self.connections.get(&number) {
            let _ = connection.outbox.send(Some(out.freeze()));
            *self.sent.entry(connection.session).or_default() += usize::from(xid != Xid::PING);
        }
    }

    /// What a request does. `None`: it ends the session.
    fn perform(&mut self, number: u64, request: Request) -> Result<Response, ErrorCode> {
        let Some(Connection { session, attachment, .. }) = self.connections.get(&number) else {
            return Err(ErrorCode::ConnectionLoss);
        };
        let (session, attachment) = (*session, *attachment);
        let tagged = matches!(request, Request::Tagged { .. });
        if tagged && self.throttle > 0 {
            self.throttle -= 1;
            return Err(ErrorCode::ThrottledOp);
        }
        if self.is_plain && request.opcode() >= OpCode::Tagged {
            return Err(ErrorCode::Unimplemented);
        }
        let request = self.numbered(request);
        if !request.opcode().is_logged() && !tagged {
            return self.local(number, request);
        }
        let command = Command::of_client(request).expect("a client tags nothing but writes");
        self.run(session, attachment, command).result
    }

    /// A sequential create with the number that the test wants.
    fn numbered(&mut self, request: Request) -> Request {
        let Request::Create2(create) = &request else { return request };
        let mode = CreateMode::from_flags(create.flags).filter(|mode| mode.is_sequential());
        let number = mode.and_then(|_| self.next_sequence.remove(path::parent(&create.path)?));
        let Some(number) = number else { return request };
        let (path, flags) = (format!("{}{number:010}", create.path), create.flags & 1);
        Request::Create2(Create { path, flags, ..create.clone() })
    }

    fn local(&mut self, number: u64, request: Request) -> Result<Response, ErrorCode> {
        match request {
            Request::Ping => Ok(Response::Empty),
            Request::Auth { scheme, .. } if scheme == "digest" => {
                self.auths.push(scheme);
                Ok(Response::Empty)
            }
            Request::Auth { .. } => Err(ErrorCode::AuthFailed),
            Request::Exists(read) => {
                self.watch(number, &read, false);
                self.machine.exists(&read.path, &[]).map(Response::Stat)
            }
            Request::GetData(read) if read.path == ANNOUNCEMENT => {
                let data = self.announced.clone().ok_or(ErrorCode::NoNode)?;
                Ok(Response::Data(Some(Bytes::from(data)), Stat::default()))
            }
            Request::GetData(read) => {
                let (data, stat) = self.machine.get_data(&read.path, &[])?;
                self.watch(number, &read, false);
                Ok(Response::Data(data, stat))
            }
            Request::GetChildren(read) => {
                let (names, _) = self.machine.get_children(&read.path, &[])?;
                self.watch(number, &read, true);
                Ok(Response::Children(names))
            }
            Request::GetChildren2(read) => {
                let (names, stat) = self.machine.get_children(&read.path, &[])?;
                self.watch(number, &read, true);
                Ok(Response::Children2(names, stat))
            }
            Request::SetWatches(watches) => {
                self.set_watches(number, watches);
                Ok(Response::Empty)
            }
            Request::SessionOptions(options) => {
                self.options.push(options);
                Ok(Response::Empty)
            }
            Request::Report(what) | Request::Operate(what) => {
                Ok(Response::Report(format!("{{\"asked\":\"{what}\"}}")))
            }
            _ => Err(ErrorCode::Unimplemented),
        }
    }

    fn watch(&mut self, number: u64, read: &PathWatch, child: bool) {
        if let (true, Some(connection)) = (read.watch, self.connections.get_mut(&number)) {
            let table = if child { &mut connection.child } else { &mut connection.data };
            table.insert(read.path.clone());
        }
    }

    fn set_watches(&mut self, number: u64, watches: SetWatches) {
        let Some(connection) = self.connections.get(&number) else { return };
        let session = connection.session;
        for path in watches.data {
            match self.machine.stat(&path) {
                None => self.tell(session, EventType::NodeDeleted, &path, self.machine.last_zxid()),
                Some(stat) if stat.mzxid > watches.relative_zxid => {
                    self.tell(session, EventType::NodeDataChanged, &path, stat.mzxid);
                }
                Some(_) => self.watch(number, &PathWatch { path, watch: true }, false),
            }
        }
        for path in watches.exist {
            match self.machine.stat(&path) {
                Some(stat) => self.tell(session, EventType::NodeCreated, &path, stat.czxid),
                None => self.watch(number, &PathWatch { path, watch: true }, false),
            }
        }
        for path in watches.child {
            match self.machine.stat(&path) {
                Some(stat) if stat.pzxid > watches.relative_zxid => {
                    self.tell(session, EventType::NodeChildrenChanged, &path, stat.pzxid);
                }
                Some(_) => self.watch(number, &PathWatch { path, watch: true }, true),
                None => self.tell(session, EventType::NodeDeleted, &path, self.machine.last_zxid()),
            }
        }
    }

    pub(super) fn attach(&mut self, number: u64, hello: ConnectRequest, outbox: Outbox) {
        if self.silent_on_attach {
            let _ = outbox.send(None);
            return;
        }
        let timeout_ms = hello.timeout_ms.unsigned_abs();
        let command = match hello.session_id {
            SessionId::NONE => Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms },
            session => {
                let proof = Proof::of(&hello.password);
                Command::Reattach { from: None, session, proof, timeout_ms }
            }
        };
        let opened = self.run(SessionId::NONE, Attachment::default(), command).attached;
        let (session_id, attachment) =
            opened.map_or_else(Default::default, |opened| (opened.session, opened.attachment));
        let mut out = BytesMut::new();
        let is_open = session_id != SessionId::NONE;
        let answer = ConnectResponse {
            protocol_version: 0,
            timeout_ms: if is_open { hello.timeout_ms } else { 0 },
            session_id,
            password: Bytes::from_static(&[7; 16]),
            read_only: Some(false),
        };
        encode::connect_response(&answer, &mut out);
        let _ = outbox.send(Some(out.freeze()));
        if !is_open {
            let _ = outbox.send(None);
            return;
        }
        let (data, child) = (BTreeSet::new(), BTreeSet::new());
        self.heard.insert(session_id, time::now());
        let connection = Connection { session: session_id, attachment, outbox, data, child };
        self.connections.insert(number, connection);
    }

    pub(super) fn request(&mut self, number: u64, frame: RequestFrame) {
        let Some(connection) = self.connections.get(&number) else { return };
        let session = connection.session;
        self.heard.insert(session, time::now());
        let RequestFrame { xid, request } = frame;
        if matches!(&request, Request::Exists(of) if Some(of.path.as_str()) == self.poison) {
            return self.close(number);
        }
        let fault = self.faults.iter().position(|(_, fits)| fits(&request));
        let mut cut = fault.map(|at| self.faults.remove(at).0);
        if request == Request::Ping {
            self.pings += 1;
        } else {
            let (id, inner) = match request.clone() {
                Request::Tagged { id, request, .. } => (Some(id), *request),
                request => (None, request),
            };
            self.log.push((session, id, inner));
            if let Some((left, at)) = self.cut.take() {
                match left.checked_sub(1) {
                    Some(left) => self.cut = Some((left, at)),
                    None => cut = Some(at),
                }
            }
        }
        if cut == Some(Cut::Before) {
            return self.close(number);
        }
        let closing = request == Request::CloseSession;
        let answer = self.perform(number, request);
        if cut != Some(Cut::AfterDone) {
            self.answer(number, xid, &answer);
        }
        if cut.is_some() || closing {
            self.close(number);
        }
    }

    pub(super) fn detach(&mut self, number: u64) {
        self.connections.remove(&number);
    }

    pub fn end_session(&mut self, session: SessionId) {
        if let Some(attachment) = self.machine.session(session).map(|session| session.attachment) {
            self.propose(Command::ExpireSession { session, attachment }).unwrap();
        }
        let theirs = |(number, c): (&u64, &Connection)| (c.session == session).then_some(*number);
        for number in self.connections.iter().filter_map(theirs).collect::<Vec<_>>() {
            self.close(number);
        }
    }

    pub fn drop_connections(&mut self) {
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.close(number);
        }
    }
}
