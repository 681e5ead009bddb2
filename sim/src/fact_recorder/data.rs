//! Facts about the plain znodes of the workloads: the log's answer to a write, in the clients' terms, and a
//! znode's state after a change.

use std::collections::BTreeSet;
use std::sync::Arc;

use rowlock_proto::Request;
use rowlock_proto::acl::Id;
use rowlock_proto::path;
use rowlock_proto::request::{Create, Op as LogOp, SetData};
use rowlock_proto::response::OpResult;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, Stat, Zxid};
use rowlock_state::command::{Command, Proposal};
use rowlock_state::outcome::{Applied, ChangeKind};
use rowlock_state::{Lifetime, Machine};

use crate::history::Fact;
use crate::history::access::{CLOSED, RULES, is_closed};
use crate::history::client::{Answer, DATA, Failure, Logged, Op, Znode, ZnodeChange, name_hash};

/// Reports whether facts about the znode at `path` are recorded.
fn is_told(path: &str) -> bool {
    path.strip_prefix(DATA).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the fact of a write that the log has just run, `None` for other commands and other znodes.
pub(super) fn logged(proposal: &Proposal, applied: &Applied) -> Option<Fact> {
    let command =
        if let Command::Tagged { command, .. } = &proposal.command { command } else { &proposal.command };
    let op = op(command)?;
    let paths = op.paths();
    if paths.is_empty() || !paths.into_iter().all(is_told) {
        return None;
    }
    let result = match &applied.result {
        Ok(outcome) => answer(&op, outcome)?,
        Err(code) => Err(Failure::Refused(*code)),
    };
    Some(Fact::Logged(Arc::new(Logged { zxid: applied.zxid, session: proposal.session, op, result })))
}

fn op(command: &Command) -> Option<Op> {
    match command {
        Command::Client(
            Request::Create(create)
            | Request::Create2(create)
            | Request::CreateContainer(create)
            | Request::CreateTtl(create, _),
        ) => created(create),
        Command::Client(Request::SetData(set)) => Some(set_data(set)),
        Command::Client(Request::Delete { path, version }) => {
            Some(Op::Delete { path: path.clone(), version: *version })
        }
        Command::Client(Request::Multi(ops)) => {
            ops.iter().map(op_of_multi).collect::<Option<_>>().map(Op::Multi)
        }
        Command::Fenced { change, .. } => op_of_multi(change),
        _ => None,
    }
}

fn created(Create { path, data, flags, .. }: &Create) -> Option<Op> {
    let mode = CreateMode::from_flags(*flags)?;
    Some(Op::Create { path: path.clone(), data: data.clone(), mode })
}

fn set_data(SetData { path, data, version }: &SetData) -> Op {
    Op::Set { path: path.clone(), data: data.clone(), version: *version }
}

fn op_of_multi(op: &LogOp) -> Option<Op> {
    match op {
        LogOp::Create(create)
        | LogOp::Create2(create)
        | LogOp::CreateContainer(create)
        | LogOp::CreateTtl(create, _) => created(create),
        LogOp::Delete { path, version } => Some(Op::Delete { path: path.clone(), version: *version }),
        LogOp::SetData(set) => Some(set_data(set)),
        LogOp::Check { path, version } => Some(Op::Check { path: path.clone(), version: *version }),
    }
}

/// Returns the client's view of the outcome, `None` if operation and outcome do not match: no client gets
/// such an answer.
fn answer(op: &Op, outcome: &Response) -> Option<Result<Answer, Failure>> {
    match (op, outcome) {
        (Op::Create { .. }, Response::Path(path)) => {
            Some(Ok(Answer::Created { path: path.clone(), stat: Stat::default() }))
        }
        (Op::Create { .. }, Response::PathStat(path, stat)) => {
            Some(Ok(Answer::Created { path: path.clone(), stat: *stat }))
        }
        (Op::Set { .. }, Response::Stat(stat)) => Some(Ok(Answer::Set(*stat))),
        (Op::Delete { .. }, Response::Empty) => Some(Ok(Answer::Deleted)),
        (Op::Multi(_), Response::Multi(results)) => Some(answers(results)),
        (_, Response::Multi(behind_fence)) => match answers(behind_fence) {
            Ok(Answer::Multi(mut each)) => each.pop().map(Ok),
            // The token holds the lock no more: nothing has run.
            Err(Failure::RefusedAt(0, _)) => None,
            Err(Failure::RefusedAt(_, code)) => Some(Err(Failure::Refused(code))),
            _ => None,
        },
        _ => None,
    }
}

fn answers(results: &[OpResult]) -> Result<Answer, Failure> {
    // Operations before the failed one carry no code, later ones a code of their own.
    if let Some((at, code)) = results.iter().enumerate().find_map(|(at, result)| match result {
        OpResult::Error(Some(code)) => Some((at, *code)),
        _ => None,
    }) {
        return Err(Failure::RefusedAt(at, code));
    }
    let each = results.iter().map(|result| match result {
        OpResult::Create(path) => Ok(Answer::Created { path: path.clone(), stat: Stat::default() }),
        OpResult::Create2(path, stat)
        | OpResult::CreateContainer(path, stat)
        | OpResult::CreateTtl(path, stat) => Ok(Answer::Created { path: path.clone(), stat: *stat }),
        OpResult::Delete => Ok(Answer::Deleted),
        OpResult::SetData(stat) => Ok(Answer::Set(*stat)),
        OpResult::Check => Ok(Answer::Checked),
        OpResult::Error(_) | OpResult::GetData(..) | OpResult::GetChildren(_) => {
            Err(Failure::Refused(ErrorCode::RuntimeInconsistency))
        }
    });
    each.collect::<Result<Vec<_>, _>>().map(Answer::Multi)
}

/// Returns facts that lead to all znodes of a state, each at its last change.
pub(super) fn all(machine: &Machine) -> Vec<Fact> {
    let (mut facts, mut left) = (Vec::new(), vec![DATA.to_owned()]);
    while let Some(path) = left.pop() {
        let Some(stat) = machine.stat(&path) else { continue };
        let zxid = stat.czxid.max(stat.mzxid).max(stat.pzxid);
        facts.push(znode(machine, zxid, &path, ZnodeChange::Created));
        let children = machine.get_children(&path, &[]).map(|(names, _)| names).unwrap_or_default();
        for name in children {
            let name_hash = name_hash(&name);
            facts.push(znode(machine, zxid, &path, ZnodeChange::Child { name_hash }));
            left.push(path::join(&path, &name));
        }
    }
    facts
}

/// Returns the containers and TTL znodes.
pub(super) fn wild(machine: &Machine) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    machine.each_znode(|path, znode| {
        if matches!(znode.lifetime, Lifetime::Container | Lifetime::Ttl(_)) && is_told(path) {
            found.insert(path.to_owned());
        }
    });
    found
}

