//! How soon an answer must leave: the listening side of a connection asks here before it writes. Pure.
//!
//! An answer that tells its asker nothing new need not leave by itself: it goes with the next one, or after a
//! moment (`limits::PEER_ANSWER_PATIENCE`). With a single client this saves each node a system call and a
//! wake-up per commit, on the way to that client. An answer that somebody waits for never waits, nor does one
//! that is not as it should be.

use rowlock_transport::Lane;

use super::message::{Request, Response};
use crate::raft_types::messages::{AppendRequest, AppendResponse, RaftRequest, RaftResponse};
use crate::raft_types::{LogId, Vote};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Somebody waits for it.
    AtOnce,
    /// Nobody does, unless it is bad news.
    Patient,
}

impl Urgency {
    /// Now that the answer is known.
    pub(super) fn with(self, response: &Response) -> Urgency {
        match response {
            Response::Forwarded
            | Response::Raft(
                RaftResponse::Append(AppendResponse::Success)
                | RaftResponse::AppendQuiet(AppendResponse::Success),
            ) => self,
            _ => Urgency::AtOnce,
        }
    }
}

/// Follows the requests of one connection.
pub(super) struct Urgencies {
    lane: Lane,
    /// The last entry that came, and under which leader.
    appended: Option<(Vote, LogId)>,
}

impl Urgencies {
    /// Of a connection of that lane.
    pub(super) fn of(lane: Lane) -> Self {
        Urgencies { lane, appended: None }
    }

    /// Of the answer to the next request, if all is well.
    pub(super) fn of_answer_to(&mut self, request: &Request) -> Urgency {
        match request {
            // The sender goes on without: it learns by it only that its window has room.
            Request::Forward { .. } => Urgency::Patient,
            Request::Raft(RaftRequest::Append(append) | RaftRequest::AppendLazy(append))
                if self.lane == Lane::Raft =>
            {
                let urgency =
                    if self.only_says_what_is_committed(append) { Urgency::Patient } else { Urgency::AtOnce };
                if let Some(last) = append.entries.last() {
                    self.appended = Some((append.vote, last.log_id));
                }
                urgency
            }
            _ => Urgency::AtOnce,
        }
    }

    /// Whether the follower's log is already known to reach that far by the answer to an earlier request. (A
    /// leader that does not know yet how far that is also asks without entries, and waits.)
    fn only_says_what_is_committed(&self, append: &AppendRequest) -> bool {
        let Some((vote, last)) = self.appended else { return false };
        append.entries.is_empty() && append.vote == vote && append.prev_log_id == Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft_types::{Entry, EntryPayload, LeaderId};

    fn log_id(term: u64, index: u64) -> LogId {
        LogId { leader_id: LeaderId { term, node_id: 1 }, index }
    }

    fn append(term: u64, prev: u64, entries: std::ops::Range<u64>) -> Request {
        let entries = entries
            .map(|index| Entry { log_id: log_id(term, index), payload: EntryPayload::Blank })
            .collect();
        let vote = Vote { leader_id: LeaderId { term, node_id: 1 }, committed: true };
        let (prev_log_id, leader_commit) = (Some(log_id(term, prev)), None);
        Request::Raft(RaftRequest::Append(AppendRequest { vote, prev_log_id, entries, leader_commit }))
    }

    const NO_ENTRIES: std::ops::Range<u64> = 0..0;

    #[test]
    fn only_a_commit_index_behind_entries_of_the_same_leader_is_patient() {
        let mut raft = Urgencies::of(Lane::Raft);
        assert_eq!(
            raft.of_answer_to(&append(1, 4, NO_ENTRIES)),
            Urgency::AtOnce,
            "the leader asks where the log ends"
        );
        assert_eq!(raft.of_answer_to(&append(1, 4, 5..8)), Urgency::AtOnce, "a commit waits for it");
        assert_eq!(raft.of_answer_to(&append(1, 7, NO_ENTRIES)), Urgency::Patient);
        assert_eq!(raft.of_answer_to(&append(1, 5, NO_ENTRIES)), Urgency::AtOnce, "it does not know of 7");
        assert_eq!(raft.of_answer_to(&append(2, 7, NO_ENTRIES)), Urgency::AtOnce, "another leader");
    }

    #[test]
    fn a_heartbeat_is_answered_at_once() {
        let mut heartbeats = Urgencies::of(Lane::Heartbeat);
        heartbeats.of_answer_to(&append(1, 4, 5..8));
        assert_eq!(heartbeats.of_answer_to(&append(1, 7, NO_ENTRIES)), Urgency::AtOnce);
    }

    #[test]
    fn bad_news_never_waits() {
        let conflict = Response::Raft(RaftResponse::Append(AppendResponse::Conflict));
        let refused = Response::Refused(crate::peer::Refusal::NotServing);
        assert_eq!(Urgency::Patient.with(&conflict), Urgency::AtOnce);
        assert_eq!(Urgency::Patient.with(&refused), Urgency::AtOnce);
        assert_eq!(Urgency::Patient.with(&Response::Forwarded), Urgency::Patient);
        for answer in [RaftResponse::Append, RaftResponse::AppendQuiet] {
            let accepted = Response::Raft(answer(AppendResponse::Success));
            assert_eq!(Urgency::Patient.with(&accepted), Urgency::Patient);
            assert_eq!(Urgency::AtOnce.with(&accepted), Urgency::AtOnce, "somebody waits");
        }
    }
}
