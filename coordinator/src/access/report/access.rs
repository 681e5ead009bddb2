//! Visibility rules of reports. A lock needs the right to see the lock, and READ on its znode or, without a
//! znode, on the nearest existing ancestor. A queue position also needs READ on the queue znode. A session is
//! visible to itself and to superusers.

use std::collections::BTreeMap;

use rowlock_proto::acl::{Id, perms};
use rowlock_proto::path as paths;
use rowlock_proto::report::LockAccess;
use rowlock_proto::{Right, SessionId};
use rowlock_state::rules::Decision;
use rowlock_state::{Machine, acl};

use super::Refusal;

#[derive(Clone, Debug)]
pub struct Viewer {
    pub who: Vec<Id>,
    /// Session of the viewer; `NONE` over HTTP.
    pub session: SessionId,
}

impl Viewer {
    /// Returns a viewer without a proven identity.
    #[cfg(test)]
    pub fn anyone() -> Viewer {
        Viewer { who: Vec::new(), session: SessionId::NONE }
    }

    pub(super) fn is_super(&self) -> bool {
        acl::is_super(&self.who)
    }

    pub(super) fn may_see_session(&self, session: SessionId) -> bool {
        session == self.session || self.is_super()
    }
}

/// Returns the reader's rights on a lock. A superuser may request the rights of any identity.
pub(super) fn rights(
    machine: &Machine,
    (lock, who): (&str, Option<&Id>),
    reader: &Viewer,
    is_guarded: bool,
) -> Result<LockAccess, Refusal> {
    let who = match who {
        Some(one) if reader.is_super() || reader.who.contains(one) => std::slice::from_ref(one),
        Some(_) => {
            return Err(Refusal::NotPermitted("only operators may read the rights of others".to_owned()));
        }
        None => &reader.who,
    };
    let Decision { rights, pattern } = machine.rules().decide(lock, who, is_guarded);
    Ok(LockAccess {
        lock: lock.to_owned(),
        who: crate::node::audit::named(who),
        rights: rights.iter().collect(),
        rule: pattern.map(|pattern| pattern.to_string()),
        guarded: is_guarded,
    })
}

/// Returns whether `who` may see more of a queue position than its name.
pub(crate) fn may_see_place(machine: &Machine, path: &str, who: &[Id]) -> bool {
    machine.acl(path).is_some_and(|list| acl::may(list, perms::READ, who))
}

/// Refuses a reader without permission to see the lock.
pub(super) fn check(machine: &Machine, lock: &str, who: &[Id]) -> Result<(), Refusal> {
    match may_see(machine, lock, who) {
        true => Ok(()),
        false if !rules_show(machine, lock, who) => Err(Refusal::NoRight(Right::See, lock.to_owned())),
        false => Err(Refusal::NotPermitted(format!("{lock} may not be read"))),
    }
}

fn rules_show(machine: &Machine, lock: &str, who: &[Id]) -> bool {
    machine.rules().allow(lock, Right::See, who)
}

pub(crate) fn may_see(machine: &Machine, lock: &str, who: &[Id]) -> bool {
    if !rules_show(machine, lock, who) {
        return false;
    }
    let mut path = lock;
    loop {
        if let Some(list) = machine.acl(path) {
            return acl::may(list, perms::READ, who);
        }
        match paths::parent(path) {
            Some(parent) => path = parent,
            None => return false,
        }
    }
}

/// Cache of [`may_see`] for one report.
#[derive(Default)]
pub(super) struct ReaderCache(BTreeMap<String, bool>);

impl ReaderCache {
    pub fn may_see(&mut self, machine: &Machine, lock: &str, who: &[Id]) -> bool {
        if let Some(known) = self.0.get(lock) {
            return *known;
        }
        let may = may_see(machine, lock, who);
        self.0.insert(lock.to_owned(), may);
        may
    }
}
