//! The log of a node that restarts its cluster, and of a node that the cluster has left behind.

use bytes::Bytes;
use openraft::storage::IOFlushed;
use openraft::storage::RaftLogStorage;

use super::*;
use crate::raft::log_store::{self, LogStore};
use crate::raft::recollection::{Recollection, RestartEntry};
use crate::raft::stored;
use crate::raft::testing::{blank_entry, entry, log_id, vote};
use crate::raft_types::{Entry, EntryPayload, LeaderId, LogId};

async fn append(log: &mut LogStore, entry: Entry) {
    log.append([entry], IOFlushed::noop()).await.expect("is appended");
}

fn payload(log: &LogStore, index: u64) -> EntryPayload {
    let read = log.log().read();
    let entry = read.range(&(index..=index)).next().cloned().expect("is there");
    stored::raft_entry(entry).payload
}

#[tokio::test]
async fn only_the_first_entry_of_a_leadership_for_a_restart_is_the_restart() {
    let dir = temp();
    let recollection = Recollection::default();
    let restart = RestartEntry { node: NodeId(1), payload: Arc::new(|| Bytes::from_static(b"restart")) };
    let opened = open(dir.path()).await;
    let mut log = LogStore::new(opened.log).remembering(recollection.clone(), Some(restart), None);
    let is_restart = |log: &LogStore, index| payload(log, index) == entry(1, 0, b"restart").payload;

    log.save_vote(&vote(2, 1)).await.expect("is saved");
    append(&mut log, blank_entry(2, 0)).await;
    assert!(!is_restart(&log, 0), "a usual leadership");
    recollection.stands_for_restart(3);
    log.save_vote(&vote(3, 1)).await.expect("is saved");
    append(&mut log, blank_entry(3, 1)).await;
    assert!(is_restart(&log, 1));
    append(&mut log, entry(3, 2, b"commands")).await;
    assert!(!is_restart(&log, 2));
    log.save_vote(&vote(4, 2)).await.expect("is saved");
    append(&mut log, blank_entry(3, 3)).await;
    assert!(!is_restart(&log, 3), "a later leader sends what this node appended before");
}

#[tokio::test]
async fn a_log_knows_which_positions_contradict_its_own() {
    let dir = temp();
    let mut log = LogStore::new(open(dir.path()).await.log);
    let contradicts = |log: &LogStore, id| log_store::contradicts(&log.log().read(), id);
    for index in 0..5 {
        append(&mut log, entry(2, index, b"x")).await;
    }
    assert!((0..5).all(|index| !contradicts(&log, log_id(2, index))));
    assert!(contradicts(&log, log_id(1, 3)) && contradicts(&log, log_id(3, 3)));
    assert!(!contradicts(&log, log_id(3, 5)), "this log ends before");
    log.purge(log_id(2, 2)).await.expect("is purged");
    let by_other = LogId { leader_id: LeaderId { term: 2, node_id: 9 }, index: 1 };
    assert!(
        contradicts(&log, log_id(3, 2)) && contradicts(&log, log_id(3, 1)) && contradicts(&log, by_other)
    );
    assert!(!contradicts(&log, log_id(2, 2)) && !contradicts(&log, log_id(2, 1)));
    assert!(!contradicts(&log, log_id(1, 1)), "it may have been there");
}
