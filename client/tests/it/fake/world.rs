//! The state of the fake: znodes, sessions, connections with their watches, and what was asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::time::{self, Instant};
use rowlock_proto::request::{Create, RequestFrame, SetData, SetWatches};
use rowlock_proto::response::{ConnectResponse, ReplyHeader};
use rowlock_proto::{
    ConnectRequest, CreateMode, ErrorCode, EventType, Op, OpCode, OpResult, Request, Response, SessionId,
    Stat, Version, WatchedEvent, Zxid, encode, path,
};

use super::{Fault, Outbox, Server};

type Fits = Box<dyn Fn(&Request) -> bool + Send>;

#[derive(Clone, Default)]
struct Node {
    data: Option<Bytes>,
    stat: Stat,
    created_children: i32,
}

struct Session {
    timeout: Duration,
    touched: Instant,
}

struct Connection {
    session: i64,
    outbox: Outbox,
    data: BTreeSet<String>,
    child: BTreeSet<String>,
}

#[derive(Default)]
pub struct World {
    zxid: i64,
    nodes: BTreeMap<String, Node>,
    sessions: BTreeMap<i64, Session>,
    next_session: i64,
    connections: BTreeMap<u64, Connection>,
    pub faults: Vec<(Fault, Fits)>,
    pub silent: bool,
    /// What was asked: session, opcode, path.
    pub log: Vec<(i64, OpCode, String)>,
    /// Events sent, by session.
    pub events: BTreeMap<i64, usize>,
    pub auths: Vec<String>,
    /// The next sequential child of this parent gets this number.
    pub next_sequence: BTreeMap<String, i32>,
}

impl Server for World {
    fn silent(&mut self) -> &mut bool {
        &mut self.silent
    }

    fn attach(&mut self, number: u64, hello: ConnectRequest, outbox: Outbox) {
        World::attach(self, number, hello, outbox);
    }

    fn request(&mut self, number: u64, frame: RequestFrame) {
        World::request(self, number, frame);
    }

    fn detach(&mut self, number: u64) {
        self.connections.remove(&number);
    }

    fn end_session(&mut self, session: SessionId) {
        World::end_session(self, session.0);
    }

    fn drop_connections(&mut self) {
        World::drop_connections(self);
    }

    fn story(&self) -> String {
        format!("log {:?}", self.log)
    }
}

impl World {
    pub fn children(&self, parent: &str) -> Vec<String> {
        let own = |path: &&String| path.as_str() != "/" && path::parent(path) == Some(parent);
        self.nodes.keys().filter(own).map(|path| path::name(path).to_owned()).collect()
    }

    pub fn asked(&self, opcode: OpCode) -> usize {
        self.log.iter().filter(|(_, op, _)| *op == opcode).count()
    }

    pub fn attachments(&self) -> usize {
        self.connections.len()
    }

