//! The znode by which a node says what it understands beyond ZooKeeper's protocol (docs/protocol.md).
//!
//! It belongs to the binary and not to the state: no log entry makes it, no list of children shows it (a copy of the
//! tree must not try to copy it), and it is readable on a node without a quorum. For reads it stands in front of the
//! state; writes go to the state, which keeps its name free.

use bytes::Bytes;
use rowlock_proto::Stat;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_state::Machine;

/// One `name version` per line.
const TEXT: &str = "acquire 1\ntagged 1\nsession-options 1\nreport 1\n";

/// Data and Stat, if the path is the announcement's.
pub(super) fn shown(path: &str) -> Option<(Bytes, Stat)> {
    let stat = || Stat { data_length: TEXT.len() as i32, ..Stat::default() };
    (path == ANNOUNCEMENT).then(|| (Bytes::from_static(TEXT.as_bytes()), stat()))
}

/// Everybody may read it, and nobody anything else.
pub(super) fn acl() -> Vec<Acl> {
    vec![Acl { perms: perms::READ, id: Id::anyone() }]
}

/// The Stat of a znode as clients see it, whatever their permissions: of the announcement or of the state's.
pub(super) fn stat(machine: &Machine, path: &str) -> Option<Stat> {
    shown(path).map(|(_, stat)| stat).or_else(|| machine.stat(path))
}
