//! Enforcement of the rules: checks of each operation on a lock, and of each operation on a znode that may
//! belong to a lock.
//!
//! Invariant: plain operations on znodes give no right on a lock that the lock's own requests would refuse:
//! refusals are the same for clients of ZooKeeper and of Rowlock.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::Id;
use rowlock_proto::{CreateMode, ErrorCode, Right, SessionId};

use crate::command::{Author, Stamp};
use crate::guard::decides;
use crate::machine::Machine;
use crate::rules::{RULES_PATH, Rules, is_below_base, lock_of};
use crate::znode::Kind;
use crate::{acl, mutant};

impl Machine {
    /// Returns the present rules of locks.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Refuses an operation on the lock at `lock` to a client without this right.
    pub(crate) fn require(
        &self,
        lock: &str,
        right: Right,
        (who, stamp): (&[Id], Stamp),
    ) -> Result<(), ErrorCode> {
        let is_for_operators = decides!(
            "force-is-for-operators",
            right == Right::Force && stamp.guard_locks && self.rules.find(lock).is_none()
        );
        match decides!(
            "right-is-granted",
            self.rules.allow(lock, right, who) && (!is_for_operators || acl::is_super(who))
        ) {
            true => Ok(()),
            false => Err(ErrorCode::NoRight(right)),
        }
    }

    /// Refuses to make a znode without [`Right::Take`] on the lock that the znode belongs to.
    pub(crate) fn permit_create(
        &self,
        by: &Author,
        path: &str,
        (mode, data): (CreateMode, Option<&Bytes>),
    ) -> Result<(), ErrorCode> {
        if is_of_rules(path) {
            let is_plain = mode == CreateMode::Persistent && path == RULES_PATH;
            check_rules(by, data)?;
            debug_assert!(acl::is_super(by.who), "rules are written by a superuser");
            return if is_plain { Ok(()) } else { Err(ErrorCode::BadArguments) };
        }
        if self.rules.is_empty() {
            return Ok(());
        }
        // A sequential znode is a queue position.
        let lock = match path.rsplit_once('/') {
            Some((parent, _)) if mode.is_sequential() && !parent.is_empty() => parent,
            _ => lock_of(path),
        };
        self.require(lock, Right::Take, (by.who, by.stamp))
    }

    /// Refuses deletions of znodes that another session or the lock needs.
    pub(crate) fn permit_delete(&self, by: &Author, path: &str, kind: Kind) -> Result<(), ErrorCode> {
        if path == RULES_PATH {
            return superusers_only(by);
        }
        let lock = lock_of(path);
        debug_assert!(path.starts_with(lock), "a znode belongs to a lock above it");
        if !self.is_governed(lock, by.stamp) {
            return Ok(());
        }
        let has_delay = || self.locks.get(path).is_some_and(|lock| lock.delayed_until_ms() != 0);
        match kind {
            Kind::Ephemeral(owner) if decides!("deleted-position-is-own", owner == by.session) => Ok(()),
            Kind::Ephemeral(_) => self.require(lock, Right::Force, (by.who, by.stamp)),
            _ if has_delay() => self.require(lock, Right::Force, (by.who, by.stamp)),
            _ => self.require(lock, Right::Take, (by.who, by.stamp)),
        }
    }

    /// Refuses changes of the data of another session's position, or of a lock without [`Right::Take`].
    pub(crate) fn permit_set_data(
        &self,
        by: &Author,
        path: &str,
        (kind, data): (Kind, Option<&Bytes>),
    ) -> Result<(), ErrorCode> {
        if path == RULES_PATH {
            return check_rules(by, data);
        }
        let lock = lock_of(path);
        match kind {
            _ if !self.is_governed(lock, by.stamp) => Ok(()),
            Kind::Ephemeral(owner) if decides!("written-position-is-own", owner == by.session) => Ok(()),
            Kind::Ephemeral(_) => self.require(lock, Right::Force, (by.who, by.stamp)),
            _ => self.require(lock, Right::Take, (by.who, by.stamp)),
        }
    }

    /// Refuses changes of the ACL of another session's position, of a lock, or of a znode above locks: such a
    /// change could lock out all other clients.
    pub(crate) fn permit_set_acl(&self, by: &Author, path: &str, kind: Kind) -> Result<(), ErrorCode> {
        if path == RULES_PATH {
            return superusers_only(by);
        }
        let lock = lock_of(path);
        match kind {
            Kind::Ephemeral(owner) if decides!("protected-position-is-own", owner == by.session) => Ok(()),
            _ if self.is_governed(lock, by.stamp) => self.require(lock, Right::Force, (by.who, by.stamp)),
            _ if decides!(
                "acl-covers-guarded-locks",
                self.rules.reach_below(path) && !acl::is_super(by.who)
            ) =>
            {
                Err(ErrorCode::NoRight(Right::Force))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to read a znode that the rules hide.
    pub(crate) fn permit_see(&self, path: &str, who: &[Id]) -> Result<(), ErrorCode> {
        match self.rules.may_see(path, who) {
            true => Ok(()),
            false if path == RULES_PATH => Err(ErrorCode::NoAuth),
            false => Err(ErrorCode::NoRight(Right::See)),
        }
    }

    /// Returns whether rules decide about this lock: a rule names the lock, or the guarded folder contains
    /// the lock.
    fn is_governed(&self, lock: &str, stamp: Stamp) -> bool {
        decides!(
            "lock-is-governed",
            self.rules.find(lock).is_some() || stamp.guard_locks && is_below_base(lock)
        )
    }

    /// Reads the rules again if their znode has changed. Call for each change of data, also for a revert.
    pub(crate) fn rules_changed(&mut self, path: &str) {
        let keeps_old = mutant::is("first-rules-stay") && !self.rules.is_empty();
        if path == RULES_PATH && !keeps_old {
            let text = self.rules_text();
            self.rules = Arc::new(text.expect("Invariant: a malformed text of rules is refused"));
            debug_assert_eq!(self.rules_text().as_ref(), Ok(&*self.rules), "rules are other than their text");
        }
    }

    /// Reads the rules from their znode.
    ///
    ///
    /// # Errors
    /// Description of a mistake: no command has written such a text.
    pub(crate) fn rules_text(&self) -> Result<Rules, String> {
        let data = self.tree.get(RULES_PATH).and_then(|znode| znode.data());
        parse(data)
    }
}

fn parse(data: Option<&Bytes>) -> Result<Rules, String> {
    let text = std::str::from_utf8(data.map_or(&[], |data| data)).map_err(|_| "they are no text")?;
    Rules::parse(text)
}

/// Refuses rules of a client that is no superuser, and malformed ones.
fn check_rules(by: &Author, data: Option<&Bytes>) -> Result<(), ErrorCode> {
    superusers_only(by)?;
    parse(data).map(|_| ()).map_err(|_| ErrorCode::BadArguments)
}

fn superusers_only(by: &Author) -> Result<(), ErrorCode> {
    debug_assert!(by.session != SessionId::NONE, "a client without a session writes no znode");
    if acl::is_super(by.who) { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

/// Returns whether a path is the rules' znode, or below.
fn is_of_rules(path: &str) -> bool {
    path.strip_prefix(RULES_PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