/// Returns the facts about a change of a znode: its own, and its parent's for a created or deleted child.
pub(super) fn changed(machine: &Machine, zxid: Zxid, path: &str, kind: ChangeKind) -> Vec<Fact> {
    if !is_told(path) {
        return Vec::new();
    }
    let change = match kind {
        ChangeKind::Created => ZnodeChange::Created,
        ChangeKind::Deleted => ZnodeChange::Deleted,
        ChangeKind::DataChanged => ZnodeChange::Data,
    };
    let mut facts = vec![znode(machine, zxid, path, change)];
    if let (ChangeKind::Created | ChangeKind::Deleted, Some(parent)) = (kind, path::parent(path))
        && is_told(parent)
    {
        facts.push(znode(
            machine,
            zxid,
            parent,
            ZnodeChange::Child { name_hash: name_hash(path::name(path)) },
        ));
    }
    facts
}

/// Returns the fact about a znode's ACL after a change of the znode, if the ACL may be closed.
pub(super) fn acl(machine: &Machine, zxid: Zxid, path: &str) -> Option<Fact> {
    let acl = machine.acl(path).map(<[_]>::to_vec);
    is_closed(path).then(|| Fact::Acl { zxid, path: path.to_owned(), acl })
}

/// Returns the ACLs of a state that may be closed.
pub(super) fn acls(machine: &Machine) -> Vec<Fact> {
    let (mut facts, mut left) = (Vec::new(), vec![CLOSED.to_owned()]);
    while let Some(path) = left.pop().filter(|path| machine.acl(path).is_some()) {
        let names = machine.get_children(&path, &superuser()).map(|(names, _)| names).unwrap_or_default();
        left.extend(names.iter().map(|name| path::join(&path, name)));
        facts.extend(acl(machine, machine.last_zxid(), &path));
    }
    facts
}

/// Returns the path of a znode whose ACL the command sets.
pub(super) fn path_of_acl(command: &Command) -> Option<&str> {
    match command {
        Command::Tagged { command, .. } => path_of_acl(command),
        Command::Client(Request::SetAcl(set)) => Some(&set.path),
        _ => None,
    }
}

fn superuser() -> [Id; 1] {
    [Id { scheme: "super".to_owned(), id: String::new() }]
}

/// Returns the rules of locks in a state.
pub(super) fn rules(machine: &Machine, zxid: Zxid) -> Fact {
    let data = machine.get_data(RULES, &superuser()).ok().and_then(|(data, _)| data).unwrap_or_default();
    Fact::Rules { zxid, text: String::from_utf8_lossy(&data).into_owned() }
}

fn znode(machine: &Machine, zxid: Zxid, path: &str, change: ZnodeChange) -> Fact {
    let data = || machine.get_data(path, &[]).ok().and_then(|(data, _)| data);
    let now = machine.stat(path).map(|stat| (data(), stat));
    Fact::Znode(Arc::new(Znode { zxid, path: path.to_owned(), change, now }))
}
