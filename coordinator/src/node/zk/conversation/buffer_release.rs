//! What a conversation gives back while its client only keeps its session alive. Most sessions do nothing
//! most of the time, and what their last requests have left would be more than they themselves.
//!
//! Given back late is not given back: what many new sessions keep for a while lies between what they keep for
//! ever, and the allocator cannot part with either. So the first requests, which clients send to find out
//! whom they talk to, leave nothing at all.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::{Conversation, Inbox};

/// This many requests of a connection are taken for the only ones.
const FIRST_REQUESTS: u8 = 2;

impl Conversation {
    /// To be called for each request.
    pub(super) fn note_first_requests(&mut self) {
        if self.first_requests < FIRST_REQUESTS {
            self.first_requests += 1;
            self.may_rest = true;
        }
    }

    /// It has sent more than its first requests.
    pub(super) fn is_at_work(&self) -> bool {
        self.first_requests >= FIRST_REQUESTS
    }

    /// The client has sent pings, or its first requests, and waits for nothing: a client that has requests
    /// sends no pings. Says so once for each time.
    pub(in crate::node::zk) fn has_come_to_rest(&mut self) -> bool {
        std::mem::take(&mut self.may_rest) && self.queue.is_empty() && self.pings.len() == 0
    }

    /// Gives back the room of what is empty. The next request allocates it again.
    pub(in crate::node::zk) fn rest(&mut self, inbox: &mut Inbox) {
        self.queue.rest();
        inbox.rest();
        if self.messages.is_empty() {
            self.messages = VecDeque::new();
        }
        if self.output.is_empty() {
            self.output = BytesMut::new();
        }
    }
}
