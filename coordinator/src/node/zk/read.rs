//! Answers requests without a log entry from the local replica: reads, and requests about watches.
//!
//! In the flow: the conversation calls this at a request's turn, under the read lock of the state and after
//! taking the events of everything in that state from the outbox. So an event never follows a reply with its
//! change, and the event of a watch never precedes the reply to the watch's request.

use std::sync::Arc;

use crate::limits;
use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_consensus::invitations::Invitations;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::{decides, time};
use rowlock_metrics::Metrics;
use rowlock_metrics::memory::Memory;
use rowlock_proto::EventType;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::request::{PathWatch, ReadOp, SetWatches};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{ErrorCode, Request, Right, SessionId, Stat, Zxid};
use rowlock_state::Machine;

use super::announcement::{self, Whereabouts};
use super::identity;
use crate::node::delivery::outbox::Outbox;
use crate::node::delivery::watch::{ConnectionId, Kinds, TooManyWatches, WatchTable, event_frame};

/// Bytes per name in a reply besides the name itself.
const NAME_BYTES: usize = 4;

/// The state and the reader of a local read.
pub(super) struct LocalReader<'a> {
    pub(super) machine: &'a Machine,
    pub(super) watches: &'a Mutex<WatchTable>,
    pub(super) metrics: &'a Metrics,
    pub(super) memory: &'a Memory,
    pub(super) connection: ConnectionId,
    pub(super) outbox: &'a Outbox,
    pub(super) session: SessionId,
    pub(super) identities: &'a Arc<[Id]>,
    pub(super) whereabouts: Whereabouts<'a>,
    /// Invitations to move to the leader, for an active session.
    pub(super) invitations: Option<&'a Invitations>,
}

/// Reply to a request.
pub(super) struct ReadReply {
    /// Encoded events to send before the reply (setWatches: the missed events).
    pub(super) events: Vec<Bytes>,
    pub(super) result: Result<Response, ErrorCode>,
    pub(super) then: Then,
}

/// Fate of the connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Stay,
    Close,
}

impl From<Result<Response, ErrorCode>> for ReadReply {
    fn from(result: Result<Response, ErrorCode>) -> Self {
        ReadReply { events: Vec::new(), result, then: Then::Stay }
    }
}

impl From<TooManyWatches> for ReadReply {
    fn from(_: TooManyWatches) -> Self {
        ReadReply { events: Vec::new(), result: Err(ErrorCode::SystemError), then: Then::Close }
    }
}

