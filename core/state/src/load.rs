//! Loads the state from a snapshot's records, from the leaves up, without a walk over the tree.
//!
//! Trusts nothing: bytes with right checksums but a wrong structure are damage, and cause no panic.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::{SessionId, Zxid};

use crate::acl_table::{Acls, SharedAcl};
use crate::arena::{Arena, Number};
use crate::command::Ordinal;
use crate::locks::{Contender, Key, Question, queue_path};
use crate::machine::{Machine, RESERVED};
use crate::outcome::OutcomeRecord;
use crate::sessions::{Host, Session, Sessions};
use crate::shared_map::{SharedMap, Slot};
use crate::snapshot::{BlockReader, Row, SnapshotError};
use crate::tree::{Totals, Tree, split};
use crate::version::{FIRST, NEWEST, REHEARSED, Upgrade};
use crate::znode::{Kind, Meta, Znode, ZnodeName};

/// A position in the queue of the lock at this path.
type QueuedPlace = (String, Key, Contender);

pub(crate) fn load(input: &mut dyn Read) -> Result<Machine, SnapshotError> {
    let mut records = BlockReader::new(input)?;
    let Row::Counters { last_zxid, time_ms } = records.next()? else { return damaged("no counters") };
    let mut sessions = Sessions::default();
    let (mut queues, mut delays) = (Vec::new(), Vec::new());
    let (mut acls, mut builder) = (Vec::new(), Builder::default());
    let (mut last_entry, mut cluster, mut upgrade) = (Ordinal::default(), None, Upgrade::default());
    let digest = loop {
        let record = records.next()?;
        match record {
            Row::Counters { .. } => return damaged("counters come twice"),
            Row::Session { .. }
            | Row::LongestTimeout { .. }
            | Row::OpenedFrom { .. }
            | Row::Acked { .. }
            | Row::Outcome(_) => restore_session(&mut sessions, record)?,
            Row::Acl(entries) if entries.is_empty() => return damaged("an ACL is empty"),
            Row::Acl(entries) => acls.push(SharedAcl::new(entries.into_owned())),
            Row::Znode { depth, name, data, acl, meta } => {
                let Some(acl) = acls.get(acl as usize) else { return damaged("a znode has an unknown ACL") };
                if [meta.czxid, meta.mzxid, meta.pzxid].iter().any(|zxid| *zxid > last_zxid)
                    || meta.ctime_ms > time_ms
                    || meta.mtime_ms > time_ms
                {
                    return damaged("a znode comes from the future");
                }
                builder.add(depth as usize, &name, znode(meta, data, acl), &mut sessions)?;
            }
            Row::Contender { lock, czxid, name, contender } => {
                let path = queue_path(&lock, &name).into();
                queues.push((lock.into_owned(), Key { czxid, path }, contender));
            }
            Row::Asked(question) => restore_question(&mut queues, question.into_owned(), time_ms)?,
            Row::LastEntry(_) if last_entry != Ordinal::default() => {
                return damaged("the last entry comes twice");
            }
            Row::Cluster(_) if cluster.is_some() => return damaged("the cluster's id comes twice"),
            Row::Cluster(known) => cluster = Some(known),
            Row::Version { .. } | Row::Rehearsed(_) => restore_version(&mut upgrade, record)?,
            Row::LastEntry(ordinal) => last_entry = ordinal,
            Row::Delay { lock, until_ms } => delays.push((lock.into_owned(), until_ms)),
            Row::End { digest } => break digest,
        }
    };
    let tree = builder.finish()?;
    let mut machine =
        Machine { tree, sessions, last_zxid, time_ms, last_entry, cluster, upgrade, ..Machine::new() };
    machine.rules = Arc::new(machine.rules_text().map_err(SnapshotError::Damaged)?);
    restore_locks(&mut machine, queues, delays)?;
    if RESERVED.iter().any(|path| machine.tree.get(path).is_none()) {
        return damaged("a reserved znode is missing");
    }
    if !records.is_at_block_end() {
        return damaged("records follow its end");
    }
    if machine.version().number != records.cluster_version {
        return damaged("its header has another version");
    }
    let found = machine.digest();
    if found != digest {
        return Err(SnapshotError::Digest { written: digest, found });
    }
    Ok(machine)
}

/// Restores the state of upgrades.
fn restore_version(upgrade: &mut Upgrade, record: Row) -> Result<(), SnapshotError> {
    match record {
        Row::Version { version, .. } if version.number > NEWEST => Err(SnapshotError::Newer(version)),
        Row::Version { version, held } if *upgrade == Upgrade::default() && version.number >= FIRST => {
            *upgrade = Upgrade { version, held, ..Upgrade::default() };
            Ok(())
        }
        Row::Rehearsed(commands) if upgrade.version.number >= REHEARSED && commands > 0 => {
            upgrade.rehearsed = commands;
            Ok(())
        }
        _ => damaged("its version is none"),
    }
}

