//! may-do: no request that the rules in force at its position of the log forbid succeeds or changes a queue,
//! and no request that they permit is refused for lack of a right.

use rowlock_proto::report::{HistoryEnd, HistoryEntry, HistoryEvent};
use rowlock_proto::{ErrorCode, Right};

use super::super::Invariant;
use super::rules::{Reader, Rules};
use crate::history::Fact;
use crate::history::access::{Access, Need, is_guarded};
use crate::history::client::ClientFact;

#[derive(Default)]
pub struct MayDo(Rules);

impl MayDo {
    fn check_answer(&self, reader: Reader, what: &Access) -> Result<(), String> {
        let Access::Answered { since, zxid, needs, result, .. } = what else { return Ok(()) };
        if !needs.is_empty() && needs.iter().all(|need| need.right == Right::See) {
            return Ok(());
        }
        let met = self.0.met(reader, needs, (*since, *zxid));
        match result {
            Ok(()) if !met.contains(&true) => Err(format!(
                "a request without {needs:?} succeeded at {zxid}: {}",
                self.0.describe(reader, *zxid)
            )),
            Err(ErrorCode::NoAuth) if !met.contains(&false) => Err(format!(
                "a request with {needs:?} was refused at {zxid}: {}",
                self.0.describe(reader, *zxid)
            )),
            _ => Ok(()),
        }
    }

    /// Checks the author of a new position, or of the end of another client's position. The request may have
    /// been refused, or never answered.
    fn check_effect(&self, entry: &HistoryEntry) -> Result<(), String> {
        let (lock, right, authors) = match &entry.event {
            HistoryEvent::Requested { place, .. } => {
                (&place.lock, Right::Take, self.0.readers(|(_, session), _| session == place.session))
            }
            HistoryEvent::Abandoned(HistoryEnd { by: Some(by), place, .. })
            | HistoryEvent::Lost(HistoryEnd { by: Some(by), place, .. }) => {
                // The name of a digest lacks the hash.
                let digest = format!("{by}:");
                let is_author = |one: &String| one == by || one.starts_with(&digest);
                (&place.lock, Right::Force, self.0.readers(|_, who| who.iter().any(is_author)))
            }
            _ => return Ok(()),
        };
        let (needs, times) = ([Need { lock: lock.clone(), right }], (entry.zxid, entry.zxid));
        let is_permitted = |author: &Reader| self.0.met(*author, &needs, times).contains(&true);
        match !is_guarded(lock) || authors.is_empty() || authors.iter().any(is_permitted) {
            true => Ok(()),
            false => Err(format!("{entry:?} without {needs:?}: {}", self.0.describe(authors[0], entry.zxid))),
        }
    }
}

impl Invariant for MayDo {
    fn name(&self) -> &'static str {
        "may-do"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        self.0.observe(fact);
        match fact {
            Fact::Client { client, what: ClientFact::Access(what), .. } => {
                let Access::Answered { session, .. } = what else { return Ok(()) };
                self.check_answer((*client, *session), what)
            }
            Fact::LockEvent(entry) => self.check_effect(entry),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::{SessionId, Zxid};

    use super::super::super::check_history;
    use super::super::testing::client;
    use super::*;
    use crate::history::access::Need;

    const SESSION: SessionId = SessionId(7);

    fn rules(zxid: i64, text: &str) -> Fact {
        Fact::Rules { zxid: Zxid(zxid), text: text.to_owned() }
    }

    fn answered(zxid: i64, right: Right, result: Result<(), ErrorCode>) -> Fact {
        let needs = vec![Need { lock: "/guarded/a/x".to_owned(), right }];
        let (since, zxid) = (Zxid(zxid), Zxid(zxid));
        client(1, ClientFact::Access(Access::Answered { session: SESSION, since, zxid, needs, result }))
    }

    fn history(rest: impl IntoIterator<Item = Fact>) -> Result<(), String> {
        let who = vec!["ip:1.1.1.1".to_owned(), "sasl:ann".to_owned()];
        let proves = client(1, ClientFact::Access(Access::Proves { session: SESSION, who }));
        let begin = [proves, rules(5, "take /guarded/a/* sasl:ann"), rules(9, "none /guarded/* anyone")];
        check_history(MayDo::default(), &begin.into_iter().chain(rest).collect::<Vec<_>>())
    }

    #[test]
    fn a_forbidden_request_that_is_done_and_a_permitted_one_that_is_refused_are_caught() {
        let done = Ok(());
        assert_eq!(history([answered(4, Right::Force, done), answered(7, Right::Take, done)]), Ok(()));
        assert!(history([answered(7, Right::Force, done)]).is_err());
        assert!(history([answered(10, Right::Take, done)]).is_err(), "by rules that are gone");
        assert_eq!(history([answered(10, Right::Take, Err(ErrorCode::NoAuth))]), Ok(()));
        assert_eq!(history([answered(10, Right::Take, Err(ErrorCode::NoNode))]), Ok(()));
        assert!(history([answered(7, Right::Take, Err(ErrorCode::NoAuth))]).is_err());
        assert!(history([answered(4, Right::Force, Err(ErrorCode::NoAuth))]).is_err(), "no rules yet");
    }

    fn event(zxid: i64, event: serde_json::Value) -> Fact {
        let place = serde_json::json!({
            "time_ms": 0, "zxid": zxid, "lock": "/guarded/a/x", "path": "/guarded/a/x/_c_-0000000001", "token": 1,
            "session": "0x7", "label": "", "address": null, "mode": "exclusive", "permits": null,
            "acquired": true, "waited_ms": 0, "held_ms": 5,
        });
        let mut entry = place.as_object().unwrap().clone();
        entry.extend(event.as_object().unwrap().clone());
        Fact::LockEvent(std::sync::Arc::new(serde_json::from_value(entry.into()).unwrap()))
    }

    #[test]
    fn an_effect_without_a_right_is_caught_although_the_request_has_no_answer() {
        let requested = |zxid| event(zxid, serde_json::json!({ "event": "requested", "ahead": 0 }));
        assert_eq!(history([requested(4)]), Ok(()), "no rules yet");
        assert_eq!(history([requested(7)]), Ok(()));
        assert!(history([requested(10)]).is_err());
        let forced = |zxid, by: &str| {
            event(zxid, serde_json::json!({ "event": "lost", "reason": "forced", "by": by }))
        };
        assert_eq!(history([forced(4, "sasl:ann")]), Ok(()));
        assert!(history([forced(7, "sasl:ann")]).is_err());
        assert_eq!(history([forced(7, "sasl:bob")]), Ok(()), "nothing is known about this client");
    }

    #[test]
    fn a_request_that_takes_no_right_is_not_refused() {
        let free = |result| {
            let (since, zxid, needs) = (Zxid(10), Zxid(10), Vec::new());
            client(1, ClientFact::Access(Access::Answered { session: SESSION, since, zxid, needs, result }))
        };
        assert_eq!(history([free(Ok(()))]), Ok(()));
        assert!(history([free(Err(ErrorCode::NoAuth))]).is_err());
    }
}
