//! linearizability: one order explains all writes, and all reads after a sync. In this order each call takes
//! effect at one moment between call and answer, and the calls of a session in the order of sending. The
//! checker uses nothing of the log except a znode's state before the first call to the znode, and the end of
//! each session.
//!
//! The checker treats each znode alone (linearizability is local), and together the znodes that a multi has
//! tied together. Containers and TTL znodes are left out: the cluster may delete such a znode at any time.

mod model;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{CreateMode, SessionId};

use super::super::Invariant;
use super::matching::is_plain_write;
use crate::history::client::{Answer, CallId, ClientFact, Failure, Op};
use crate::history::{Book, Fact};

use model::{Node, Path};
use search::{Component, Pending};

type Number = usize;

struct Sent {
    session: SessionId,
    order: u64,
    component: Option<Number>,
    is_write: bool,
}

/// Znodes that calls name, grouped into components.
#[derive(Default)]
pub struct Linearizability {
    /// Znodes by path, as in the log.
    nodes: BTreeMap<String, Node>,
    of_path: BTreeMap<Path, Number>,
    components: BTreeMap<Number, Component>,
    sent: BTreeMap<CallId, Sent>,
    /// Calls whose outcome is unknown, by session and order of sending.
    unknown: BTreeMap<(SessionId, u64), (CallId, Number)>,
    counted: u64,
    /// Containers and TTL znodes at the beginning of this life.
    wild: BTreeSet<String>,
}

/// Returns the plain znodes that a call names, or nothing for a call outside the model.
fn plain_paths(op: &Op) -> Vec<&str> {
    match op {
        Op::Read { path, synced: true, .. } => vec![path],
        Op::Create { mode, .. } if mode.is_sequential() => Vec::new(),
        Op::Multi(all) => all.iter().flat_map(plain_paths).collect(),
        op if op.is_write() || matches!(op, Op::Check { .. }) => op.paths(),
        _ => Vec::new(),
    }
}

/// Reports whether `op` creates a znode that the cluster may delete on its own.
fn is_wild(op: &Op) -> bool {
    match op {
        Op::Create { mode, .. } => *mode == CreateMode::Container || mode.has_ttl(),
        Op::Multi(all) => all.iter().any(is_wild),
        _ => false,
    }
}

impl Linearizability {
    /// Returns the component of `paths`, whose components are joined from now on.
    fn component(&mut self, paths: &[&str]) -> Option<Number> {
        let mut joined: Option<Number> = None;
        for path in paths {
            let number = match self.of_path.get(*path) {
                Some(number) => *number,
                None => self.add(path),
            };
            match joined {
                Some(into) if into != number => self.join(into, number),
                _ => joined = Some(number),
            }
        }
        joined
    }

    fn add(&mut self, path: &str) -> Number {
        self.counted += 1;
        let (number, shared) = (self.counted as Number, Path::from(path));
        let mut component = Component::of(&shared, self.nodes.get(path).cloned());
        component.has_given_up |= self.wild.contains(path);
        self.components.insert(number, component);
        self.of_path.insert(shared, number);
        number
    }

    fn join(&mut self, into: Number, number: Number) {
        let Some(other) = self.components.remove(&number) else { return };
        if let Some(component) = self.components.get_mut(&into) {
            component.join(other);
        }
        let of_paths = self.of_path.values_mut().filter(|one| **one == number);
        of_paths.for_each(|one| *one = into);
        let of_sent = self.sent.values_mut().filter(|sent| sent.component == Some(number));
        of_sent.for_each(|sent| sent.component = Some(into));
        let of_unknown = self.unknown.values_mut().filter(|(_, one)| *one == number);
        of_unknown.for_each(|(_, one)| *one = into);
    }

    fn invoked(&mut self, call: CallId, session: SessionId, op: &std::sync::Arc<Op>) {
        let paths = plain_paths(op);
        if paths.is_empty() || op.is_write() && !is_plain_write(op) {
            return;
        }
        self.counted += 1;
        let (order, is_write) = (self.counted, op.is_write());
        let component = self.component(&paths);
        self.sent.insert(call, Sent { session, order, component, is_write });
        let Some(component) = component.and_then(|number| self.components.get_mut(&number)) else { return };
        component.has_given_up |= is_wild(op);
        if !component.has_given_up {
            component.begin(call, Pending { op: op.clone(), session, order, is_unknown: false });
        }
    }

    fn returned(&mut self, call: CallId, result: &Result<Answer, Failure>) -> Result<(), String> {
        let Some(Sent { session, order, component, is_write }) = self.sent.remove(&call) else {
            return Ok(());
        };
        if is_write && result.is_ok() {
            self.resolve(session, order);
        }
        let Some(number) = component else { return Ok(()) };
        let Some(component) = self.components.get_mut(&number) else { return Ok(()) };
        let Some(op) = component.pending.get(&call).map(|pending| pending.op.clone()) else { return Ok(()) };
        if is_write && *result == Err(Failure::Unknown) {
            self.unknown.insert((session, order), (call, number));
        }
        component.end(call, result).map_err(|could| {
            format!("{call:?} of session {session}, {op:?}, was answered {result:?}; no order of all calls explains that, only {could}")
        })
    }

    /// Forgets the component at the path of a new sequential znode: any former znode at this path, below a
    /// deleted parent, is a different znode.
    fn numbered(&mut self, op: &Op, answer: &Answer) {
        match (op, answer) {
            (Op::Multi(ops), Answer::Multi(answers)) => {
                ops.iter().zip(answers).for_each(|(op, answer)| self.numbered(op, answer));
            }
            (Op::Create { mode, .. }, Answer::Created { path, .. }) if mode.is_sequential() => {
                let Some(number) = self.of_path.remove(path.as_str()) else { return };
                if let Some(component) = self.components.get_mut(&number) {
                    let is_about = |op: &Op| plain_paths(op).contains(&path.as_str());
                    component.has_given_up |= component.pending.values().any(|one| is_about(&one.op));
                }
            }
            _ => {}
        }
    }

    /// Completes the session's earlier calls with unknown outcomes: each was done before or never will be.
    fn resolve(&mut self, session: SessionId, before: u64) {
        while let Some((&key, &(call, number))) = self.unknown.range((session, 0)..(session, before)).next() {
            self.unknown.remove(&key);
            if let Some(component) = self.components.get_mut(&number) {
                component.resolve(call);
            }
        }
    }
}

impl Invariant for Linearizability {
    fn name(&self) -> &'static str {
        "linearizability"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Znode(znode) => match &znode.now {
                Some((data, stat)) => {
                    let (version, owner) = (stat.version.0, stat.ephemeral_owner);
                    let node = Node { version, data: data.clone(), owner };
                    self.nodes.insert(znode.path.clone(), node);
                }
                None => {
                    self.nodes.remove(&znode.path);
                }
            },
            Fact::NewLife(new) => self.wild.clone_from(&new.wild),
            Fact::Logged(logged) => {
                if let Ok(answer) = &logged.result {
                    self.numbered(&logged.op, answer);
                }
            }
            Fact::SessionEnded { session, .. } => {
                for component in self.components.values_mut().filter(|component| !component.has_given_up) {
                    component.vanish(*session);
                }
                self.resolve(*session, u64::MAX);
            }
            Fact::Client { what: ClientFact::Invoked { call, session, op }, .. } => {
                self.invoked(*call, *session, op);
            }
            Fact::Client { what: ClientFact::Returned { call, result }, .. } => {
                return self.returned(*call, result);
            }
            _ => {}
        }
        Ok(())
    }
}
