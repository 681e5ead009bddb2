//! Begins an oracle with the state of a machine: the first state, or the first one of a restored cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowlock_proto::ErrorCode;
use rowlock_state::{ContenderView, LockView, Machine};

use crate::book::{Lock, News, Open, Oracle, Position, Znode};

impl Oracle {
    /// Returns the oracle for all commands behind this state.
    pub fn of(machine: &Machine) -> Oracle {
        let mut znodes = BTreeMap::new();
        machine.each_znode(|path, znode| {
            let (data, acl) = (znode.data.map(|data| data.to_vec().into()), znode.acl.into());
            let (stat, creates, lifetime) = (znode.stat, znode.creates, znode.lifetime);
            znodes.insert(Arc::from(path), Arc::new(Znode { data, acl, stat, creates, lifetime }));
        });
        let sessions = machine.sessions().map(|(id, session)| {
            let outcomes = machine
                .kept_writes(id)
                .filter_map(|number| Some((number, machine.kept_outcome(id, number)?)));
            let open = Open {
                proof: session.proof,
                timeout_ms: session.timeout_ms,
                longest_timeout_ms: session.longest_timeout_ms(),
                attachment: session.attachment,
                acked: machine.acked_writes(id),
                outcomes: outcomes.collect(),
            };
            (id, open)
        });
        Oracle {
            znodes,
            undo: Vec::new(),
            locks: machine.locks().map(|lock| (lock.path().into(), queue(&lock))).collect(),
            touched: BTreeSet::new(),
            sessions: sessions.collect(),
            zxid: machine.last_zxid(),
            time_ms: machine.time_ms(),
            entry: machine.last_entry(),
            grace_ms: machine.grace_ms(),
            is_founded: machine.cluster().is_some(),
            version: machine.version().clone(),
            is_version_held: machine.is_version_held(),
            events: Vec::new(),
            given: Err(ErrorCode::SystemError),
            news: News::default(),
        }
    }
}

fn queue(lock: &LockView<'_>) -> Lock {
    let positions = lock.holders().chain(lock.waiters()).map(position).collect();
    Lock { positions, delayed_until_ms: lock.delayed_until_ms().unwrap_or(0) }
}

fn position(view: ContenderView) -> Position {
    let ContenderView { path, token, session, address, mode, owner, is_acquired, wish, .. } = view;
    Position {
        path: path.into(),
        token,
        session,
        mode,
        owner,
        is_acquired,
        max_hold_ms: wish.max_hold_ms,
        lock_delay_ms: wish.lock_delay_ms,
        min_hold_ms: wish.min_hold_ms,
        min_hold_lapses: wish.min_hold_lapses,
        requested_ms: view.requested_ms,
        granted_ms: view.granted_ms,
        asked: view.asked.map(|question| (*question).clone()),
        address,
    }
}

impl Default for Oracle {
    fn default() -> Self {
        Oracle::of(&Machine::new())
    }
}
