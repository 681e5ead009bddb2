//! watches: a watch fires at most once, for a change after the registration, and before the session sees any
//! state with the first of these changes. At the end of a run no watch of a living session has missed its
//! change.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{EventType, SessionId, Zxid};

use super::super::Invariant;
use super::reads::{Asked, Reads};
use super::znodes::Znodes;
use crate::history::Fact;
use crate::history::client::{Answer, CallId, ClientFact, ClientId, Failure, Op, ReadKind, WatchId};

/// Registered watch that has not fired.
struct Watch {
    client: ClientId,
    session: SessionId,
    kind: ReadKind,
    path: String,
    /// Zxid of the state in the reply that registered the watch.
    since: Zxid,
    /// The znode was absent: the watch waits for its creation.
    was_absent: bool,
}

#[derive(Default)]
pub struct Watches {
    reads: Reads,
    znodes: Znodes,
    waiting: BTreeMap<WatchId, Watch>,
    /// Watches that have fired. An event before its read's reply belongs to an older watch, or to none.
    fired: BTreeSet<WatchId>,
    /// Sessions that the log has ended. Their clients may still receive earlier messages.
    over: BTreeSet<SessionId>,
    /// Watches of ended sessions.
    orphans: BTreeSet<WatchId>,
}

impl Watches {
    /// Returns the first change that must have fired the watch. A client that was away while a znode came and
    /// went again gets no event, as in ZooKeeper.
    fn due(&self, watch: &Watch) -> Option<Zxid> {
        let due = self.znodes.fires(&watch.path, watch.kind, watch.since)?;
        let may_be_missed = watch.was_absent && self.znodes.is_deleted_since(&watch.path, due);
        (!may_be_missed).then_some(due)
    }

    /// Checks a reply that shows the state of `zxid` to a session.
    fn shown(&self, asked: &Asked, zxid: Zxid) -> Result<(), String> {
        let own = self.waiting.iter().filter(|(_, watch)| watch.session == asked.session);
        for (id, watch) in own {
            if let Some(due) = self.due(watch).filter(|due| *due <= zxid) {
                return Err(format!(
                    "client {} was shown the state of {zxid} before {id:?} on {} told it of {due}",
                    watch.client.0, watch.path
                ));
            }
        }
        Ok(())
    }

    fn returned(&mut self, call: CallId, result: &Result<Answer, Failure>) -> Result<(), String> {
        let Some((asked, since)) = self.reads.answered(call, result)? else { return Ok(()) };
        let revealed = result.as_ref().ok().and_then(Answer::zxid).unwrap_or_default();
        self.shown(&asked, since.max(revealed))?;
        let Op::Read { kind, path, watch: Some(id), .. } = &*asked.op else { return Ok(()) };
        if result.is_ok() && !self.fired.contains(id) {
            let was_absent = matches!(result, Ok(Answer::Exists(None)));
            if self.over.contains(&asked.session) {
                self.orphans.insert(*id);
                return Ok(());
            }
            let (client, session, path) = (asked.client, asked.session, path.clone());
            self.waiting.insert(*id, Watch { client, session, kind: *kind, path, since, was_absent });
        }
        Ok(())
    }

    fn event(&mut self, id: WatchId, kind: EventType, path: &str, zxid: Zxid) -> Result<(), String> {
        if !self.fired.insert(id) {
            return Err(format!("{id:?} on {path} fired twice, the second time with {kind:?} at {zxid}"));
        }
        if self.orphans.remove(&id) {
            return Ok(());
        }
        let Some(watch) = self.waiting.remove(&id) else {
            return Err(format!("{id:?} on {path} fired with {kind:?} at {zxid} before it was registered"));
        };
        if watch.path != path {
            return Err(format!("{id:?} on {} fired for {path}", watch.path));
        }
        // On a reconnect a node may report its present state, later than the first change, and, like
        // ZooKeeper, without the zxid of a change.
        match self.znodes.fires(path, watch.kind, watch.since) {
            Some(first) if zxid >= first || zxid == UNKNOWN_CHANGE => Ok(()),
            first => Err(format!(
                "{id:?} on {path}, registered at {}, fired with {kind:?} at {zxid}; the first change is at {first:?}",
                watch.since
            )),
        }
    }
}

/// Zxid of an event for a change during the client's absence.
const UNKNOWN_CHANGE: Zxid = Zxid(-1);

