//! Tells a follower what is committed. A follower without clients is told with the next entries, or after a
//! short delay.
//!
//! A leader tells its followers of a commit at once, so that their clients get answers, events and grants. A
//! follower without clients does not need it at once, and the next entry says the same. Each answer of a
//! follower says whether it has clients (`RaftResponse::AppendQuiet`). That may be out of date: then a client
//! waits for as long as the follower takes to flush and answer the entry that it waits for, and never longer
//! than `pacing::COMMIT_NOTIFY_DELAY_MAX`.

use std::pin::Pin;
use std::task::Context;

use futures_util::FutureExt;
use rowlock_env::time::{self, Sleep};
use rowlock_types::pacing::COMMIT_NOTIFY_DELAY_MAX;

use crate::raft_types::LogId;
use crate::raft_types::messages::{AppendRequest, ClientPresence};

/// The notifications of one stream to a follower.
#[derive(Default)]
pub struct CommitNotify {
    clients: ClientPresence,
    /// No request comes any more that would say the same.
    has_ended: bool,
    /// The last entry that was sent.
    sent: Option<LogId>,
    held: Option<AppendRequest>,
    /// Set when a request is held back. A timer that is not needed any more stays, so that fewer are set.
    timer: Option<Pin<Box<Sleep>>>,
}

impl CommitNotify {
    /// Whether the follower has clients, by its latest answer.
    pub fn set_clients(&mut self, clients: ClientPresence) {
        self.clients = clients;
    }

    /// No more calls of [`CommitNotify::pass`] follow.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    fn may_wait(&self) -> bool {
        self.clients == ClientPresence::Absent && !self.has_ended
    }

    /// Returns `request` if it must be sent now; it says all that was held back before. `None`: it is held
    /// back.
    pub fn pass(&mut self, request: AppendRequest) -> Option<AppendRequest> {
        let only_tells =
            request.entries.is_empty() && self.sent.is_some() && request.prev_log_id == self.sent;
        if only_tells && self.may_wait() {
            assert!(request.entries.is_empty(), "entries are never held back");
            self.held = Some(request);
            return None;
        }
        self.held = None;
        self.sent = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        Some(request)
    }

    /// The request that was held back and must be sent now. If it is held longer, `cx` is woken in time.
    pub fn poll_due(&mut self, cx: &mut Context<'_>) -> Option<AppendRequest> {
        self.held.as_ref()?;
        if self.may_wait() {
            let timer = self.timer.get_or_insert_with(|| Box::pin(time::sleep(COMMIT_NOTIFY_DELAY_MAX)));
            if timer.poll_unpin(cx).is_pending() {
                return None;
            }
            self.timer = None;
        }
        let due = self.held.take();
        assert!(due.is_some(), "something was held back");
        due
    }
}
