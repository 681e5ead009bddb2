//! The news of a commit that may wait: a follower without clients hears of it with the next entries, or a
//! moment later.
//!
//! A leader tells its followers what is committed as soon as it is, so that their clients have their answers,
//! events and grants. Where nobody is connected nobody waits, and the next entry says the same. A follower
//! says so itself, with each answer (`RaftResponse::AppendQuiet`). That may be out of date: then a client
//! waits for as long as the follower takes to flush and answer the entry that it waits for, and never longer
//! than `limits::PEER_NEWS_PATIENCE`.

use std::pin::Pin;
use std::task::Context;

use futures_util::FutureExt;
use rowlock_env::time::{self, Sleep};
use rowlock_types::limits::PEER_NEWS_PATIENCE;

use crate::raft_types::LogId;
use crate::raft_types::messages::{AppendRequest, Audience};

/// Of one stream to a follower.
#[derive(Default)]
pub struct News {
    audience: Audience,
    /// No request comes any more that would say the same.
    has_ended: bool,
    /// The last entry that was sent.
    sent: Option<LogId>,
    held: Option<AppendRequest>,
    /// Set when something is held, for whatever is then. One that is not needed any more is left, to set
    /// fewer.
    timer: Option<Pin<Box<Sleep>>>,
}

impl News {
    /// By the follower's latest answer.
    pub fn is_for(&mut self, audience: Audience) {
        self.audience = audience;
    }

    /// Nothing comes to [`News::pass`] any more.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    fn may_wait(&self) -> bool {
        self.audience == Audience::Nobody && !self.has_ended
    }

    /// What is to be sent now of `request`, which says all that was held back before; nothing, if it may
    /// wait.
    pub fn pass(&mut self, request: AppendRequest) -> Option<AppendRequest> {
        let only_tells =
            request.entries.is_empty() && self.sent.is_some() && request.prev_log_id == self.sent;
        if only_tells && self.may_wait() {
            self.held = Some(request);
            return None;
        }
        self.held = None;
        self.sent = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        Some(request)
    }

    /// What has been held back and must be sent now. If something is held on, `cx` is woken in time.
    pub fn poll_due(&mut self, cx: &mut Context<'_>) -> Option<AppendRequest> {
        self.held.as_ref()?;
        if self.may_wait() {
            let timer = self.timer.get_or_insert_with(|| Box::pin(time::sleep(PEER_NEWS_PATIENCE)));
            if timer.poll_unpin(cx).is_pending() {
                return None;
            }
            self.timer = None;
        }
        self.held.take()
    }
}
