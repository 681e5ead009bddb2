//! Requests about watches: setWatches, addWatch, checkWatches, removeWatches.

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_proto::acl::Id;
use rowlock_proto::request::SetWatches;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, EventType, Stat, Zxid};
use rowlock_state::Machine;

use super::announcement;
use crate::node::delivery::watch::{ConnectionId, Kinds, TooManyWatches, WatchTable, event_frame};

/// The zxid of a missed event, whose change is not known any more.
const UNKNOWN_CHANGE: Zxid = Zxid(-1);

/// Restores the watches of a returning client: creates the missed event of each, or sets the watch. Returns
/// the encoded events; as in ZooKeeper, a path in two lists gets two events.
pub(super) fn set_watches(
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
pub(super) fn add_watch(
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

pub(super) fn check_watches(
    table: &WatchTable,
    connection: ConnectionId,
    path: &str,
    kind: i32,
) -> Result<Response, ErrorCode> {
    let kinds = kinds_of(kind)?;
    answer(table.kinds(connection, path).intersects(kinds))
}

pub(super) fn remove_watches(
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
