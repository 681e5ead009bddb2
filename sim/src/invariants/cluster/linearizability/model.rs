//! Sequential specification of znodes, as simple as possible.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::{ErrorCode, SessionId, Version};

use crate::history::client::{Answer, Failure, Op};

/// A path; clones are cheap.
pub(super) type Path = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node {
    pub(super) version: i32,
    pub(super) data: Option<Bytes>,
    /// Owner of an ephemeral znode, else `SessionId::NONE`.
    pub(super) owner: SessionId,
}

pub(super) type Nodes = BTreeMap<Path, Node>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// Success, with the version after each operation.
    Done(Vec<i32>),
    /// Refusal of the operation at this index with this code (a number, because codes have no order).
    Refused(usize, i32),
    Seen(Option<(i32, Option<Bytes>)>),
    /// The call has no effect and never will: its session has gone on without the call, or the refusal has a
    /// reason outside the model.
    Never,
}

/// Stands in the place of a version: the znode is deleted.
const DELETED: i32 = -2;
const CHECKED: i32 = -3;

pub(super) fn run(nodes: &mut Nodes, op: &Op, session: SessionId) -> Outcome {
    let all = match op {
        Op::Multi(all) => &all[..],
        one => std::slice::from_ref(one),
    };
    // Multi: all or nothing. A single refused operation changes nothing.
    let mut changed = if all.len() > 1 { Some(nodes.clone()) } else { None };
    let target = changed.as_mut().unwrap_or(nodes);
    let mut versions = Vec::with_capacity(all.len());
    for (at, op) in all.iter().enumerate() {
        match one(target, op, session) {
            Ok(version) => versions.push(version),
            Err(code) => return Outcome::Refused(at, code.code()),
        }
    }
    if let Some(changed) = changed {
        *nodes = changed;
    }
    Outcome::Done(versions)
}

fn one(nodes: &mut Nodes, op: &Op, session: SessionId) -> Result<i32, ErrorCode> {
    let expect = |node: Option<&Node>, version: Version| {
        let node = node.ok_or(ErrorCode::NoNode)?;
        let is_expected = version == Version::ANY || version.0 == node.version;
        if is_expected { Ok(node.version) } else { Err(ErrorCode::BadVersion) }
    };
    match op {
        // The number makes a znode that no other client knows.
        Op::Create { mode, .. } if mode.is_sequential() => Ok(0),
        Op::Create { path, .. } if nodes.contains_key(path.as_str()) => Err(ErrorCode::NodeExists),
        Op::Create { path, data, mode } => {
            let owner = if mode.is_ephemeral() { session } else { SessionId::NONE };
            nodes.insert(path.as_str().into(), Node { version: 0, data: data.clone(), owner });
            Ok(0)
        }
        Op::Set { path, data, version } => {
            let new = expect(nodes.get(path.as_str()), *version)?.wrapping_add(1);
            if let Some(node) = nodes.get_mut(path.as_str()) {
                (node.version, node.data) = (new, data.clone());
            }
            Ok(new)
        }
        Op::Delete { path, version } => {
            expect(nodes.get(path.as_str()), *version)?;
            nodes.remove(path.as_str());
            Ok(DELETED)
        }
        Op::Check { path, version } => expect(nodes.get(path.as_str()), *version).map(|_| CHECKED),
        _ => Ok(0),
    }
}

/// Reports whether the cluster may refuse `op` for a reason outside the model: a create without a parent, a
/// delete of a znode with children, a growing write while too few disks have room.
pub(super) fn may_be_refused_otherwise(op: &Op) -> bool {
    match op {
        Op::Create { .. } | Op::Delete { .. } | Op::Set { .. } => true,
        Op::Multi(all) => all.iter().any(may_be_refused_otherwise),
        _ => false,
    }
}

/// Reads the znode at `path`.
pub(super) fn read(nodes: &Nodes, path: &str) -> Outcome {
    Outcome::Seen(nodes.get(path).map(|node| (node.version, node.data.clone())))
}

/// Reports whether a client may get `result` for a call with this outcome; `None` means no outcome so far.
pub(super) fn fits(op: &Op, outcome: Option<&Outcome>, result: &Result<Answer, Failure>) -> bool {
    let has_no_effect = !matches!(outcome, Some(Outcome::Done(_)));
    match result {
        Err(Failure::Unknown) => true,
        Err(Failure::NotDone) => has_no_effect,
        Err(Failure::Refused(code)) => refusal_fits(op, outcome, 0, *code),
        Err(Failure::RefusedAt(at, code)) => refusal_fits(op, outcome, *at, *code),
        Ok(answer) => match outcome {
            Some(Outcome::Done(versions)) => versions_in(answer).as_ref() == Some(versions),
            Some(Outcome::Seen(seen)) => read_fits(seen.as_ref(), answer),
            _ => false,
        },
    }
}

/// Accepts any refusal with a reason outside the model, if the call had no effect.
fn refusal_fits(op: &Op, outcome: Option<&Outcome>, at: usize, code: ErrorCode) -> bool {
    let refused = match op {
        Op::Multi(all) => all.get(at),
        one => Some(one),
    };
    if let Op::Read { .. } = op {
        return code != ErrorCode::NoNode || matches!(outcome, Some(Outcome::Seen(None)));
    }
    let is_modelled = match refused {
        Some(Op::Create { .. }) => code == ErrorCode::NodeExists,
        Some(_) => matches!(code, ErrorCode::NoNode | ErrorCode::BadVersion),
        None => false,
    };
    match outcome {
        Some(Outcome::Refused(known_at, known)) => !is_modelled || (*known_at, *known) == (at, code.code()),
        Some(Outcome::Done(_)) => false,
        _ => !is_modelled,
    }
}

fn versions_in(answer: &Answer) -> Option<Vec<i32>> {
    match answer {
        Answer::Created { stat, .. } | Answer::Set(stat) => Some(vec![stat.version.0]),
        Answer::Deleted => Some(vec![DELETED]),
        Answer::Checked => Some(vec![CHECKED]),
        Answer::Multi(all) => all.iter().map(|one| versions_in(one)?.pop()).collect(),
        _ => None,
    }
}

fn read_fits(seen: Option<&(i32, Option<Bytes>)>, answer: &Answer) -> bool {
    match (seen, answer) {
        (Some((version, data)), Answer::Data(read, stat)) => data == read && *version == stat.version.0,
        (Some((version, _)), Answer::Exists(Some(stat)) | Answer::Children(_, stat)) => {
            *version == stat.version.0
        }
        (None, Answer::Exists(None)) => true,
        _ => false,
    }
}
