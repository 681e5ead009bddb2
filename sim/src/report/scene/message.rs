//! Messages: sent, and then arrived or lost, or still in flight at the end of the trace.

use std::collections::BTreeMap;

use rowlock_world::time::Nanos;
use rowlock_world::trace::MessageId;

/// Bytes sent from one host to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Lane of the sender.
    pub from: usize,
    /// Lane of the receiver.
    pub to: usize,
    pub sent: Nanos,
    /// Time of the arrival or loss.
    pub ended: Option<Nanos>,
    pub lost: bool,
    pub bytes: usize,
    pub label: String,
}

impl Message {
    /// Returns the first word of the label, by which the page filters messages.
    pub fn kind(&self) -> &str {
        let end = self.label.find([' ', ':', '(', ',']).unwrap_or(self.label.len());
        if end == 0 { "other" } else { &self.label[..end] }
    }
}

/// Messages of a trace; messages in flight are indexed by number.
#[derive(Debug, Default)]
pub(super) struct Messages {
    all: Vec<Message>,
    flying: BTreeMap<MessageId, usize>,
}

impl Messages {
    pub(super) fn sent(
        &mut self,
        at: Nanos,
        id: MessageId,
        (from, to): (usize, usize),
        bytes: usize,
        label: &str,
    ) {
        self.flying.insert(id, self.all.len());
        let label = label.to_owned();
        self.all.push(Message { from, to, sent: at, ended: None, lost: false, bytes, label });
    }

    pub(super) fn arrived(&mut self, at: Nanos, id: MessageId) {
        self.end(at, id, false);
    }

    pub(super) fn lost(&mut self, at: Nanos, id: MessageId) {
        self.end(at, id, true);
    }

    fn end(&mut self, at: Nanos, id: MessageId, lost: bool) {
        if let Some(message) = self.flying.remove(&id).and_then(|index| self.all.get_mut(index)) {
            message.ended = Some(at);
            message.lost = lost;
        }
    }

    pub(super) fn finish(self) -> Vec<Message> {
        self.all
    }
}
