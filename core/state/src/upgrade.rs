//! The change of the cluster to the next version.
//!
//! While operators replace nodes one by one with a newer release, all nodes write and apply as the older
//! release does. When every member knows the newer version, [`Command::RaiseVersion`] makes the change, at
//! one index of the log and so at the same moment on every replica. A version never goes back.
//!
//! Invariant: the effect of a command depends on the version in the state, and never on the node's release.
//! So `Machine::is_at` guards each change of `apply`, while releases without the change are supported.

use rowlock_proto::response::Response;

use crate::command::Command;
use crate::digest::Hasher;
use crate::guard::decides;
use crate::machine::Machine;
use crate::version::{ClusterVersion, FIRST, NEWEST, REHEARSED, Upgrade};

impl Machine {
    /// Returns the cluster's version.
    pub fn version(&self) -> &ClusterVersion {
        &self.upgrade.version
    }

    /// Returns whether the leader must wait for an operator before a raise of the version.
    pub fn is_version_held(&self) -> bool {
        self.upgrade.held
    }

    /// Returns the number of `Noop`s counted since the version of rehearsals.
    #[doc(hidden)]
    pub fn rehearsed(&self) -> u64 {
        self.upgrade.rehearsed
    }

    /// Simulates a node that applies as its release does, and not as the cluster has decided.
    #[doc(hidden)]
    pub fn gate_by(&mut self, version: u16) {
        self.upgrade.mistaken = Some(version);
    }

    /// Returns whether the cluster has reached this version.
    pub(crate) fn is_at(&self, version: u16) -> bool {
        self.upgrade.mistaken.unwrap_or(self.upgrade.version.number) >= version
    }

    /// Applies a `Noop`, without effect except in the version of rehearsals.
    pub(crate) fn noop(&mut self) -> Response {
        if self.is_at(REHEARSED) {
            self.upgrade.rehearsed += 1;
        }
        Response::Empty
    }

    /// Raises the version, or sets whether the leader must wait for an operator.
    pub(crate) fn decide_on_version(&mut self, command: &Command) -> Response {
        let upgrade = &mut self.upgrade;
        match command {
            // A repeated or late raise is behind the state, and an operator's hold may have overtaken it.
            Command::RaiseVersion { to }
                if decides!("version-is-raised", !upgrade.held && to.number > upgrade.version.number) =>
            {
                upgrade.version = to.clone();
            }
            Command::RaiseVersion { .. } => {}
            Command::HoldVersion { hold } => upgrade.held = *hold,
            _ => unreachable!("{command:?} is none of these"),
        }
        Response::Empty
    }

    /// Returns the version's share in the digest: 0 for the first version, as in 0.2.0.
    pub(crate) fn upgrade_digest(&self) -> u64 {
        let Upgrade { version: ClusterVersion { number, release }, held, rehearsed, mistaken: _ } =
            &self.upgrade;
        if (*number, *held, *rehearsed) == (FIRST, false, 0) {
            return 0;
        }
        let said = Hasher::new(11).word(u64::from(*number)).bytes(release.as_bytes());
        said.word(u64::from(*held)).word(*rehearsed).finish()
    }

    pub(crate) fn check_upgrade(&self) -> Result<(), String> {
        let Upgrade { version, rehearsed, mistaken, .. } = &self.upgrade;
        if !(FIRST..=NEWEST).contains(&version.number) {
            return Err(format!("version {} is none of this release's", version.number));
        }
        if *rehearsed > 0 && version.number < REHEARSED && mistaken.is_none() {
            return Err(format!("version {} does what a later one does", version.number));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::{NodeId, SessionId};

    use super::*;
    use crate::command::{Attachment, Origin, Proposal};
    use crate::snapshot::SnapshotError;

    fn apply(machine: &mut Machine, command: Command) {
        let origin = Origin { node: NodeId(1), incarnation: 1, request: 1 };
        let (session, attachment) = (SessionId::NONE, Attachment::default());
        let proposal = Proposal { origin, session, attachment, identities: Default::default(), command };
        machine.apply(1_000, &proposal, &mut ()).result.expect("is taken");
        machine.check().expect("the state is whole");
    }

    fn raise(number: u16) -> Command {
        Command::RaiseVersion { to: ClusterVersion { number, release: "0.3.0".to_owned() } }
    }

    fn read_again(machine: &Machine) -> Result<Machine, SnapshotError> {
        let mut bytes = Vec::new();
        machine.freeze().encode(&mut bytes).expect("memory takes everything");
        Machine::decode(&mut bytes.as_slice())
    }

    #[test]
    fn what_a_later_version_does_is_done_from_its_entry_on() {
        let mut machine = Machine::new();
        let first = machine.digest();
        apply(&mut machine, Command::Noop);
        assert_eq!((machine.rehearsed(), machine.version().number), (0, FIRST));
        apply(&mut machine, raise(REHEARSED));
        apply(&mut machine, Command::Noop);
        assert_eq!((machine.rehearsed(), machine.version().number), (1, REHEARSED));
        assert_ne!(machine.digest(), first);
    }

    #[test]
    fn a_version_only_rises_and_not_while_it_is_held() {
        let mut machine = Machine::new();
        for (hold, expected) in [(true, FIRST), (false, REHEARSED)] {
            apply(&mut machine, Command::HoldVersion { hold });
            apply(&mut machine, raise(REHEARSED));
            assert_eq!((machine.version().number, machine.is_version_held()), (expected, hold));
        }
        let raised = machine.digest();
        apply(&mut machine, raise(FIRST));
        assert_eq!((machine.version().number, machine.digest()), (REHEARSED, raised));
    }

    #[test]
    fn a_snapshot_keeps_the_version_and_what_belongs_to_it() {
        let mut machine = Machine::new();
        apply(&mut machine, raise(REHEARSED));
        apply(&mut machine, Command::Noop);
        apply(&mut machine, Command::HoldVersion { hold: true });
        let again = read_again(&machine).expect("is whole");
        assert_eq!((again.digest(), &again.upgrade), (machine.digest(), &machine.upgrade));
    }

    #[test]
    fn a_later_snapshot_names_the_release_that_reads_it() {
        let mut machine = Machine::new();
        machine.upgrade.version = ClusterVersion { number: NEWEST + 1, release: "7.0.0".to_owned() };
        let error = read_again(&machine).expect_err("is not read");
        assert!(matches!(&error, SnapshotError::Newer(version) if *version == machine.upgrade.version));
        assert!(error.to_string().contains("7.0.0"), "{error}");
    }
}
