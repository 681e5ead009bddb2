//! The state machine once more, as plainly as possible: a flat map from path to znode, everything found by
//! scanning, multi by copying all and throwing the copy away. Slow, but every rule is one visible line.

use std::collections::BTreeMap;

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::request::{Create, Op, SetAcl};
use rowlock_proto::response::OpResult;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, SessionId, Stat, Version, Zxid};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command, Proposal, Stamp};
use rowlock_state::outcome::{Attached, ChangeKind, SessionEnd};

/// What a sink was told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Changed { zxid: Zxid, path: String, kind: ChangeKind, acl: Vec<Acl>, parent_acl: Vec<Acl> },
    Opened(SessionId, Attachment, u32),
    Attached(SessionId, Attachment, u32),
    Ended(SessionId, SessionEnd),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub data: Option<Bytes>,
    pub acl: Vec<Acl>,
    /// `data_length` and `num_children` are filled in when it is asked for.
    pub stat: Stat,
    creates: i32,
    container: bool,
    ttl_ms: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    proof: Proof,
    pub timeout_ms: u32,
    pub attachment: Attachment,
}

#[derive(Clone, Debug)]
pub struct Naive {
    pub nodes: BTreeMap<String, Node>,
    pub sessions: BTreeMap<SessionId, Open>,
    pub zxid: Zxid,
    time_ms: i64,
    enforce_quota: bool,
    /// Of the command that runs.
    events: Vec<Event>,
}

type Reply<T> = Result<T, ErrorCode>;

impl Naive {
    pub fn new() -> Self {
        let reserved = |perms, version, children: i32| Node {
            data: Some(Bytes::new()),
            acl: vec![Acl { perms, id: Id::anyone() }],
            stat: Stat {
                version: Version(version),
                aversion: Version(version),
                cversion: Version(-children),
                ..Stat::default()
            },
            creates: 0,
            container: false,
            ttl_ms: None,
        };
        let nodes = [
            ("/", reserved(perms::ALL, 0, 1)),
            ("/zookeeper", reserved(perms::ALL, 0, 2)),
            ("/zookeeper/config", reserved(perms::READ, -1, 0)),
            ("/zookeeper/quota", reserved(perms::ALL, 0, 0)),
        ];
        let nodes = nodes.into_iter().map(|(path, node)| (path.to_owned(), node)).collect();
        let sessions = BTreeMap::new();
        Naive { nodes, sessions, zxid: Zxid(0), time_ms: 0, enforce_quota: false, events: Vec::new() }
    }

    pub fn apply(
        &mut self,
        stamp: Stamp,
        proposal: &Proposal,
    ) -> (Reply<(Response, Option<Attached>)>, Vec<Event>) {
        self.time_ms = self.time_ms.max(stamp.time_ms);
        self.enforce_quota = stamp.enforce_quota;
        let result = self.run(proposal);
        (result, std::mem::take(&mut self.events))
    }

    fn raise_tokens(&mut self, above: i64) -> Reply<Response> {
        if above >= 1 << 55 {
            return Err(ErrorCode::BadArguments);
        }
        self.zxid.0 = self.zxid.0.max(above);
        Ok(Response::Empty)
    }

    /// Runs the proposal. The attachment is that of a session which it opens or attaches.
    fn run(&mut self, proposal: &Proposal) -> Reply<(Response, Option<Attached>)> {
        let mut attached = None;
        self.answer(proposal, &mut attached).map(|response| (response, attached))
    }

