//! What a conversation gives back while its client only keeps its session alive. Most sessions do nothing most of the
//! time, and what their last requests have left would be more than they themselves.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::{Conversation, Inbox};

impl Conversation {
    /// The client has sent pings and waits for nothing: a client that has requests sends no pings. Says so once for
    /// each time that pings were answered.
    pub(in crate::client) fn has_come_to_rest(&mut self) -> bool {
        std::mem::take(&mut self.has_answered_pings) && self.queue.is_empty() && self.pings.len() == 0
    }

    /// Gives back the room of what is empty. The next request takes it anew.
    pub(in crate::client) fn rest(&mut self, inbox: &mut Inbox) {
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
