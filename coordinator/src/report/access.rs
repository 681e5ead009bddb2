//! Who may see a lock: whoever may READ its znode, or, when that is gone, the nearest one above it that is there.

use std::collections::BTreeMap;

use rowlock_proto::acl::{Id, perms};
use rowlock_proto::path as paths;
use rowlock_state::{Machine, acl};

use super::Refusal;

/// Refuses whoever may not see the lock.
pub(super) fn check(machine: &Machine, lock: &str, who: &[Id]) -> Result<(), Refusal> {
    match may_see(machine, lock, who) {
        true => Ok(()),
        false => Err(Refusal::NotPermitted(format!("{lock} may not be read"))),
    }
}

/// Whether `who` may see the lock.
pub(super) fn may_see(machine: &Machine, lock: &str, who: &[Id]) -> bool {
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

/// What [`may_see`] says, remembered for as long as one report is made.
#[derive(Default)]
pub(super) struct Known(BTreeMap<String, bool>);

impl Known {
    /// As [`may_see`].
    pub fn may_see(&mut self, machine: &Machine, lock: &str, who: &[Id]) -> bool {
        if let Some(known) = self.0.get(lock) {
            return *known;
        }
        let may = may_see(machine, lock, who);
        self.0.insert(lock.to_owned(), may);
        may
    }
}