/// Restores a session, or data of an earlier session.
fn restore_session(sessions: &mut Sessions, record: Row) -> Result<(), SnapshotError> {
    match record {
        Row::Session { id, proof, timeout_ms, attachment } => {
            if id == SessionId::NONE || sessions.get(id).is_some() {
                return damaged("a session has a bad id");
            }
            sessions.open(id, Session::new(proof, timeout_ms, attachment));
        }
        Row::LongestTimeout { session, longest_ms } => {
            if sessions.get(session).is_none_or(|known| longest_ms <= known.timeout_ms) {
                return damaged("a session has a bad timeout");
            }
            sessions.had_timeout(session, longest_ms);
        }
        Row::OpenedFrom { session, host } => {
            if sessions.get(session).is_none_or(|known| known.host() != Host::UNKNOWN) {
                return damaged("a session has a bad host");
            }
            sessions.was_opened_from(session, host);
        }
        Row::Acked { session, acked } => {
            if sessions.get(session).is_none() {
                return damaged("an outcome has no session");
            }
            sessions.with_outcomes((session, Slot::default()), |outcomes| outcomes.acknowledge(acked));
        }
        Row::Outcome(OutcomeRecord { session, id, stored }) => {
            let Some(outcomes) = sessions.outcomes(session) else {
                return damaged("an outcome has no session");
            };
            if id <= outcomes.acked() || outcomes.get(id).is_some() {
                return damaged("an outcome has a bad number");
            }
            sessions.with_outcomes((session, Slot::default()), |outcomes| outcomes.keep(id, &stored));
        }
        _ => unreachable!("not of a session"),
    }
    Ok(())
}

/// Restores the question to the last position read.
fn restore_question(
    queues: &mut [QueuedPlace],
    question: Question,
    time_ms: i64,
) -> Result<(), SnapshotError> {
    match queues.last_mut() {
        Some((_, _, holder)) if holder.asked.is_none() && question.is_good(time_ms) => {
            holder.asked = Some(question.into());
            Ok(())
        }
        _ => damaged("a question has no holder, or is none"),
    }
}

fn restore_locks(
    machine: &mut Machine,
    queues: Vec<QueuedPlace>,
    delays: Vec<(String, i64)>,
) -> Result<(), SnapshotError> {
    for (lock, key, mut contender) in queues {
        let (node, lock_node) = (machine.tree.find(&key.path), machine.tree.find(&lock).unwrap_or_default());
        let znode = node.map(|node| machine.tree.node(node));
        let is_right = znode.is_some_and(|znode| {
            znode.meta.kind == Kind::Ephemeral(contender.session)
                && znode.meta.czxid == key.czxid
                && key.czxid > Zxid(0)
                && split(&key.path).is_some_and(|(of, _)| of == lock)
        });
        let granted_ms = contender.granted_ms.unwrap_or(machine.time_ms);
        if contender.requested_ms > granted_ms || granted_ms > machine.time_ms {
            return damaged("a place in a queue has times in the wrong order");
        }
        if !is_right || machine.locks.get(&lock).is_some_and(|known| known.contender(key.as_ref()).is_some())
        {
            return damaged("a place in a queue is no znode of its session");
        }
        let limit = machine.limit_of(&lock);
        contender.node = node.unwrap_or_default();
        machine.locks.enter((&lock, lock_node), key, contender, limit);
    }
    for (lock, until_ms) in delays {
        let limit = machine.limit_of(&lock);
        let node = machine.tree.find(&lock).unwrap_or_default();
        machine.locks.restore_delay((&lock, node), until_ms, limit);
    }
    // Apply would grant a lock of a wrong queue twice.
    machine.locks.check().map_err(SnapshotError::Damaged)
}

fn damaged<T>(what: &str) -> Result<T, SnapshotError> {
    Err(SnapshotError::Damaged(what.to_owned()))
}

fn znode(meta: Meta, data: Option<Bytes>, acl: &SharedAcl) -> Znode {
    Znode::new(meta, data, acl.clone())
}

/// The open znodes from the root to the newest one. The parent counts a znode when the znode is complete.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    /// Full path of the newest znode.
    path: String,
    nodes: Arena<Znode>,
    totals: Totals,
    reapable: SharedMap<Box<str>, ()>,
    acls: Acls,
}

struct Open {
    id: Number,
    /// Length of the parent's path.
    parent_path_len: usize,
}

