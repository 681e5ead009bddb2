//! What is known of the members' releases, and what follows for the cluster's version. Pure.

use std::time::Duration;

use rowlock_env::time::Instant;
use rowlock_proto::NodeId;
use rowlock_state::ClusterVersion;
use rowlock_types::versions::Versions;
use serde_json::{Value, json};

use crate::config::Finalize;

/// One member, voter or learner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberVersions {
    pub(super) node: NodeId,
    /// As it said when it was last met. `None`: it has not been met.
    pub(super) versions: Option<Versions>,
    /// It acknowledges what the leader sends.
    pub(super) is_up: bool,
}

/// A leader's knowledge of the members' releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Survey {
    pub(super) version: ClusterVersion,
    /// An operator has said that it stays.
    pub(super) is_held: bool,
    /// The membership is not just being changed.
    pub(super) is_settled: bool,
    pub(super) members: Vec<MemberVersions>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// No member knows more than the version in force.
    Done,
    /// Not every member does, for this reason.
    Waits(String),
    /// All members know this one, and are up.
    Ready(ClusterVersion),
}

impl Survey {
    pub(super) fn stand(&self) -> Stand {
        let known = || self.members.iter().filter_map(|member| member.versions.as_ref());
        let newest = known().map(|versions| versions.most).max().unwrap_or(self.version.number);
        if newest <= self.version.number {
            // One that has not been met may have been upgraded.
            let unknown = self.members.iter().find(|member| member.versions.is_none() && member.is_up);
            return unknown.map_or(Stand::Done, |member| Stand::Waits(not_met(member.node)));
        }
        for MemberVersions { node, versions, is_up } in &self.members {
            match versions {
                _ if !is_up => return Stand::Waits(format!("node {node} does not answer")),
                None => return Stand::Waits(not_met(*node)),
                Some(versions) if versions.most <= self.version.number => {
                    return Stand::Waits(format!("node {node} runs {versions}"));
                }
                Some(_) => {}
            }
        }
        if !self.is_settled {
            return Stand::Waits("the members are being changed".to_owned());
        }
        let oldest = known().min_by_key(|versions| versions.most).expect("Invariant: a leader knows itself");
        assert!(oldest.most > self.version.number, "a version only rises");
        Stand::Ready(ClusterVersion { number: oldest.most, release: oldest.release.clone() })
    }

    pub(super) fn document(&self, finalize: Finalize, finalizes_in: Option<Duration>) -> Value {
        let (state, to, waits_for) = match self.stand() {
            Stand::Done => ("done", None, None),
            Stand::Waits(why) => ("upgrading", None, Some(why)),
            Stand::Ready(to) => ("ready", Some(to), None),
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

/// For how long all members have been ready, as one leader has seen it.
///
/// Invariant: it is measured by one leader from its own beginning, by a monotonic clock, and begins again
/// with each moment in which a member is not ready.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// In which term, for which version, since when.
    since: Option<(u64, u16, Instant)>,
}

impl Health {
    /// Takes note of how the cluster stands now; gives for how long it has been ready.
    pub(super) fn note(&mut self, term: u64, stand: &Stand, now: Instant) -> Option<Duration> {
        let Stand::Ready(to) = stand else {
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
        match survey(members).stand() {
            Stand::Waits(why) => assert!(why.contains(word), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_version_rises_only_when_every_member_knows_the_next_one_and_is_up() {
        assert_eq!(survey(vec![seen(1, 1), seen(2, 1), seen(3, 1)]).stand(), Stand::Done);
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
        assert_eq!(all.stand(), Stand::Ready(ready.clone()), "what the oldest of them knows");
        let joint = Survey { is_settled: false, ..all.clone() };
        assert!(matches!(joint.stand(), Stand::Waits(_)));
        let after = Survey { version: ready, members: vec![seen(1, 2), seen(2, 2)], ..all };
        assert_eq!(after.stand(), Stand::Done);
    }

    #[test]
    fn health_is_measured_by_one_leader_and_begins_anew_with_every_interruption() {
        let (begun, second) = (time::now(), Duration::from_secs(1));
        let ready = survey(vec![seen(1, 2)]).stand();
        let mut health = Health::default();
        assert_eq!(health.note(1, &ready, begun), Some(Duration::ZERO));
        assert_eq!(health.note(1, &ready, begun + 5 * second), Some(5 * second));
        assert_eq!(health.note(1, &Stand::Waits(String::new()), begun + 6 * second), None);
        assert_eq!(health.note(1, &ready, begun + 7 * second), Some(Duration::ZERO));
        assert_eq!(health.note(2, &ready, begun + 9 * second), Some(Duration::ZERO), "another term");
        assert_eq!(health.note(2, &ready, begun + 10 * second), Some(second));
        assert_eq!((health.since(2), health.since(1)), (Some(begun + 9 * second), None));
    }
}
