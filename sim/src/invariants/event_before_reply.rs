//! event-before-reply: a client hears of a watched change before it sees any reply that reveals the change.

use std::collections::BTreeMap;

use rowlock_proto::Zxid;

use super::Invariant;
use crate::history::{ConnectionId, Fact};

/// The highest zxid that a reply of each connection revealed.
#[derive(Default)]
pub struct EventBeforeReply {
    revealed: BTreeMap<ConnectionId, Zxid>,
}

impl Invariant for EventBeforeReply {
    fn name(&self) -> &'static str {
        "event-before-reply"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::ReplyReceived { connection, zxid, .. } => {
                let revealed = self.revealed.entry(connection).or_default();
                *revealed = zxid.max(*revealed);
            }
            Fact::EventReceived { connection, zxid } => {
                if let Some(revealed) = self.revealed.get(&connection).filter(|revealed| **revealed >= zxid) {
                    return Err(format!(
                        "{connection:?}: the event of {zxid} came after a reply that showed {revealed}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::SessionId;

    use super::super::judge;
    use super::*;

    fn reply(zxid: i64) -> Fact {
        Fact::ReplyReceived { connection: ConnectionId(1), session: SessionId(1), zxid: Zxid(zxid) }
    }

    fn event(zxid: i64) -> Fact {
        Fact::EventReceived { connection: ConnectionId(1), zxid: Zxid(zxid) }
    }

    #[test]
    fn an_event_that_comes_after_its_change_was_seen_is_caught() {
        assert!(judge(EventBeforeReply::default(), &[reply(4), reply(5), event(5)]).is_err());
    }

    #[test]
    fn an_event_before_the_reply_is_fine() {
        assert_eq!(judge(EventBeforeReply::default(), &[reply(4), event(5), reply(5)]), Ok(()));
    }
}
