//! Release of a conversation's buffers during a client's idle time. Most sessions are idle most of the time,
//! and the leftovers of the last requests would be larger than the sessions themselves.
//!
//! A late release does not help: buffers of many new sessions lie between their permanent blocks, and the
//! allocator cannot return either. So the first requests, by which clients explore the server, leave no
//! buffers.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::{Conversation, Inbox};

/// Number of first requests, possibly the only requests of a connection.
const FIRST_REQUESTS: u8 = 2;

impl Conversation {
    /// Counts a request, up to the first few.
    pub(super) fn record_first_requests(&mut self) {
        if self.first_requests < FIRST_REQUESTS {
            self.first_requests += 1;
            self.may_rest = true;
        }
    }

    /// Returns whether the client has sent more than its first requests.
    pub(super) fn is_at_work(&self) -> bool {
        self.first_requests >= FIRST_REQUESTS
    }

    /// Returns, once per idle period, whether the client has sent pings, or its first requests, and waits for
    /// no reply: a client with open requests sends no pings.
    pub(in crate::node::zk) fn has_come_to_rest(&mut self) -> bool {
        std::mem::take(&mut self.may_rest) && self.queue.is_empty() && self.pings.len() == 0
    }

    /// Frees empty buffers. The next request allocates new ones.
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
