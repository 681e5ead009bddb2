//! A Rowlock in memory: the real replicated state behind sockets, with its notices, and cuts at chosen
//! frames.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use rowlock_env::time;
use rowlock_proto::lock::{ANNOUNCEMENT, Notice, NoticeEvent, SessionOptions};
use rowlock_proto::request::{PathWatch, RequestFrame, SetWatches};
use rowlock_proto::response::{ConnectResponse, ReplyHeader};
use rowlock_proto::{
    ConnectRequest, ErrorCode, EventType, Request, Response, SessionId, Stat, WatchedEvent, Xid, Zxid,
    encode, path,
};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::{
    Change, ChangeKind, EventSink, LockEvent, LockEventKind, Outcome, SessionEnd, Why,
};
use rowlock_state::{ContenderView, Machine, Question};

use super::{Outbox, Server};

/// What this server announces.
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

struct Connection {
    session: SessionId,
    attachment: Attachment,
    outbox: Outbox,
    data: BTreeSet<String>,
    child: BTreeSet<String>,
}

pub struct Keeper {
    pub machine: Machine,
    pub silent: bool,
    connections: BTreeMap<u64, Connection>,
    /// What was asked but for heartbeats: a tagged write as what it carries, with its id.
    pub log: Vec<(SessionId, Option<u64>, Request)>,
    /// Frames sent behind the handshakes, but for replies to heartbeats, by session.
    pub sent: BTreeMap<SessionId, usize>,
    /// Grants that were pushed.
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

/// What a command changed, in order.
#[derive(Default)]
struct Collected {
    events: Vec<(EventType, String, Zxid)>,
    notices: Vec<(SessionId, Zxid, Notice)>,
}

impl EventSink for Collected {
    fn changed(&mut self, change: &Change<'_>) {
        let event = match change.kind {
            ChangeKind::Created => EventType::NodeCreated,
            ChangeKind::Deleted => EventType::NodeDeleted,
            ChangeKind::DataChanged => EventType::NodeDataChanged,
        };
        self.events.push((event, change.path.to_owned(), change.zxid));
        if let (true, Some(parent)) = (change.kind != ChangeKind::DataChanged, path::parent(change.path)) {
            self.events.push((EventType::NodeChildrenChanged, parent.to_owned(), change.zxid));
        }
    }

    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}

    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}

    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}

    fn lock(&mut self, event: &LockEvent<'_>) {
        let notice_event = match event.kind {
            // Of a grant in the command that made the place, the reply tells.
            LockEventKind::Granted { .. } if event.zxid.0 == event.token.0 => return,
            LockEventKind::Granted { .. } => NoticeEvent::Granted,
            LockEventKind::Gone { why: Why::Deleted, .. } => NoticeEvent::Deleted,
            LockEventKind::Gone { why: Why::Forced, .. } => NoticeEvent::Forced,
            LockEventKind::Gone { why: Why::Revoked, .. } => NoticeEvent::Revoked,
            _ => return,
        };
        if event.is_acquired {
            let claim = rowlock_proto::lock::Claim { path: event.path.to_owned(), token: event.token };
            self.notices.push((event.session, event.zxid, Notice { claim, event: notice_event }));
        }
    }

    fn asked(&mut self, event: &LockEvent<'_>, question: &Question) {
        if event.is_acquired {
            let claim = rowlock_proto::lock::Claim { path: event.path.to_owned(), token: event.token };
            let notice_event = NoticeEvent::Asked(question.told_at(event.time_ms));
            self.notices.push((event.session, event.zxid, Notice { claim, event: notice_event }));
        }
    }
}

