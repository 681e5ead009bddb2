//! Whether an answer to another node is sent at once or may wait for the next one. Pure.
//!
//! An answer that tells its asker nothing new may wait: it leaves with the next answer, or after a short
//! delay (`pacing::PEER_ANSWER_DELAY_MAX`). With a single client this saves each node a system call and a
//! wake-up per commit, on the way to that client. An answer that the asker waits for is sent at once, and so
//! is a refusal.

use rowlock_transport::Lane;

use super::message::{Request, Response};
use crate::raft_types::messages::{AppendRequest, AppendResponse, RaftRequest, RaftResponse};
use crate::raft_types::{LogId, Vote};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerTiming {
    /// The asker waits for it.
    AtOnce,
    /// The asker does not wait, unless it is a refusal.
    MayWait,
}

impl AnswerTiming {
    /// Now that the answer is known.
    pub(super) fn with(self, response: &Response) -> AnswerTiming {
        match response {
            Response::Forwarded
            | Response::Raft(
                RaftResponse::Append(AppendResponse::Success)
                | RaftResponse::AppendQuiet(AppendResponse::Success),
            ) => self,
            _ => AnswerTiming::AtOnce,
        }
    }
}

/// Follows the requests of one connection.
pub(super) struct AnswerTimings {
    lane: Lane,
    /// The last entry that came, and under which leader.
    appended: Option<(Vote, LogId)>,
}

impl AnswerTimings {
    /// Of a connection of that lane.
    pub(super) fn of(lane: Lane) -> Self {
        AnswerTimings { lane, appended: None }
    }

    /// Of the answer to the next request, if all is well.
    pub(super) fn of_answer_to(&mut self, request: &Request) -> AnswerTiming {
        match request {
            // The sender goes on without: it learns by it only that its window has room.
            Request::Forward { .. } => AnswerTiming::MayWait,
            Request::Raft(RaftRequest::Append(append) | RaftRequest::AppendLazy(append))
                if self.lane == Lane::Raft =>
            {
                let timing = if self.only_says_what_is_committed(append) {
                    AnswerTiming::MayWait
                } else {
                    AnswerTiming::AtOnce
                };
                if let Some(last) = append.entries.last() {
                    self.appended = Some((append.vote, last.log_id));
                }
                timing
            }
            _ => AnswerTiming::AtOnce,
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
        let mut raft = AnswerTimings::of(Lane::Raft);
        assert_eq!(
            raft.of_answer_to(&append(1, 4, NO_ENTRIES)),
            AnswerTiming::AtOnce,
            "the leader asks where the log ends"
        );
        assert_eq!(raft.of_answer_to(&append(1, 4, 5..8)), AnswerTiming::AtOnce, "a commit waits for it");
        assert_eq!(raft.of_answer_to(&append(1, 7, NO_ENTRIES)), AnswerTiming::MayWait);
        assert_eq!(
            raft.of_answer_to(&append(1, 5, NO_ENTRIES)),
            AnswerTiming::AtOnce,
            "it does not know of 7"
        );
        assert_eq!(raft.of_answer_to(&append(2, 7, NO_ENTRIES)), AnswerTiming::AtOnce, "another leader");
    }

    #[test]
    fn a_heartbeat_is_answered_at_once() {
        let mut heartbeats = AnswerTimings::of(Lane::Heartbeat);
        heartbeats.of_answer_to(&append(1, 4, 5..8));
        assert_eq!(heartbeats.of_answer_to(&append(1, 7, NO_ENTRIES)), AnswerTiming::AtOnce);
    }

    #[test]
    fn a_refusal_never_waits() {
        let conflict = Response::Raft(RaftResponse::Append(AppendResponse::Conflict));
        let refused = Response::Refused(crate::peer::Refusal::NotServing);
        assert_eq!(AnswerTiming::MayWait.with(&conflict), AnswerTiming::AtOnce);
        assert_eq!(AnswerTiming::MayWait.with(&refused), AnswerTiming::AtOnce);
        assert_eq!(AnswerTiming::MayWait.with(&Response::Forwarded), AnswerTiming::MayWait);
        for answer in [RaftResponse::Append, RaftResponse::AppendQuiet] {
            let accepted = Response::Raft(answer(AppendResponse::Success));
            assert_eq!(AnswerTiming::MayWait.with(&accepted), AnswerTiming::MayWait);
            assert_eq!(AnswerTiming::AtOnce.with(&accepted), AnswerTiming::AtOnce, "somebody waits");
        }
    }
}
