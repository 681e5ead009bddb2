//! Sample values for this crate's tests.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::entry::{
    Entry, LeaderId, LogId, Member, Membership, Payload, SnapshotMeta, StoredMembership, Vote,
};

/// Position under node 1 as the leader.
pub fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 1 }, index }
}

pub fn entry(term: u64, index: u64, commands: &[u8]) -> Entry {
    Entry { log_id: log_id(term, index), payload: Payload::Normal(Bytes::copy_from_slice(commands)) }
}

fn membership() -> Membership {
    let member = Member { peer_addr: "a:1".to_owned(), client_addr: "b:2".to_owned() };
    Membership { configs: vec![[1].into()], nodes: BTreeMap::from([(1, member)]) }
}

/// Entry with a membership of a single node.
pub fn membership_entry(term: u64, index: u64) -> Entry {
    Entry { log_id: log_id(term, index), payload: Payload::Membership(membership()) }
}

pub fn vote(term: u64, node: u64) -> Vote {
    Vote { leader_id: LeaderId { term, node_id: node }, committed: true }
}

pub fn snapshot_meta(term: u64, index: u64) -> SnapshotMeta {
    let last_membership = StoredMembership { log_id: Some(log_id(term, 0)), membership: membership() };
    SnapshotMeta { last_log_id: Some(log_id(term, index)), last_membership }
}