    fn answer(&mut self, proposal: &Proposal, attached: &mut Option<Attached>) -> Reply<Response> {
        match &proposal.command {
            Command::Noop => return Ok(Response::Empty),
            Command::RaiseTokens { above } => return self.raise_tokens(above.0),
            Command::Reattach { from: None, session, proof, timeout_ms } => {
                let open = self.sessions.get_mut(session).filter(|open| open.proof == *proof);
                let open = open.ok_or(ErrorCode::SessionExpired)?;
                open.attachment.0 += 1;
                open.timeout_ms = *timeout_ms;
                let (attachment, timeout_ms) = (open.attachment, *timeout_ms);
                self.events.push(Event::Attached(*session, attachment, timeout_ms));
                *attached = Some(Attached { session: *session, attachment, timeout_ms });
                return Ok(Response::Empty);
            }
            Command::ExpireSession { session, attachment } => self.admit(*session, *attachment)?,
            Command::OpenSession { .. } | Command::Reap { .. } | Command::Configure { .. } => {}
            _ => self.admit(proposal.session, proposal.attachment)?,
        }
        self.zxid.0 += 1;
        let (session, who) = (proposal.session, &*proposal.identities);
        match &proposal.command {
            Command::OpenSession { proof, timeout_ms } => {
                let session = SessionId((proposal.origin.node.0 as i64 % 128) << 56 | self.zxid.0);
                let (proof, timeout_ms, attachment) = (*proof, *timeout_ms, Attachment(1));
                self.sessions.insert(session, Open { proof, timeout_ms, attachment });
                self.events.push(Event::Opened(session, attachment, timeout_ms));
                *attached = Some(Attached { session, attachment, timeout_ms });
                Ok(Response::Empty)
            }
            Command::Client(Request::CloseSession) => Ok(self.end(session, SessionEnd::Closed)),
            Command::ExpireSession { session, .. } => Ok(self.end(*session, SessionEnd::Expired)),
            Command::Client(Request::Create2(create)) => self.created(session, who, create, None),
            Command::Client(Request::CreateTtl(create, ttl_ms)) => {
                self.created(session, who, create, Some(*ttl_ms))
            }
            Command::Client(Request::Delete { path, version }) => {
                self.delete(who, path, *version).map(|()| Response::Empty)
            }
            Command::Client(Request::SetData(set)) => {
                self.set(who, &set.path, &set.data, set.version).map(Response::Stat)
            }
            Command::Client(Request::SetAcl(set)) => self.set_acl(who, set),
            Command::Client(Request::Multi(ops)) => Ok(Response::Multi(self.multi(session, who, ops))),
            Command::Reap { path } => {
                let node = self.nodes.get(path).ok_or(ErrorCode::NoNode)?;
                if !self.children(path).is_empty() {
                    return Err(ErrorCode::NotEmpty);
                }
                let container_is_due = node.container && node.creates > 0;
                let ttl_is_due = node.ttl_ms.is_some_and(|ttl| self.time_ms - node.stat.mtime_ms > ttl);
                if !container_is_due && !ttl_is_due {
                    return Err(ErrorCode::BadVersion);
                }
                self.remove(path);
                Ok(Response::Empty)
            }
            Command::Configure { config } => {
                let path = "/zookeeper/config";
                self.put(path, &Some(Bytes::from(config.clone())), -1);
                Ok(Response::Empty)
            }
            Command::Noop | Command::Reattach { .. } => unreachable!(),
            other => unreachable!("not part of this model: {other:?}"),
        }
    }

    fn set_acl(&mut self, who: &[Id], set: &SetAcl) -> Reply<Response> {
        valid(&set.path)?;
        let acl = resolve(set.acl.as_deref(), who)?;
        let node = self.nodes.get_mut(&set.path).ok_or(ErrorCode::NoNode)?;
        permit(node, perms::ADMIN, who)?;
        expect(node.stat.aversion, set.version)?;
        node.acl = acl;
        node.stat.aversion.0 = if node.stat.aversion.0 == -1 { 0 } else { node.stat.aversion.0 + 1 };
        Ok(Response::Stat(self.shown(&set.path).1))
    }

    fn created(
        &mut self,
        session: SessionId,
        who: &[Id],
        create: &Create,
        ttl_ms: Option<i64>,
    ) -> Reply<Response> {
        let path = self.create(session, who, create, ttl_ms)?;
        let stat = self.stat(&path);
        Ok(Response::PathStat(path, stat))
    }

