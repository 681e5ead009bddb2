//! watches: a watch fires at most once, for a change after the registration, and before the session sees any
//! state with the first of these changes. At the end of a run no watch of a living session has missed its
//! change.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{EventType, SessionId, Zxid};

use super::super::Invariant;
use super::reads::{Asked, Reads};
use super::znodes::Znodes;
use crate::history::client::{Answer, CallId, ClientFact, ClientId, Failure, Op, ReadKind, WatchId};
use crate::history::{Book, Fact};

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

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
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
