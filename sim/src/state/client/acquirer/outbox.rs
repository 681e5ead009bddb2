//! The writes that wait for their answers, each with the number under which it is repeated after a lost
//! connection.

use std::collections::BTreeMap;

use rowlock_state::command::Command;

use super::{Style, Turn};
use crate::history::Millis;
use crate::state::client::Act;
use crate::state::message::{Tag, Up};
use crate::state::mutant::Mutant;

/// A write on its way.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    tag: Tag,
    pub(super) command: Command,
    /// When it was sent, the last time.
    pub(super) at: Millis,
}

/// Writes without answers, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Numbers are told to the cluster. Without them, what is sent again must be harmless by itself.
    tagged: bool,
    /// The highest number that was used.
    last: u64,
    sent: BTreeMap<u64, Sent>,
    /// All below are answered, as far as the client admits it.
    forgotten: u64,
    /// Does not say what it knows: the cluster must keep everything, up to its bound.
    pub(super) hoards: bool,
}

impl Outbox {
    /// Nothing has been sent.
    pub(super) fn new(Style { tagged, hoards }: Style) -> Self {
        Outbox { tagged, last: 0, sent: BTreeMap::new(), forgotten: 0, hoards }
    }

    /// Nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Sends a write.
    pub(super) fn send(&mut self, command: Command, turn: &mut Turn<'_, '_>) -> Act {
        self.last += 1;
        self.put(self.last, command, turn)
    }

    /// The write that was answered.
    pub(super) fn answered(&mut self, tag: Tag) -> Option<Sent> {
        let (id, _) = self.sent.iter().find(|(_, sent)| sent.tag == tag)?;
        let id = *id;
        self.sent.remove(&id)
    }

    /// After a lost connection: the same again, under the same numbers, in the same order.
    pub(super) fn resend(&mut self, turn: &mut Turn<'_, '_>) -> Vec<Act> {
        let tagged = self.tagged;
        let sent = std::mem::take(&mut self.sent);
        let again = sent.into_iter().filter(|(_, sent)| tagged || is_harmless(&sent.command));
        again.map(|(id, sent)| self.put(id, sent.command, turn)).collect()
    }

    /// Whether `is_it` holds for a command on its way.
    pub(super) fn any(&self, is_it: impl Fn(&Command) -> bool) -> bool {
        self.sent.values().any(|sent| is_it(&sent.command))
    }

    /// Changes the commands on their way: only a mistaken client does.
    pub(super) fn change(&mut self, change: impl Fn(&mut Command)) {
        self.sent.values_mut().for_each(|sent| change(&mut sent.command));
    }

    fn put(&mut self, id: u64, command: Command, turn: &mut Turn<'_, '_>) -> Act {
        let tag = turn.tag();
        self.sent.insert(id, Sent { tag, command: command.clone(), at: turn.moment.now });
        if !self.tagged {
            return Act::Send(Up::Write { tag, command });
        }
        if !self.hoards {
            let first = *self.sent.first_key_value().expect("one was just added").0;
            self.forgotten = self.forgotten.max(first - 1);
        }
        let acked = if turn.mutant == Some(Mutant::AckUnanswered) { id - 1 } else { self.forgotten };
        Act::Send(Up::Write { tag, command: Command::Tagged { id, acked, command: Box::new(command) } })
    }
}

/// Commands that find what they did the first time by themselves.
fn is_harmless(command: &Command) -> bool {
    matches!(command, Command::Acquire(_) | Command::Release(_) | Command::Abandon(_))
}
