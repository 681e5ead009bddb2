//! Conversions between openraft's types and the types on disk (`rowlock_wal`). Pure.
//!
//! Functions without a prefix return the disk's types, functions with `raft_` openraft's.

use std::collections::BTreeSet;

use openraft::Membership;
use rowlock_proto::NodeId;
use rowlock_state::codec;
use rowlock_wal as wal;
use rowlock_wal::entry::Member;

use crate::node_hook::{Ballot, Position};
use crate::raft_types::{
    Entry, EntryPayload, LeaderId, LogId, Payload, SnapshotMeta, StoredMembership, Vote,
};

pub fn log_id(id: LogId) -> wal::LogId {
    wal::LogId { leader_id: leader_id(id.leader_id), index: id.index }
}

pub fn raft_log_id(id: wal::LogId) -> LogId {
    LogId { leader_id: raft_leader_id(id.leader_id), index: id.index }
}

pub fn vote(vote: Vote) -> wal::Vote {
    let stored = wal::Vote { leader_id: leader_id(vote.leader_id), committed: vote.committed };
    debug_assert_eq!(raft_vote(stored), vote, "a vote is the same on the disk");
    stored
}

pub fn raft_vote(vote: wal::Vote) -> Vote {
    Vote { leader_id: raft_leader_id(vote.leader_id), committed: vote.committed }
}

/// Converts an entry. The commands are shared, not copied.
pub fn entry(entry: Entry) -> wal::Entry {
    let payload = match entry.payload {
        EntryPayload::Blank => wal::Payload::Blank,
        EntryPayload::Normal(Payload(commands)) => wal::Payload::Normal(commands),
        EntryPayload::Membership(members) => wal::Payload::Membership(membership(&members)),
    };
    let stored = wal::Entry { log_id: log_id(entry.log_id), payload };
    debug_assert_eq!(raft_log_id(stored.log_id), entry.log_id, "a position is the same on the disk");
    stored
}

/// Converts an entry. The commands are shared, not copied.
pub fn raft_entry(entry: wal::Entry) -> Entry {
    let payload = match entry.payload {
        wal::Payload::Blank => EntryPayload::Blank,
        wal::Payload::Normal(commands) => EntryPayload::Normal(Payload(commands)),
        wal::Payload::Membership(members) => EntryPayload::Membership(raft_membership(&members)),
    };
    Entry { log_id: raft_log_id(entry.log_id), payload }
}

pub fn meta(meta: &SnapshotMeta) -> wal::SnapshotMeta {
    let members = &meta.last_membership;
    wal::SnapshotMeta {
        last_log_id: meta.last_log_id.map(log_id),
        last_membership: wal::StoredMembership {
            log_id: members.log_id().map(log_id),
            membership: membership(members.membership()),
        },
    }
}

pub fn raft_meta(meta: &wal::SnapshotMeta) -> SnapshotMeta {
    let members = &meta.last_membership;
    let (at, membership) = (members.log_id.map(raft_log_id), raft_membership(&members.membership));
    let last_membership = StoredMembership::new(at, membership);
    SnapshotMeta { last_log_id: meta.last_log_id.map(raft_log_id), last_membership }
}

/// Converts to the hook's type.
pub fn position(id: wal::LogId) -> Position {
    Position { term: id.leader_id.term, leader: NodeId(id.leader_id.node_id), index: id.index }
}

/// Converts to the hook's type.
pub fn ballot(vote: wal::Vote) -> Ballot {
    let candidate = NodeId(vote.leader_id.node_id);
    Ballot { term: vote.leader_id.term, candidate, elected: vote.committed }
}

pub fn commands(entry: &wal::Entry) -> Option<&[u8]> {
    match &entry.payload {
        wal::Payload::Normal(commands) => Some(commands),
        wal::Payload::Blank | wal::Payload::Membership(_) => None,
    }
}

/// Returns the sets of voters, and the members without a vote, of an entry with a membership.
pub fn members(entry: &wal::Entry) -> Option<(Vec<BTreeSet<NodeId>>, BTreeSet<NodeId>)> {
    let wal::Payload::Membership(members) = &entry.payload else { return None };
    let set = |ids: &BTreeSet<u64>| ids.iter().copied().map(NodeId).collect::<BTreeSet<NodeId>>();
    let voters: Vec<_> = members.configs.iter().map(set).collect();
    let learners = members.nodes.keys().copied().map(NodeId);
    let learners = learners.filter(|node| !voters.iter().any(|set| set.contains(node))).collect();
    Some((voters, learners))
}

fn leader_id(id: LeaderId) -> wal::LeaderId {
    wal::LeaderId { term: id.term, node_id: id.node_id }
}

fn raft_leader_id(id: wal::LeaderId) -> LeaderId {
    LeaderId { term: id.term, node_id: id.node_id }
}

fn membership(members: &Membership<u64, Member>) -> wal::Membership {
    let nodes = members.nodes().map(|(node, member)| (*node, member.clone())).collect();
    let stored = wal::Membership { configs: members.get_joint_config().clone(), nodes };
    debug_assert_eq!(&raft_membership(&stored), members, "a membership is the same on the disk");
    stored
}

/// Converts through the encoding, which both types share: openraft's constructors reject the empty membership
/// that its own entries may hold.
fn raft_membership(members: &wal::Membership) -> Membership<u64, Member> {
    let bytes = codec::encode(members);
    codec::decode(&bytes, bytes.len()).expect("Invariant: both have the same form")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::testing;

    #[test]
    fn stored_types_round_trip_with_openrafts_bytes() {
        for raft in
            [testing::blank_entry(3, 9), testing::entry(3, 8, b"commands"), testing::membership_entry(3, 7)]
        {
            let stored = entry(raft.clone());
            assert_eq!(codec::encode(&stored), codec::encode(&raft));
            assert_eq!(raft_entry(stored), raft);
        }
        for raft in [SnapshotMeta::default(), testing::snapshot_meta(3, 7)] {
            let stored = meta(&raft);
            assert_eq!(codec::encode(&stored), codec::encode(&raft));
            assert_eq!(raft_meta(&stored), raft);
        }
        let raft = testing::vote(5, 2);
        assert_eq!(codec::encode(&vote(raft)), codec::encode(&raft));
        assert_eq!(raft_vote(vote(raft)), raft);
    }
}
