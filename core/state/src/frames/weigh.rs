//! Approximate size of a state in bytes, with each ACL counted once per allocation.

use std::collections::BTreeSet;

use rowlock_proto::acl::Acl;

use crate::znode::{Kind, Znode};
use crate::{Machine, Question};

/// Overhead of an allocation, and of a map's entry.
const BESIDE: usize = 16;

pub(super) fn bytes(machine: &Machine) -> usize {
    let mut lists = BTreeSet::new();
    let mut sum = 0;
    let mut todo = vec![machine.tree.root()];
    while let Some(znode) = todo.pop() {
        sum += size_of::<Znode>() + BESIDE + znode.data_len();
        let entries = znode.acl.entries();
        if lists.insert(entries.as_ptr()) {
            let of = |entry: &Acl| size_of::<Acl>() + 2 * BESIDE + entry.id.scheme.len() + entry.id.id.len();
            sum += entries.iter().map(of).sum::<usize>();
        }
        for (name, child) in machine.tree.children(znode) {
            // An ephemeral znode's name is a slice of the path shared with its session.
            let own = if matches!(child.meta.kind, Kind::Ephemeral(_)) { 0 } else { name.len() + BESIDE };
            sum += own + 32;
            todo.push(child);
        }
    }
    for (_, session) in machine.sessions() {
        sum += size_of_val(session) + session.outcome_bytes();
        sum += session.ephemerals().map(|path| path.len() + 2 * BESIDE + 16).sum::<usize>();
    }
    for (path, lock) in machine.locks.iter() {
        sum += path.len() + size_of_val(lock) + BESIDE;
        sum += lock
            .contenders()
            .map(|(key, contender)| {
                // Counts questions as unshared: questions from a snapshot are not shared.
                let asked = contender.asked.as_ref();
                let texts = |it: &Question| {
                    let askers = size_of_val(&*it.askers);
                    size_of_val(it) + it.reason.len() + it.by.len() + askers + 4 * BESIDE
                };
                size_of_val(key) + size_of_val(contender) + asked.map_or(0, |it| texts(it))
            })
            .sum::<usize>();
    }
    sum + machine.tree.reapable().iter().map(|(path, ())| path.len() + 2 * BESIDE).sum::<usize>()
}