impl LocalReader<'_> {
    /// Answers a request, and sets or removes its watches.
    pub(super) fn answer(&self, request: Request) -> ReadReply {
        self.try_answer(request).unwrap_or_else(ReadReply::from)
    }

    fn try_answer(&self, request: Request) -> Result<ReadReply, TooManyWatches> {
        let machine = self.machine;
        Ok(ReadReply::from(match request {
            Request::Exists(of) => self.exists(&of)?,
            Request::GetData(of) => {
                let found = self.data(&of.path);
                self.watch_found(&of, found.is_ok(), Kinds::DATA)?;
                found.map(|(data, stat)| Response::Data(data, stat))
            }
            Request::GetChildren(of) => {
                let found = self.children(&of.path);
                self.watch_found(&of, found.is_ok(), Kinds::CHILD)?;
                found.map(|(names, _)| Response::Children(names))
            }
            Request::GetChildren2(of) => {
                let found = self.children(&of.path);
                self.watch_found(&of, found.is_ok(), Kinds::CHILD)?;
                found.map(|(names, stat)| Response::Children2(names, stat))
            }
            Request::GetAcl(path) => self.acl(&path).map(|(acl, stat)| Response::Acl(acl, stat)),
            Request::GetAllChildrenNumber(path) => match self.announced(&path) {
                Some(_) => Ok(Response::Number(0)),
                None => machine.all_children_number(&path, self.identities).map(Response::Number),
            },
            Request::GetEphemerals(prefix) => {
                Ok(Response::Children(machine.ephemerals(self.session, &prefix)))
            }
            Request::MultiRead(ops) => Ok(Response::Multi(self.read_all(ops))),
            // The reconfig task handles superusers' requests; operations likewise.
            Request::Reconfig { joining, leaving, new_members, config_id } => {
                let wanted = Wanted { joining, leaving, new_members, config_id };
                Err(refusal(machine, &wanted))
            }
            Request::Operate(_) => Err(ErrorCode::NoAuth),
            // The connection applied the options when the request arrived.
            Request::SessionOptions(_) => Ok(Response::Empty),
            Request::Sync(path) if mutant::is(Mutant::SyncIsLocal) => Ok(Response::Path(path)),
            Request::WhoAmI => Ok(Response::WhoAmI(identity::shown(self.identities))),
            // Only read-only connections get here: no other node knows their sessions.
            Request::CloseSession => Ok(Response::Empty),
            Request::SetWatches(watches) | Request::SetWatches2(watches) => {
                let by = (self.connection, &**self.identities);
                let set = |table: &mut _| set_watches(machine, table, by, &watches);
                let events = self.with_watches(set)?;
                return Ok(ReadReply { events, result: Ok(Response::Empty), then: Then::Stay });
            }
            Request::AddWatch { .. } if self.memory.is_full() => Err(ErrorCode::QuotaExceeded),
            Request::AddWatch { path, .. }
                if decides!("watched-path-is-hidden", !machine.rules().may_see(&path, self.identities)) =>
            {
                Err(ErrorCode::NoRight(Right::See))
            }
            Request::AddWatch { path, mode } => {
                self.with_watches(|table| add_watch(table, self.connection, &path, mode))?
            }
            Request::CheckWatches { path, kind } => {
                self.with_watches(|table| check_watches(table, self.connection, &path, kind))
            }
            Request::RemoveWatches { path, kind } => {
                self.with_watches(|table| remove_watches(table, self.connection, &path, kind))
            }
            other => unreachable!("answered elsewhere: {}", other.opcode()),
        }))
    }

    /// Returns this node's announcement, if the path is the announcement's.
    fn announced(&self, path: &str) -> Option<(Bytes, Stat)> {
        let invite = || self.invitations.is_some_and(|it| it.take(time::now(), self.metrics));
        announcement::shown(path, self.whereabouts, self.machine.cluster(), invite)
    }

    fn data(&self, path: &str) -> Result<(Option<Bytes>, Stat), ErrorCode> {
        match self.announced(path) {
            Some((data, stat)) => Ok((Some(data), stat)),
            None => self.machine.get_data(path, self.identities),
        }
    }

    fn children(&self, path: &str) -> Result<(Vec<String>, Stat), ErrorCode> {
        match self.announced(path) {
            Some((_, stat)) => Ok((Vec::new(), stat)),
            None => self.machine.get_children(path, self.identities),
        }
    }

    fn acl(&self, path: &str) -> Result<(Vec<Acl>, Stat), ErrorCode> {
        match self.announced(path) {
            Some((_, stat)) => Ok((announcement::acl(), stat)),
            None => self.machine.get_acl(path, self.identities),
        }
    }

    /// Sets the watch also where no znode exists: it fires on the creation.
    fn exists(&self, of: &PathWatch) -> Result<Result<Response, ErrorCode>, TooManyWatches> {
        let found = match self.announced(&of.path) {
            Some((_, stat)) => Ok(stat),
            None => self.machine.exists(&of.path, self.identities),
        };
        let watchable = matches!(found, Ok(_) | Err(ErrorCode::NoNode));
        self.watch_found(of, watchable, Kinds::DATA)?;
        Ok(found.map(Response::Stat))
    }

    fn watch_found(&self, of: &PathWatch, found: bool, kinds: Kinds) -> Result<(), TooManyWatches> {
        if decides!("read-sets-no-watch", !(of.watch && found)) {
            return Ok(());
        }
        self.with_watches(|table| table.add(self.connection, &of.path, kinds))
    }

    fn with_watches<R>(&self, change: impl FnOnce(&mut WatchTable) -> R) -> R {
        let mut table = self.watches.lock();
        table.join(self.connection, self.outbox, self.identities);
        let result = change(&mut table);
        table.show(self.metrics);
        result
    }

    /// Answers the operations up to a bound on the bytes: a short operation may have a long answer, again and
    /// again.
    fn read_all(&self, ops: Vec<ReadOp>) -> Vec<OpResult> {
        let mut bytes = 0;
        let mut one = |op| {
            if bytes >= limits::MULTI_READ_MAX_BYTES {
                return OpResult::Error(Some(ErrorCode::ThrottledOp));
            }
            let result = self.read_op(op);
            bytes += match &result {
                OpResult::GetData(data, _) => data.as_ref().map_or(0, Bytes::len),
                OpResult::GetChildren(names) => names.iter().map(|name| NAME_BYTES + name.len()).sum(),
                _ => 0,
            };
            result
        };
        ops.into_iter().map(&mut one).collect()
    }

    fn read_op(&self, op: ReadOp) -> OpResult {
        let result = match op {
            ReadOp::GetData(path) => {
                let found = self.data(&path);
                found.map(|(data, stat)| OpResult::GetData(data, stat))
            }
            ReadOp::GetChildren(path) => {
                let found = self.children(&path);
                found.map(|(names, _)| OpResult::GetChildren(names))
            }
        };
        result.unwrap_or_else(|code| OpResult::Error(Some(code)))
    }
}

/// The answer to a client that is no superuser: as ZooKeeper does it, mistakes are found before rights are
/// missed.
pub(super) fn refusal(machine: &Machine, wanted: &Wanted) -> ErrorCode {
    if wanted.config_id != -1 && u64::try_from(wanted.config_id).ok() != config_version(machine) {
        return ErrorCode::BadVersion;
    }
    wanted.change().err().unwrap_or(ErrorCode::NoAuth)
}