    fn admit(&self, session: SessionId, attachment: Attachment) -> Reply<()> {
        let open = self.sessions.get(&session).ok_or(ErrorCode::SessionExpired)?;
        if open.attachment == attachment { Ok(()) } else { Err(ErrorCode::SessionMoved) }
    }

    fn end(&mut self, session: SessionId, end: SessionEnd) -> Response {
        for path in self.owned(session) {
            self.remove(&path);
        }
        self.sessions.remove(&session);
        self.events.push(Event::Ended(session, end));
        Response::Empty
    }

    fn multi(&mut self, session: SessionId, who: &[Id], ops: &[Op]) -> Vec<OpResult> {
        let before = self.clone();
        let mut results = Vec::new();
        for op in ops {
            match self.op(session, who, op) {
                Ok(result) => results.push(result),
                Err(code) => {
                    *self = before;
                    results.fill(OpResult::Error(None));
                    results.push(OpResult::Error(Some(code)));
                    results.resize(ops.len(), OpResult::Error(Some(ErrorCode::RuntimeInconsistency)));
                    break;
                }
            }
        }
        results
    }

    fn op(&mut self, session: SessionId, who: &[Id], op: &Op) -> Reply<OpResult> {
        Ok(match op {
            Op::Create(create) if create.flags != 4 => {
                OpResult::Create(self.create(session, who, create, None)?)
            }
            Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) => {
                let path = self.create(session, who, create, None)?;
                OpResult::Create2(path.clone(), self.stat(&path))
            }
            Op::CreateTtl(create, ttl_ms) => {
                let path = self.create(session, who, create, Some(*ttl_ms))?;
                OpResult::Create2(path.clone(), self.stat(&path))
            }
            Op::Delete { path, version } => {
                self.delete(who, path, *version)?;
                OpResult::Delete
            }
            Op::SetData(set) => OpResult::SetData(self.set(who, &set.path, &set.data, set.version)?),
            Op::Check { path, version } => {
                valid(path)?;
                let node = self.nodes.get(path).ok_or(ErrorCode::NoNode)?;
                permit(node, perms::READ, who)?;
                expect(node.stat.version, *version)?;
                OpResult::Check
            }
        })
    }

    fn create(
        &mut self,
        session: SessionId,
        who: &[Id],
        create: &Create,
        ttl_ms: Option<i64>,
    ) -> Reply<String> {
        let Create { path, data, acl, flags } = create;
        let (ephemeral, sequential, container, ttl) = match flags {
            0 => (false, false, false, false),
            1 => (true, false, false, false),
            2 => (false, true, false, false),
            3 => (true, true, false, false),
            4 => (false, false, true, false),
            5 => (false, false, false, true),
            6 => (false, true, false, true),
            _ => return Err(ErrorCode::BadArguments),
        };
        if ttl != ttl_ms.is_some() || ttl_ms.is_some_and(|ttl_ms| ttl_ms <= 0 || ttl_ms > 0xff_ffff_ffff) {
            return Err(ErrorCode::BadArguments);
        }
        if !path.contains('/') || path.contains('\0') {
            return Err(ErrorCode::BadArguments);
        }
        let acl = resolve(acl.as_deref(), who)?;
        let parent_path = parent(path);
        let parent = self.nodes.get(&parent_path).ok_or(ErrorCode::NoNode)?;
        permit(parent, perms::CREATE, who)?;
        let path = if sequential { format!("{path}{:010}", parent.creates) } else { path.clone() };
        valid(&path)?;
        if self.nodes.contains_key(&path) {
            return Err(ErrorCode::NodeExists);
        }
        if parent.stat.ephemeral_owner != SessionId::NONE {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        self.quota(&path, 1, data.as_ref().map_or(0, Bytes::len) as i64)?;
        let (zxid, time_ms) = (self.zxid, self.time_ms);
        let ephemeral_owner = if ephemeral { session } else { SessionId::NONE };
        let stat = Stat {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime_ms: time_ms,
            mtime_ms: time_ms,
            ephemeral_owner,
            ..Stat::default()
        };
        let parent = self.nodes.get_mut(&parent_path).unwrap();
        parent.creates += 1;
        parent.stat.cversion.0 += 1;
        parent.stat.pzxid = zxid;
        self.nodes
            .insert(path.clone(), Node { data: data.clone(), acl, stat, creates: 0, container, ttl_ms });
        self.tell(&path, ChangeKind::Created);
        Ok(path)
    }

    fn delete(&mut self, who: &[Id], path: &str, version: Version) -> Reply<()> {
        let reserved = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"].contains(&path);
        if !path.contains('/') || path.contains('\0') || reserved {
            return Err(ErrorCode::BadArguments);
        }
        permit(self.nodes.get(&parent(path)).ok_or(ErrorCode::NoNode)?, perms::DELETE, who)?;
        let node = self.nodes.get(path).ok_or(ErrorCode::NoNode)?;
        expect(node.stat.version, version)?;
        if !self.children(path).is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        self.remove(path);
        Ok(())
    }

    fn set(&mut self, who: &[Id], path: &str, data: &Option<Bytes>, version: Version) -> Reply<Stat> {
        valid(path)?;
        let node = self.nodes.get(path).ok_or(ErrorCode::NoNode)?;
        permit(node, perms::WRITE, who)?;
        let length = |data: &Option<Bytes>| data.as_ref().map_or(0, Bytes::len) as i64;
        self.quota(path, 0, length(data) - length(&node.data))?;
        expect(node.stat.version, version)?;
        self.put(path, data, node.stat.version.0 + 1);
        Ok(self.stat(path))
    }

    fn put(&mut self, path: &str, data: &Option<Bytes>, version: i32) {
        let node = self.nodes.get_mut(path).unwrap();
        node.data = data.clone();
        node.stat.version = Version(version);
        node.stat.mzxid = self.zxid;
        node.stat.mtime_ms = self.time_ms;
        self.tell(path, ChangeKind::DataChanged);
    }

    fn remove(&mut self, path: &str) {
        self.tell(path, ChangeKind::Deleted);
        self.nodes.remove(path);
        let zxid = self.zxid;
        let parent = self.nodes.get_mut(&parent(path)).unwrap();
        parent.stat.cversion.0 += 1;
        parent.stat.pzxid = zxid;
    }

    fn tell(&mut self, path: &str, kind: ChangeKind) {
        let acl = self.nodes[path].acl.clone();
        let parent_acl = self.nodes[&parent(path)].acl.clone();
        self.events.push(Event::Changed { zxid: self.zxid, path: path.to_owned(), kind, acl, parent_acl });
    }

    pub fn children(&self, path: &str) -> Vec<String> {
        let below = |candidate: &&String| *candidate != "/" && parent(candidate) == path;
        self.nodes
            .keys()
            .filter(below)
            .map(|child| child[child.rfind('/').unwrap() + 1..].to_owned())
            .collect()
    }

    pub fn stat(&self, path: &str) -> Stat {
        let node = &self.nodes[path];
        let data_length = node.data.as_ref().map_or(0, Bytes::len) as i32;
        Stat { data_length, num_children: self.children(path).len() as i32, ..node.stat }
    }

    /// Znodes and bytes at `path` and below.
    fn used(&self, path: &str) -> (i64, i64) {
        let within = |other: &str| other == path || other.starts_with(&format!("{path}/"));
        let nodes = self.nodes.iter().filter(|(other, _)| within(other));
        nodes.fold((0, 0), |(count, bytes), (_, node)| {
            (count + 1, bytes + node.data.as_ref().map_or(0, Bytes::len) as i64)
        })
    }

    fn quota(&self, path: &str, count_diff: i64, bytes_diff: i64) -> Reply<()> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).filter(|end| *end > 0);
        let limits = |end| self.nodes.get(&format!("/zookeeper/quota{}/zookeeper_limits", &path[..end]));
        let innermost = ends.filter_map(|end| Some((&path[..end], limits(end)?))).reduce(|_, inner| inner);
        let Some((path, limits)) = innermost.filter(|_| self.enforce_quota) else { return Ok(()) };
        let text = String::from_utf8(limits.data.clone().unwrap_or_default().to_vec()).unwrap_or_default();
        // Enough for what the property writes.
        let hard = |key: &str| text.split(';').find_map(|pair| pair.strip_prefix(key)?.parse::<i64>().ok());
        let (count, bytes) = self.used(path);
        let over = |hard: Option<i64>, used, diff| {
            diff != 0 && hard.is_some_and(|max| max >= 0 && used + diff > max)
        };
        let over_count = over(hard("countHardLimit="), count, count_diff);
        let over_bytes = over(hard("byteHardLimit="), bytes, bytes_diff);
        if over_count || over_bytes { Err(ErrorCode::QuotaExceeded) } else { Ok(()) }
    }

    pub fn shown(&self, path: &str) -> (Option<Bytes>, Stat) {
        let subject =
            path.strip_prefix("/zookeeper/quota/").and_then(|rest| rest.strip_suffix("/zookeeper_stats"));
        let (mut data, mut stat) = (self.nodes[path].data.clone(), self.stat(path));
        if let Some(subject) = subject {
            let (count, bytes) = self.used(&format!("/{subject}"));
            let text = format!("count={count},bytes={bytes}");
            stat.data_length = text.len() as i32;
            data = Some(text.into());
        }
        (data, stat)
    }

    pub fn owned(&self, session: SessionId) -> Vec<String> {
        let owned = self.nodes.iter().filter(|(_, node)| node.stat.ephemeral_owner == session);
        owned.map(|(path, _)| path.clone()).collect()
    }

    pub fn descendants(&self, path: &str) -> usize {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        self.nodes.keys().filter(|other| *other != "/" && other.starts_with(&prefix)).count()
    }
}