    /// The instant at which the servers would expire the session.
    pub fn expiry(&self, session: SessionId) -> Instant {
        let session = &self.sessions[&session.0];
        session.touched + session.timeout
    }

    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session.0)
    }

    pub fn drop_connections(&mut self) {
        for connection in std::mem::take(&mut self.connections).into_values() {
            let _ = connection.outbox.send(None);
        }
    }

    fn attach(&mut self, number: u64, hello: ConnectRequest, outbox: Outbox) {
        let timeout = Duration::from_millis(u64::from(hello.timeout_ms.unsigned_abs()));
        let session = match hello.session_id {
            SessionId::NONE => {
                self.next_session += 1;
                self.zxid += 1;
                self.sessions.insert(self.next_session, Session { timeout, touched: time::now() });
                self.next_session
            }
            SessionId(known) if self.sessions.contains_key(&known) => known,
            _ => 0,
        };
        let mut out = BytesMut::new();
        let answer = ConnectResponse {
            protocol_version: 0,
            timeout_ms: if session == 0 { 0 } else { hello.timeout_ms },
            session_id: SessionId(session),
            password: Bytes::from_static(&[7; 16]),
            read_only: Some(false),
        };
        encode::connect_response(&answer, &mut out);
        let _ = outbox.send(Some(out.freeze()));
        if session == 0 {
            let _ = outbox.send(None);
            return;
        }
        self.sessions.get_mut(&session).unwrap().touched = time::now();
        let connection = Connection { session, outbox, data: BTreeSet::new(), child: BTreeSet::new() };
        self.connections.insert(number, connection);
    }

    fn request(&mut self, number: u64, frame: RequestFrame) {
        let Some(connection) = self.connections.get(&number) else { return };
        let session = connection.session;
        self.sessions.get_mut(&session).unwrap().touched = time::now();
        let RequestFrame { xid, request } = frame;
        self.log.push((session, request.opcode(), path_of(&request)));
        let fault =
            self.faults.iter().position(|(_, fits)| fits(&request)).map(|at| self.faults.remove(at).0);
        if fault == Some(Fault::DropBefore) {
            return self.close(number);
        }
        let closing = request == Request::CloseSession;
        let answer = self.apply(number, session, request);
        if fault == Some(Fault::DropAfter) {
            return self.close(number);
        }
        let mut out = BytesMut::new();
        let header = ReplyHeader { xid, zxid: Zxid(self.zxid), err: answer.as_ref().err().copied() };
        encode::reply(header, answer.as_ref().ok(), &mut out);
        if let Some(connection) = self.connections.get(&number) {
            let _ = connection.outbox.send(Some(out.freeze()));
        }
        if closing {
            self.end_session(session);
        }
    }

    fn close(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            let _ = connection.outbox.send(None);
        }
    }

    pub fn end_session(&mut self, session: i64) {
        self.sessions.remove(&session);
        let owned = |node: &Node| node.stat.ephemeral_owner.0 == session;
        let gone: Vec<String> = self.nodes.iter().filter(|(_, n)| owned(n)).map(|(p, _)| p.clone()).collect();
        for path in gone {
            self.delete(&path).unwrap();
        }
        let theirs = |(number, c): (&u64, &Connection)| (c.session == session).then_some(*number);
        for number in self.connections.iter().filter_map(theirs).collect::<Vec<_>>() {
            self.close(number);
        }
    }

    fn apply(&mut self, number: u64, session: i64, request: Request) -> Result<Response, ErrorCode> {
        match request {
            Request::Ping | Request::CloseSession => Ok(Response::Empty),
            Request::Auth { scheme, .. } if scheme == "digest" => {
                self.auths.push(scheme);
                Ok(Response::Empty)
            }
            Request::Auth { .. } => Err(ErrorCode::AuthFailed),
            Request::Sync(path) => Ok(Response::Path(path)),
            Request::Create2(create) | Request::CreateContainer(create) => self.create(session, create),
            Request::Delete { path, version } => {
                self.check(&path, version)?;
                self.delete(&path).map(|()| Response::Empty)
            }
            Request::SetData(set) => self.set(set).map(Response::Stat),
            Request::Multi(ops) => Ok(Response::Multi(self.multi(session, &ops))),
            Request::Exists(read) => {
                self.watch(number, read.watch, |c| &mut c.data, &read.path);
                self.nodes.get(&read.path).map(|n| Response::Stat(n.stat)).ok_or(ErrorCode::NoNode)
            }
            Request::GetData(read) => {
                let node = self.nodes.get(&read.path).ok_or(ErrorCode::NoNode)?;
                let answer = Response::Data(node.data.clone(), node.stat);
                self.watch(number, read.watch, |c| &mut c.data, &read.path);
                Ok(answer)
            }
            Request::GetChildren(read) => {
                self.existing(&read.path)?;
                self.watch(number, read.watch, |c| &mut c.child, &read.path);
                Ok(Response::Children(self.children(&read.path)))
            }
            Request::GetChildren2(read) => {
                self.existing(&read.path)?;
                self.watch(number, read.watch, |c| &mut c.child, &read.path);
                let stat = self.nodes.get(&read.path).map(|n| n.stat).unwrap_or_default();
                Ok(Response::Children2(self.children(&read.path), stat))
            }
            Request::SetWatches(watches) => {
                self.set_watches(number, watches);
                Ok(Response::Empty)
            }
            _ => Err(ErrorCode::Unimplemented),
        }
    }

    fn set(&mut self, set: SetData) -> Result<Stat, ErrorCode> {
        self.check(&set.path, set.version)?;
        self.zxid += 1;
        let node = self.nodes.get_mut(&set.path).ok_or(ErrorCode::NoNode)?;
        node.data = set.data;
        node.stat.version.0 += 1;
        node.stat.mzxid = Zxid(self.zxid);
        let stat = node.stat;
        self.fire(EventType::NodeDataChanged, &set.path);
        Ok(stat)
    }

    fn check(&self, path: &str, version: Version) -> Result<(), ErrorCode> {
        match self.nodes.get(path) {
            None => Err(ErrorCode::NoNode),
            Some(node) if version != Version::ANY && version != node.stat.version => {
                Err(ErrorCode::BadVersion)
            }
            Some(_) => Ok(()),
        }
    }

    /// All or nothing: tried without anybody watching first, and undone.
    fn multi(&mut self, session: i64, ops: &[Op]) -> Vec<OpResult> {
        let (zxid, nodes, sequences) = (self.zxid, self.nodes.clone(), self.next_sequence.clone());
        let connections = std::mem::take(&mut self.connections);
        let tried: Vec<_> = ops.iter().map(|op| self.op(session, op)).collect();
        self.connections = connections;
        (self.zxid, self.nodes, self.next_sequence) = (zxid, nodes, sequences);
        match tried.iter().position(Result::is_err) {
            None => ops.iter().map(|op| self.op(session, op).unwrap()).collect(),
            Some(failed) => {
                let error = |(at, result): (usize, Result<OpResult, ErrorCode>)| match at.cmp(&failed) {
                    std::cmp::Ordering::Less => OpResult::Error(None),
                    std::cmp::Ordering::Equal => OpResult::Error(result.err()),
                    std::cmp::Ordering::Greater => OpResult::Error(Some(ErrorCode::RuntimeInconsistency)),
                };
                tried.into_iter().enumerate().map(error).collect()
            }
        }
    }

    fn op(&mut self, session: i64, op: &Op) -> Result<OpResult, ErrorCode> {
        match op.clone() {
            Op::Create2(create) => match self.create(session, create)? {
                Response::PathStat(path, stat) => Ok(OpResult::Create2(path, stat)),
                _ => Err(ErrorCode::SystemError),
            },
            Op::Delete { path, version } => {
                self.check(&path, version)?;
                self.delete(&path).map(|()| OpResult::Delete)
            }
            Op::SetData(set) => self.set(set).map(OpResult::SetData),
            Op::Check { path, version } => self.check(&path, version).map(|()| OpResult::Check),
            _ => Err(ErrorCode::Unimplemented),
        }
    }

    fn existing(&self, path: &str) -> Result<(), ErrorCode> {
        if path == "/" || self.nodes.contains_key(path) { Ok(()) } else { Err(ErrorCode::NoNode) }
    }

    fn watch(
        &mut self,
        number: u64,
        wanted: bool,
        table: fn(&mut Connection) -> &mut BTreeSet<String>,
        path: &str,
    ) {
        if let (true, Some(connection)) = (wanted, self.connections.get_mut(&number)) {
            table(connection).insert(path.to_owned());
        }
    }

    fn create(&mut self, session: i64, create: Create) -> Result<Response, ErrorCode> {
        let mode = CreateMode::from_flags(create.flags).ok_or(ErrorCode::BadArguments)?;
        let parent = path::parent(&create.path).ok_or(ErrorCode::BadArguments)?.to_owned();
        self.existing(&parent)?;
        let mut name = create.path;
        if mode.is_sequential() {
            let count = self.nodes.get(&parent).map_or(0, |node| node.created_children);
            let number = self.next_sequence.remove(&parent).unwrap_or(count);
            name = format!("{name}{number:010}");
        }
        if self.nodes.contains_key(&name) {
            return Err(ErrorCode::NodeExists);
        }
        self.zxid += 1;
        let zxid = Zxid(self.zxid);
        let owner = if mode.is_ephemeral() { SessionId(session) } else { SessionId(0) };
        let stat = Stat { czxid: zxid, mzxid: zxid, pzxid: zxid, ephemeral_owner: owner, ..Stat::default() };
        self.nodes.insert(name.clone(), Node { data: create.data, stat, created_children: 0 });
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.created_children += 1;
            node.stat.num_children += 1;
            node.stat.pzxid = zxid;
        }
        self.fire(EventType::NodeCreated, &name);
        self.fire(EventType::NodeChildrenChanged, &parent);
        Ok(Response::PathStat(name, stat))
    }

    /// Deletes a znode, for a client or for the test.
    pub fn delete(&mut self, path: &str) -> Result<(), ErrorCode> {
        self.existing(path)?;
        if !self.children(path).is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        self.zxid += 1;
        self.nodes.remove(path);
        let parent = path::parent(path).unwrap().to_owned();
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.stat.num_children -= 1;
            node.stat.pzxid = Zxid(self.zxid);
        }
        self.fire(EventType::NodeDeleted, path);
        self.fire(EventType::NodeChildrenChanged, &parent);
        Ok(())
    }

    fn fire(&mut self, event_type: EventType, path: &str) {
        let zxid = Zxid(self.zxid);
        for connection in self.connections.values_mut() {
            let data = event_type != EventType::NodeChildrenChanged && connection.data.remove(path);
            let child = matches!(event_type, EventType::NodeChildrenChanged | EventType::NodeDeleted)
                && connection.child.remove(path);
            if data || child {
                send_event(connection, &mut self.events, event_type, path, zxid);
            }
        }
    }

    fn set_watches(&mut self, number: u64, watches: SetWatches) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let (nodes, events, seen) = (&self.nodes, &mut self.events, watches.relative_zxid);
        let mut arm = |kind: u8, path: String| {
            let stat = nodes.get(&path).map(|node| node.stat);
            let missed = match (kind, stat) {
                (0 | 2, None) => Some(EventType::NodeDeleted),
                (0, Some(stat)) if stat.mzxid > seen => Some(EventType::NodeDataChanged),
                (1, Some(_)) => Some(EventType::NodeCreated),
                (2, Some(stat)) if stat.pzxid > seen => Some(EventType::NodeChildrenChanged),
                _ => None,
            };
            match missed {
                Some(event_type) => send_event(connection, events, event_type, &path, Zxid(self.zxid)),
                None if kind == 2 => drop(connection.child.insert(path)),
                None => drop(connection.data.insert(path)),
            }
        };
        watches.data.into_iter().for_each(|path| arm(0, path));
        watches.exist.into_iter().for_each(|path| arm(1, path));
        watches.child.into_iter().for_each(|path| arm(2, path));
    }
}

fn send_event(
    connection: &Connection,
    events: &mut BTreeMap<i64, usize>,
    event_type: EventType,
    path: &str,
    zxid: Zxid,
) {
    let mut out = BytesMut::new();
    encode::event(&WatchedEvent { zxid, event_type, state: 3, path: path.to_owned() }, &mut out);
    let _ = connection.outbox.send(Some(out.freeze()));
    *events.entry(connection.session).or_default() += 1;
}

fn path_of(request: &Request) -> String {
    match request {
        Request::Create2(create) | Request::CreateContainer(create) => create.path.clone(),
        Request::Delete { path, .. } | Request::Sync(path) => path.clone(),
        Request::Exists(read)
        | Request::GetData(read)
        | Request::GetChildren(read)
        | Request::GetChildren2(read) => read.path.clone(),
        Request::SetData(set) => set.path.clone(),
        Request::Multi(ops) => ops.iter().map(op_path).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}

fn op_path(op: &Op) -> &str {
    match op {
        Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) | Op::CreateTtl(create, _) => {
            &create.path
        }
        Op::Delete { path, .. } | Op::Check { path, .. } => path,
        Op::SetData(set) => &set.path,
    }
}