impl Builder {
    fn add(
        &mut self,
        depth: usize,
        name: &str,
        mut znode: Znode,
        sessions: &mut Sessions,
    ) -> Result<(), SnapshotError> {
        if depth > self.open.len() || (depth == 0) != self.open.is_empty() {
            return damaged("a znode comes without its parent");
        }
        if (depth == 0) != name.is_empty() || name.contains('/') {
            return damaged("a znode has a bad name");
        }
        let kind = znode.meta.kind;
        if depth == 0 && kind != Kind::Persistent {
            return damaged("the root is not persistent");
        }
        while self.open.len() > depth {
            self.close();
        }
        assert_eq!(self.open.len(), depth, "a znode is added to its parent");
        if let Some(Open { id, .. }) = self.open.last() {
            let parent = self.nodes.at(*id);
            if matches!(parent.meta.kind, Kind::Ephemeral(_)) {
                return damaged("an ephemeral znode has a child");
            }
            if parent.children.last_key().is_some_and(|last| **last >= *name) {
                return damaged("znodes are out of order");
            }
        }
        let parent_path_len = self.path.len();
        if depth > 0 {
            self.path.push('/');
            self.path.push_str(name);
        }
        let path = if depth == 0 { "/" } else { self.path.as_str() };
        self.totals.add(path, &mut znode);
        self.acls.add(&mut znode.acl);
        let parent = self.open.last().map(|open| open.id);
        znode.parent = parent.unwrap_or(Number::FIRST);
        let id = self.nodes.insert(znode);
        let mut own = None;
        match kind {
            Kind::Persistent => {}
            Kind::Ephemeral(session) if sessions.get(session).is_some() => {
                let path: Arc<str> = path.into();
                own = Some(ZnodeName::within(&path, path.len() - name.len()));
                sessions.add_ephemeral((session, Slot::default()), parent.unwrap_or(Number::FIRST), path, id);
            }
            Kind::Ephemeral(_) => return damaged("an ephemeral znode has no session"),
            Kind::Container | Kind::Ttl(_) => drop(self.reapable.insert(path.into(), ())),
        }
        if let Some(parent) = parent {
            let siblings = &mut self.nodes.at_mut(parent).children;
            let old = siblings.insert(own.unwrap_or_else(|| name.into()), id);
            assert!(old.is_none(), "the order of names has been checked");
        }
        self.open.push(Open { id, parent_path_len });
        Ok(())
    }

    /// Completes the newest znode and counts it in its parent.
    fn close(&mut self) {
        let Open { id, parent_path_len } = self.open.pop().expect("the caller has counted");
        let parent = self.open.last().expect("the root is never closed").id;
        self.path.truncate(parent_path_len);
        let znode = self.nodes.at(id);
        let (descendants, bytes) = (1 + znode.descendants, znode.data_len() as u64 + znode.bytes_below);
        let parent = self.nodes.at_mut(parent);
        parent.descendants += descendants;
        parent.bytes_below += bytes;
        assert!(parent.children.len() as u64 <= parent.descendants, "a child is not counted as below");
    }

    fn finish(mut self) -> Result<Tree, SnapshotError> {
        while self.open.len() > 1 {
            self.close();
        }
        assert!(self.path.is_empty(), "the names on the way down are left behind on the way up");
        match self.open.pop() {
            Some(_) => Ok(Tree::assembled(self.nodes, self.totals, self.reapable, self.acls)),
            None => damaged("there is no root"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::NodeId;
    use rowlock_proto::request::{Create, Request};

    use super::*;
    use crate::command::{Attachment, Command, Origin, Proof, Proposal};

    /// Changes a state with a held lock, and loads its snapshot.
    fn read_again(change: impl FnOnce(&mut Machine)) -> Result<Machine, SnapshotError> {
        let mut machine = Machine::new();
        let session = SessionId(0x0100_0000_0000_0001);
        let open = Command::OpenSession { proof: Proof::of(b"p"), timeout_ms: 1_000 };
        let create = |path: &str, flags| {
            let acl = Some(rowlock_proto::acl::Acl::shared_open());
            Command::Client(Request::Create2(Create { path: path.to_owned(), data: None, acl, flags }))
        };
        for (command, session) in
            [(open, SessionId::NONE), (create("/l", 0), session), (create("/l/x-", 3), session)]
        {
            let origin = Origin { node: NodeId(1), incarnation: 1, request: 1 };
            let (attachment, identities) = (Attachment(1), Default::default());
            let proposal = Proposal { origin, session, attachment, identities, command };
            machine.apply(1_000, &proposal, &mut ()).result.unwrap();
        }
        assert_eq!(machine.counts().lock_holders, 1);
        change(&mut machine);
        let mut bytes = Vec::new();
        machine.freeze().encode(&mut bytes).unwrap();
        Machine::decode(&mut bytes.as_slice())
    }

    fn change_holder(machine: &mut Machine, change: impl FnOnce(&mut Contender)) {
        let (key, _) = machine.locks.get("/l").unwrap().contenders().next().unwrap();
        let key = key.clone();
        machine.locks.change("/l", key.as_ref(), change);
    }

    #[test]
    fn a_state_that_no_log_gives_is_damage() {
        read_again(|_| ()).unwrap().check().unwrap();
        let wrong: [fn(&mut Machine); 4] = [
            |machine| machine.last_zxid.0 -= 1,
            |machine| machine.time_ms -= 1,
            |machine| change_holder(machine, |holder| holder.requested_ms += 1),
            |machine| change_holder(machine, |holder| holder.revoke_at_ms = Some(2_000)),
        ];
        for change in wrong {
            assert!(matches!(read_again(change), Err(SnapshotError::Damaged(_))));
        }
    }
}