fn parent(path: &str) -> String {
    match path.rfind('/').unwrap() {
        0 => "/".to_owned(),
        slash => path[..slash].to_owned(),
    }
}

fn valid(path: &str) -> Reply<()> {
    let good_name = |name: &str| !["", ".", ".."].contains(&name) && !name.contains(|c: char| c.is_control());
    let good = path == "/" || path.strip_prefix('/').is_some_and(|names| names.split('/').all(good_name));
    if good { Ok(()) } else { Err(ErrorCode::BadArguments) }
}

fn expect(version: Version, expected: Version) -> Reply<()> {
    if expected == Version(-1) || version == expected { Ok(()) } else { Err(ErrorCode::BadVersion) }
}

/// For the identities that the property uses: `world`, `digest` and `super`.
pub fn allows(acl: &[Acl], perm: i32, who: &[Id]) -> bool {
    let of_bit = |entry: &&Acl| entry.perms & perm > 0;
    who.iter().any(|id| id.scheme == "super")
        || acl.iter().filter(of_bit).any(|entry| entry.id == Id::anyone() || who.contains(&entry.id))
}

fn permit(node: &Node, perm: i32, who: &[Id]) -> Reply<()> {
    if allows(&node.acl, perm, who) { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

fn resolve(acl: Option<&[Acl]>, who: &[Id]) -> Reply<Vec<Acl>> {
    let mut resolved: Vec<Acl> = Vec::new();
    for entry in acl.unwrap_or_default() {
        let ids: Vec<Id> = match entry.id.scheme.as_str() {
            "auth" => who.iter().filter(|id| id.scheme == "digest").cloned().collect(),
            "world" | "digest" => vec![entry.id.clone()],
            _ => Vec::new(),
        };
        if ids.is_empty() {
            return Err(ErrorCode::InvalidAcl);
        }
        resolved.extend(ids.into_iter().map(|id| Acl { perms: entry.perms, id }));
    }
    let mut unique: Vec<Acl> = Vec::new();
    for entry in resolved {
        if !unique.contains(&entry) {
            unique.push(entry);
        }
    }
    if unique.is_empty() { Err(ErrorCode::InvalidAcl) } else { Ok(unique) }
}
