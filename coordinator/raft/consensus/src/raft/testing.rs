//! Small values for the tests of this folder.

use std::collections::BTreeMap;

use bytes::Bytes;
use openraft::Membership;
use rowlock_wal::entry::Member;

use crate::raft_types::{
    Entry, EntryPayload, LeaderId, LogId, Payload, SnapshotMeta, StoredMembership, Vote,
};

/// Returns a position with node 1 as the leader.
pub fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 1 }, index }
}

pub fn entry(term: u64, index: u64, payload: &[u8]) -> Entry {
    let payload = EntryPayload::Normal(Payload(Bytes::copy_from_slice(payload)));
    Entry { log_id: log_id(term, index), payload }
}

pub fn blank_entry(term: u64, index: u64) -> Entry {
    Entry { log_id: log_id(term, index), payload: EntryPayload::Blank }
}

/// Returns an entry with a membership of one node.
pub fn membership_entry(term: u64, index: u64) -> Entry {
    let member = Member { peer_addr: "a:1".to_owned(), client_addr: "b:2".to_owned() };
    let membership = Membership::new([[1].into()].into(), BTreeMap::from([(1, member)]));
    Entry { log_id: log_id(term, index), payload: EntryPayload::Membership(membership.expect("is valid")) }
}

pub fn vote(term: u64, node: u64) -> Vote {
    Vote { leader_id: LeaderId { term, node_id: node }, committed: true }
}

pub fn snapshot_meta(term: u64, index: u64) -> SnapshotMeta {
    let EntryPayload::Membership(membership) = membership_entry(term, 0).payload else {
        unreachable!("it is a membership entry");
    };
    let last_membership = StoredMembership::new(Some(log_id(term, 0)), membership);
    SnapshotMeta { last_log_id: Some(log_id(term, index)), last_membership }
}