impl Invariant for Watches {
    fn name(&self) -> &'static str {
        "watches"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        self.reads.observe(fact);
        self.znodes.observe(fact);
        match fact {
            Fact::SessionEnded { session, .. } => {
                self.over.insert(*session);
                let own = self.waiting.iter().filter(|(_, watch)| watch.session == *session);
                self.orphans.extend(own.map(|(id, _)| *id));
                self.waiting.retain(|_, watch| watch.session != *session);
                Ok(())
            }
            Fact::Client { what: ClientFact::Returned { call, result }, .. } => self.returned(*call, result),
            Fact::Client { what: ClientFact::Event { watch, kind, path, zxid }, .. } => {
                self.event(*watch, *kind, path, *zxid)
            }
            Fact::Client { client, what: ClientFact::Ended, .. } => {
                self.waiting.retain(|_, watch| watch.client != *client);
                Ok(())
            }
            Fact::Settled => {
                match self.waiting.iter().find_map(|(id, one)| Some((id, one, self.due(one)?))) {
                    Some((id, watch, due)) => Err(format!(
                        "{id:?} of client {} on {}, registered at {}, never told of {due}",
                        watch.client.0, watch.path, watch.since
                    )),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use rowlock_state::outcome::SessionEnd;

    use super::super::testing::{client, data, get, invoked, returned, stat, znode};
    use super::*;
    use crate::history::Millis;
    use crate::history::client::ZnodeChange;

    fn check_facts(facts: &[&[Fact]]) -> Result<(), String> {
        check_history(Watches::default(), &facts.concat())
    }

    fn created() -> Fact {
        znode(2, "/data/a", ZnodeChange::Created, Some(("x", stat(2, 2, 0))))
    }

    fn changed() -> Fact {
        znode(4, "/data/a", ZnodeChange::Data, Some(("y", stat(2, 4, 1))))
    }

    fn watched(call: u64, watch: u64) -> [Fact; 2] {
        let (kind, watch) = (ReadKind::Data, Some(WatchId(watch)));
        let op = Op::Read { kind, path: "/data/a".to_owned(), watch, synced: false };
        [invoked(1, call, op), returned(1, call, Ok(Answer::Data(data("x"), stat(2, 2, 0))))]
    }

    fn event(watch: u64, zxid: i64) -> Fact {
        let (kind, path) = (EventType::NodeDataChanged, "/data/a".to_owned());
        client(1, ClientFact::Event { watch: WatchId(watch), kind, path, zxid: Zxid(zxid) })
    }

    fn read_new() -> [Fact; 2] {
        let new = Ok(Answer::Data(data("y"), stat(2, 4, 1)));
        [invoked(1, 9, get("/data/a", false)), returned(1, 9, new)]
    }

    #[test]
    fn an_event_without_a_change_after_registration_is_caught() {
        let facts = [created()];
        assert!(check_facts(&[&facts, &watched(1, 1), &[event(1, 2)]]).is_err());
        assert!(check_facts(&[&facts, &watched(1, 1), &[event(1, 4)]]).is_err(), "nothing has changed");
        assert_eq!(check_facts(&[&facts, &watched(1, 1), &[changed(), event(1, 4)]]), Ok(()));
    }

    #[test]
    fn an_event_of_an_unknown_change_still_needs_a_change() {
        let facts = [created()];
        assert!(check_facts(&[&facts, &watched(1, 1), &[event(1, -1)]]).is_err());
        assert_eq!(check_facts(&[&facts, &watched(1, 1), &[changed(), event(1, -1)]]), Ok(()));
    }

    #[test]
    fn a_watch_that_fires_twice_is_caught() {
        let facts = [changed(), event(1, 4), event(1, 4)];
        assert!(check_facts(&[&[created()], &watched(1, 1), &facts]).unwrap_err().contains("twice"));
    }

    #[test]
    fn an_event_before_its_registration_is_caught() {
        let [ask, registered] = watched(1, 1);
        assert!(check_facts(&[&[created(), ask, changed(), event(1, 4), registered]]).is_err());
    }

    #[test]
    fn a_reply_that_shows_a_change_before_its_event_is_caught() {
        assert!(check_facts(&[&[created()], &watched(1, 1), &[changed()], &read_new()]).is_err());
        let told = [changed(), event(1, 4)];
        assert_eq!(check_facts(&[&[created()], &watched(1, 1), &told, &read_new()]), Ok(()));
    }

    #[test]
    fn a_client_may_hear_of_a_change_behind_the_end_of_its_session() {
        let ended = Fact::SessionEnded { session: SessionId(1), end: SessionEnd::Expired, at: Millis(0) };
        let facts = [changed(), ended.clone(), event(1, 4)];
        assert_eq!(check_facts(&[&[created()], &watched(1, 1), &facts]), Ok(()), "it had been sent before");
        let [ask, registered] = watched(1, 1);
        let facts = [created(), ask, ended, registered, changed(), event(1, 4)];
        assert_eq!(check_facts(&[&facts, &[Fact::Settled]]), Ok(()));
    }

    #[test]
    fn an_unfired_watch_of_a_living_session_is_caught() {
        let facts = [&[created()], &watched(1, 1)[..], &[changed()]].concat();
        assert!(check_facts(&[&facts, &[Fact::Settled]]).is_err());
        let ended = client(1, ClientFact::Ended);
        assert_eq!(check_facts(&[&facts, &[ended, Fact::Settled]]), Ok(()));
        assert_eq!(
            check_facts(&[&[created()], &watched(1, 1), &[Fact::Settled]]),
            Ok(()),
            "nothing happened"
        );
    }
}
