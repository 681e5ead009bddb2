//! Releases of the members, and the conclusion for the cluster's version. Pure.

use std::time::Duration;

use rowlock_env::decides;
use rowlock_env::time::Instant;
use rowlock_proto::NodeId;
use rowlock_state::ClusterVersion;
use rowlock_state::version::Versions;
use serde_json::{Value, json};

use crate::config::Finalize;

/// One member, voter or learner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberVersions {
    pub(super) node: NodeId,
    /// Versions that the member reported at the last contact. `None`: no contact yet.
    pub(super) versions: Option<Versions>,
    /// The member acknowledges the leader's appends.
    pub(super) is_up: bool,
}

/// A leader's knowledge of the members' releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Survey {
    pub(super) version: ClusterVersion,
    /// An operator holds the version.
    pub(super) is_held: bool,
    /// No membership change is in progress.
    pub(super) is_settled: bool,
    pub(super) members: Vec<MemberVersions>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UpgradeState {
    /// No member supports more than the version in force.
    Done,
    /// Not every member supports a later version, for this reason.
    Waits(String),
    /// All members support this version, and are up.
    Ready(ClusterVersion),
}

impl Survey {
    pub(super) fn state(&self) -> UpgradeState {
        let known = || self.members.iter().filter_map(|member| member.versions.as_ref());
        let newest = known().map(|versions| versions.most).max().unwrap_or(self.version.number);
        if decides!("version-is-newest", newest <= self.version.number) {
            // A member without contact may have been upgraded.
            let unknown = self.members.iter().find(|member| member.versions.is_none() && member.is_up);
            return unknown.map_or(UpgradeState::Done, |member| UpgradeState::Waits(not_met(member.node)));
        }
        for MemberVersions { node, versions, is_up } in &self.members {
            match versions {
                _ if !is_up => return UpgradeState::Waits(format!("node {node} does not answer")),
                None => return UpgradeState::Waits(not_met(*node)),
                Some(versions) if decides!("member-lacks-version", versions.most <= self.version.number) => {
                    return UpgradeState::Waits(format!("node {node} runs {versions}"));
                }
                Some(_) => {}
            }
        }
        if decides!("members-are-not-settled", !self.is_settled) {
            return UpgradeState::Waits("the members are being changed".to_owned());
        }
        let oldest = known().min_by_key(|versions| versions.most).expect("Invariant: a leader knows itself");
        assert!(oldest.most > self.version.number, "a version only rises");
        UpgradeState::Ready(ClusterVersion { number: oldest.most, release: oldest.release.clone() })
    }

    pub(super) fn document(&self, finalize: Finalize, finalizes_in: Option<Duration>) -> Value {
        let (state, to, waits_for) = match self.state() {
            UpgradeState::Done => ("done", None, None),
            UpgradeState::Waits(why) => ("upgrading", None, Some(why)),
            UpgradeState::Ready(to) => ("ready", Some(to), None),
        };
        let shown =
            |version: &ClusterVersion| json!({ "number": version.number, "release": version.release });
        let members = self.members.iter().map(|MemberVersions { node, versions, is_up }| {
            let of = versions.as_ref();
            json!({ "node": node.0, "up": is_up, "release": of.map(|of| &of.release),
                    "versions": of.map(|of| [of.least, of.most]) })
        });
        json!({
            "version": shown(&self.version),
            "state": state,
            "to": to.as_ref().map(shown),
            "waits_for": waits_for,
            "held": self.is_held,
            "finalize": finalize.word(),
            "finalizes_in_ms": finalizes_in.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            "members": members.collect::<Vec<_>>(),
        })
    }
}

fn not_met(node: NodeId) -> String {
    format!("node {node} has not been met")
}

/// Time for which all members have been ready, as a leader has observed it.
///
/// Invariant: each leader measures this time with a monotonic clock, from its own beginning. The time begins
/// again with every interruption.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Term, target version, and begin of the time.
    since: Option<(u64, u16, Instant)>,
}

impl Health {
    /// Records the present state of the cluster. Returns how long the cluster has been ready.
    pub(super) fn record(&mut self, term: u64, state: &UpgradeState, now: Instant) -> Option<Duration> {
        let UpgradeState::Ready(to) = state else {
            self.since = None;
            return None;
        };
        let since = match self.since {
            Some((of, version, since)) if (of, version) == (term, to.number) => since,
            _ => now,
        };
        self.since = Some((term, to.number, since));
        Some(now.saturating_since(since))
    }

    pub(super) fn since(&self, term: u64) -> Option<Instant> {
        self.since.filter(|(of, ..)| *of == term).map(|(.., since)| since)
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;

    use super::*;

    fn seen(node: u64, most: u16) -> MemberVersions {
        let release = if most == 1 { "0.2.0" } else { "0.3.0" };
        let versions = Versions { most, release: release.to_owned(), ..Versions::of_this_release() };
        MemberVersions { node: NodeId(node), versions: Some(versions), is_up: true }
    }

    fn survey(members: Vec<MemberVersions>) -> Survey {
        Survey { version: ClusterVersion::default(), is_held: false, is_settled: true, members }
    }

    fn waits_for(members: Vec<MemberVersions>, word: &str) {
        match survey(members).state() {
            UpgradeState::Waits(why) => assert!(why.contains(word), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_version_rises_only_with_all_members_up_and_able() {
        assert_eq!(survey(vec![seen(1, 1), seen(2, 1), seen(3, 1)]).state(), UpgradeState::Done);
        waits_for(vec![seen(1, 2), seen(2, 1), seen(3, 2)], "node 2 runs release 0.2.0");
        waits_for(
            vec![seen(1, 2), MemberVersions { is_up: false, ..seen(2, 2) }, seen(3, 2)],
            "node 2 does not",
        );
        waits_for(
            vec![seen(1, 2), MemberVersions { versions: None, ..seen(3, 2) }],
            "node 3 has not been met",
        );
        waits_for(
            vec![seen(1, 1), MemberVersions { versions: None, ..seen(3, 2) }],
            "node 3 has not been met",
        );
        let ready = ClusterVersion { number: 2, release: "0.3.0".to_owned() };
        let all = survey(vec![seen(1, 2), seen(2, 2), seen(3, 3)]);
        assert_eq!(all.state(), UpgradeState::Ready(ready.clone()), "what the oldest of them knows");
        let joint = Survey { is_settled: false, ..all.clone() };
        assert!(matches!(joint.state(), UpgradeState::Waits(_)));
        let after = Survey { version: ready, members: vec![seen(1, 2), seen(2, 2)], ..all };
        assert_eq!(after.state(), UpgradeState::Done);
    }

    #[test]
    fn one_leader_measures_health_and_interruptions_restart_it() {
        let (begun, second) = (time::now(), Duration::from_secs(1));
        let ready = survey(vec![seen(1, 2)]).state();
        let mut health = Health::default();
        assert_eq!(health.record(1, &ready, begun), Some(Duration::ZERO));
        assert_eq!(health.record(1, &ready, begun + 5 * second), Some(5 * second));
        assert_eq!(health.record(1, &UpgradeState::Waits(String::new()), begun + 6 * second), None);
        assert_eq!(health.record(1, &ready, begun + 7 * second), Some(Duration::ZERO));
        assert_eq!(health.record(2, &ready, begun + 9 * second), Some(Duration::ZERO), "another term");
        assert_eq!(health.record(2, &ready, begun + 10 * second), Some(second));
        assert_eq!((health.since(2), health.since(1)), (Some(begun + 9 * second), None));
    }
}