/// The version that /zookeeper/config shows.
pub fn config_version(machine: &Machine) -> Option<u64> {
    let (data, _) = machine.get_data("/zookeeper/config", &[]).ok()?;
    let data = data?;
    let text = std::str::from_utf8(&data).ok()?;
    let version = text.lines().find_map(|line| line.strip_prefix("version="))?;
    u64::from_str_radix(version, 16).ok()
}

/// The zxid of a missed event, whose change is not known any more.
const UNKNOWN_CHANGE: Zxid = Zxid(-1);

/// Restores the watches of a returning client: creates the missed event of each, or sets the watch. Returns
/// the encoded events; as in ZooKeeper, a path in two lists gets two events.
fn set_watches(
    machine: &Machine,
    table: &mut WatchTable,
    (connection, who): (ConnectionId, &[Id]),
    watches: &SetWatches,
) -> Result<Vec<Bytes>, TooManyWatches> {
    let seen = watches.relative_zxid;
    let data = |stat: Option<Stat>| match stat {
        None => Some(EventType::NodeDeleted),
        Some(stat) => (stat.mzxid > seen).then_some(EventType::NodeDataChanged),
    };
    let forgets = mutant::is(Mutant::MissedCreationForgotten);
    let exist = |stat: Option<Stat>| stat.filter(|_| !forgets).map(|_| EventType::NodeCreated);
    let child = |stat: Option<Stat>| match stat {
        None => Some(EventType::NodeDeleted),
        Some(stat) => (stat.pzxid > seen).then_some(EventType::NodeChildrenChanged),
    };
    type Missed<'a> = &'a dyn Fn(Option<Stat>) -> Option<EventType>;
    let lists: [(&[String], Kinds, Missed<'_>); 3] = [
        (&watches.data, Kinds::DATA, &data),
        (&watches.exist, Kinds::DATA, &exist),
        (&watches.child, Kinds::CHILD, &child),
    ];
    let mut events = Vec::new();
    for (paths, kinds, missed) in lists {
        for path in paths {
            // A path that the rules hide has no events for this client, missed ones neither.
            let is_seen = machine.rules().may_see(path, who);
            let missed = missed(announcement::stat(machine, path))
                .filter(|_| decides!("missed-change-is-visible", is_seen));
            match missed.filter(|_| !mutant::is(Mutant::MissedEventsForgotten)) {
                None => table.add(connection, path, kinds)?,
                Some(event_type) => {
                    let is_creation = event_type == EventType::NodeCreated;
                    rare::taken(if is_creation { Rare::MissedCreationTold } else { Rare::MissedChangeTold });
                    events.push(event_frame(UNKNOWN_CHANGE, event_type, path));
                }
            }
        }
    }
    for path in &watches.persistent {
        table.add(connection, path, Kinds::PERSISTENT)?;
    }
    for path in &watches.persistent_recursive {
        table.add(connection, path, Kinds::RECURSIVE)?;
    }
    Ok(events)
}

/// Handles addWatch: the znode need not exist.
fn add_watch(
    table: &mut WatchTable,
    connection: ConnectionId,
    path: &str,
    mode: i32,
) -> Result<Result<Response, ErrorCode>, TooManyWatches> {
    let kind = match mode {
        0 => Kinds::PERSISTENT,
        1 => Kinds::RECURSIVE,
        _ => return Ok(Err(ErrorCode::MarshallingError)),
    };
    table.add(connection, path, kind)?;
    Ok(Ok(Response::Number(0)))
}

fn check_watches(
    table: &WatchTable,
    connection: ConnectionId,
    path: &str,
    kind: i32,
) -> Result<Response, ErrorCode> {
    let kinds = kinds_of(kind)?;
    answer(table.kinds(connection, path).intersects(kinds))
}

fn remove_watches(
    table: &mut WatchTable,
    connection: ConnectionId,
    path: &str,
    kind: i32,
) -> Result<Response, ErrorCode> {
    let kinds = kinds_of(kind)?;
    answer(!table.remove(connection, path, kinds).is_empty())
}

fn answer(there_were_some: bool) -> Result<Response, ErrorCode> {
    if there_were_some { Ok(Response::Empty) } else { Err(ErrorCode::NoWatcher) }
}

/// Maps `Watcher.WatcherType` of the wire.
fn kinds_of(number: i32) -> Result<Kinds, ErrorCode> {
    match number {
        1 => Ok(Kinds::CHILD),
        2 => Ok(Kinds::DATA),
        3 => Ok(Kinds::ALL),
        4 => Ok(Kinds::PERSISTENT),
        5 => Ok(Kinds::RECURSIVE),
        _ => Err(ErrorCode::MarshallingError),
    }
}