impl Keeper {
    pub fn new() -> Self {
        Keeper {
            machine: Machine::new(),
            silent: false,
            connections: BTreeMap::new(),
            log: Vec::new(),
            sent: BTreeMap::new(),
            grants: 0,
            cut: None,
            poison: None,
            throttle: 0,
            announced: Some(ANNOUNCED.to_owned()),
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

    pub fn children(&self, path: &str) -> Vec<String> {
        self.machine.get_children(path, &[]).map(|(names, _)| names).unwrap_or_default()
    }

    /// The door through which a session has come, counted from 0.
    pub fn door_of(&self, session: SessionId) -> Option<u64> {
        let theirs = self.connections.iter().find(|(_, connection)| connection.session == session);
        theirs.map(|(number, _)| number / super::CONNECTIONS_PER_DOOR)
    }

    /// Something that the cluster itself does.
    pub fn propose(&mut self, command: Command) -> Result<Outcome, ErrorCode> {
        self.run(SessionId::NONE, Attachment::default(), command)
    }

    /// What another session of no client would do.
    pub fn act(&mut self, session: SessionId, command: Command) -> Result<Outcome, ErrorCode> {
        let attachment = self.machine.session(session).unwrap().attachment;
        self.run(session, attachment, command)
    }

    fn run(
        &mut self,
        session: SessionId,
        attachment: Attachment,
        command: Command,
    ) -> Result<Outcome, ErrorCode> {
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
        applied.result
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
        match command(request) {
            Ok((command, form)) => self.run(session, attachment, command).map(form),
            Err(request) => self.local(number, *request),
        }
    }

    fn local(&mut self, number: u64, request: Request) -> Result<Response, ErrorCode> {
        match request {
            Request::Ping | Request::Auth { .. } => Ok(Response::Empty),
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
                Ok(Response::Children(self.machine.get_children(&read.path, &[])?.0))
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
}

impl Server for Keeper {
    fn silent(&mut self) -> &mut bool {
        &mut self.silent
    }

    fn attach(&mut self, number: u64, hello: ConnectRequest, outbox: Outbox) {
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
        let opened = self.propose(command);
        let (session_id, attachment) = match opened {
            Ok(Outcome::Session { session, attachment, .. }) => (session, attachment),
            _ => (SessionId::NONE, Attachment::default()),
        };
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
        let connection = Connection { session: session_id, attachment, outbox, data, child };
        self.connections.insert(number, connection);
    }

    fn request(&mut self, number: u64, frame: RequestFrame) {
        let Some(connection) = self.connections.get(&number) else { return };
        let session = connection.session;
        let RequestFrame { xid, request } = frame;
        if matches!(&request, Request::Exists(of) if Some(of.path.as_str()) == self.poison) {
            return self.close(number);
        }
        let mut cut = None;
        if request != Request::Ping {
            let (id, inner) = match request.clone() {
                Request::Tagged { id, request, .. } => (Some(id), *request),
                request => (None, request),
            };
            self.log.push((session, id, inner));
            cut = match self.cut {
                Some((0, cut)) => {
                    self.cut = None;
                    Some(cut)
                }
                Some((left, cut)) => {
                    self.cut = Some((left - 1, cut));
                    None
                }
                None => None,
            };
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

    fn detach(&mut self, number: u64) {
        self.connections.remove(&number);
    }

    fn end_session(&mut self, session: SessionId) {
        if let Some(attachment) = self.machine.session(session).map(|session| session.attachment) {
            self.propose(Command::ExpireSession { session, attachment }).unwrap();
        }
        let theirs = |(number, c): (&u64, &Connection)| (c.session == session).then_some(*number);
        for number in self.connections.iter().filter_map(theirs).collect::<Vec<_>>() {
            self.close(number);
        }
    }

    fn drop_connections(&mut self) {
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.close(number);
        }
    }

    fn story(&self) -> String {
        format!("asked {:?}", self.log)
    }
}

type Form = Box<dyn FnOnce(Outcome) -> Response>;

/// The command of a request that goes through the log, and how it is answered; or the request back.
fn command(request: Request) -> Result<(Command, Form), Box<Request>> {
    let path_stat: Form = Box::new(|outcome| match outcome {
        Outcome::Created { path, stat } => Response::PathStat(path, stat),
        other => panic!("{other:?}"),
    });
    let other: Form = Box::new(|outcome| match outcome {
        Outcome::Done => Response::Empty,
        Outcome::Stat(stat) => Response::Stat(stat),
        Outcome::Multi(results) => Response::Multi(results),
        Outcome::PlaceStates(place_states) => Response::PlaceStates(place_states.into_vec()),
        Outcome::Held(held) => Response::Held(held.into_vec()),
        Outcome::Asked(count) => Response::Number(count as i32),
        other => panic!("{other:?}"),
    });
    Ok(match request {
        Request::Create2(create) | Request::CreateContainer(create) => {
            (Command::Create { create, ttl_ms: None }, path_stat)
        }
        Request::Delete { path, version } => (Command::Delete { path, version }, other),
        Request::SetData(set) => (Command::SetData(set), other),
        Request::Multi(ops) => (Command::Multi(ops), other),
        Request::Sync(path) => (Command::Noop, Box::new(|_| Response::Path(path))),
        Request::CloseSession => (Command::CloseSession, other),
        Request::Acquire(all) => (Command::Acquire(all), other),
        Request::Convert { claim, mode, prefix } => (Command::Convert { claim, mode, prefix }, other),
        Request::Release(claims) => (Command::Release(claims), other),
        Request::Verify(claims) => (Command::Verify(claims), other),
        Request::ForceRelease(claim) => (Command::ForceRelease(claim), other),
        Request::Ask(ask) => (Command::Ask(ask), other),
        Request::Abandon(attempts) => (Command::Abandon(attempts), other),
        Request::Tagged { id, acked, request } => {
            let (inner, form) = command(*request)?;
            (Command::Tagged { id, acked, command: Box::new(inner) }, form)
        }
        request => return Err(Box::new(request)),
    })
}
