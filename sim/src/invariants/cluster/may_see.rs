//! may-see: no answer, error, event, notice or list shows a client a lock that the rules in force hide, and
//! no read of a lock that they show is refused.

use rowlock_proto::report::HistoryEntry;
use rowlock_proto::{ErrorCode, Right, SessionId, Zxid};

use super::super::Invariant;
use super::lock_events::lock_in;
use super::rules::{Reader, Rules};
use crate::history::Fact;
use crate::history::access::{Access, is_guarded};
use crate::history::client::{ClientFact, Events};

#[derive(Default)]
pub struct MaySee(Rules);

impl MaySee {
    fn check_access(&self, reader: Reader, what: &Access) -> Result<(), String> {
        match what {
            Access::Answered { since, zxid, needs, result, .. }
                if !needs.is_empty() && needs.iter().all(|need| need.right == Right::See) =>
            {
                let met = self.0.met(reader, needs, (*since, *zxid));
                match result {
                    // An answer that nothing is there reveals as much.
                    Ok(()) | Err(ErrorCode::NoNode) if !met.contains(&true) => {
                        Err(format!("received {result:?} at {zxid} without {needs:?}"))
                    }
                    Err(ErrorCode::NoAuth) if !met.contains(&false) => {
                        Err(format!("was refused at {zxid} in spite of {needs:?}"))
                    }
                    _ => Ok(()),
                }
            }
            Access::Shown { zxid, path, .. } => self.check_path(reader, path, (*zxid, *zxid)),
            Access::Noticed { session, place } if !place.contains(&format!("{:016x}", session.0)) => {
                Err(format!("received a notice of {place}, a place of another session"))
            }
            Access::Listed { locks, .. } => self.check_list(reader, locks),
            _ => Ok(()),
        }
    }

    fn check_list(&self, reader: Reader, locks: &rowlock_proto::report::Locks) -> Result<(), String> {
        let times = (locks.zxid, locks.zxid);
        locks.locks.iter().try_for_each(|lock| self.check_path(reader, &lock.path, times))
    }

    fn check_path(&self, reader: Reader, path: &str, times: (Zxid, Zxid)) -> Result<(), String> {
        match !is_guarded(path) || self.0.may_see(reader, path, times) {
            true => Ok(()),
            false => Err(format!("was shown {path} at {}, which the rules hide", times.1)),
        }
    }

    /// Checks an entry of a history: a node shows an entry by the rules that it has applied by then.
    fn check_entry(&self, reader: Reader, entry: &HistoryEntry) -> Result<(), String> {
        let last = self.0.last().max(entry.zxid);
        lock_in(entry).map_or(Ok(()), |lock| self.check_path(reader, lock, (entry.zxid, last)))
    }
}

impl Invariant for MaySee {
    fn name(&self) -> &'static str {
        "may-see"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        self.0.observe(fact);
        let Fact::Client { client, what, .. } = fact else { return Ok(()) };
        let by_http = (*client, SessionId::NONE);
        let checked = match what {
            ClientFact::Access(what) => match what {
                Access::Proves { session, .. }
                | Access::Answered { session, .. }
                | Access::Shown { session, .. }
                | Access::Noticed { session, .. }
                | Access::Listed { session, .. } => self.check_access((*client, *session), what),
            },
            ClientFact::Events(Events::Told(entry)) => self.check_entry(by_http, entry),
            ClientFact::Events(Events::Page(entries)) => {
                entries.iter().try_for_each(|entry| self.check_entry(by_http, entry))
            }
            ClientFact::Events(Events::Locks(locks)) => self.check_list(by_http, locks),
            _ => Ok(()),
        };
        checked.map_err(|why| format!("client {} {why}", client.0))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::check_history;
    use super::super::testing::client;
    use super::*;
    use crate::history::access::Need;

    const SESSION: SessionId = SessionId(7);

    fn check(what: Access) -> Result<(), String> {
        let rules = |zxid, text: &str| Fact::Rules { zxid: Zxid(zxid), text: text.to_owned() };
        let text = "see /guarded/a/* sasl:ann\nnone /guarded/* anyone";
        let who = vec!["sasl:ann".to_owned()];
        let proves = client(1, ClientFact::Access(Access::Proves { session: SESSION, who }));
        let facts = [proves, rules(5, text), rules(9, "none /guarded/* anyone")];
        let last = client(1, ClientFact::Access(what));
        check_history(MaySee::default(), &facts.into_iter().chain([last]).collect::<Vec<_>>())
    }

    fn answered(zxid: i64, lock: &str, result: Result<(), ErrorCode>) -> Result<(), String> {
        let needs = vec![Need { lock: lock.to_owned(), right: Right::See }];
        let (since, zxid) = (Zxid(zxid), Zxid(zxid));
        check(Access::Answered { session: SESSION, since, zxid, needs, result })
    }

    #[test]
    fn an_answer_about_a_hidden_lock_and_a_refusal_of_a_shown_one_are_caught() {
        assert_eq!(answered(6, "/guarded/a/x", Ok(())), Ok(()));
        assert!(answered(6, "/guarded/a/x", Err(ErrorCode::NoAuth)).is_err());
        assert!(answered(6, "/guarded/ab/x", Ok(())).is_err());
        assert!(answered(6, "/guarded/ab/x", Err(ErrorCode::NoNode)).is_err(), "it says that there is none");
        assert!(answered(9, "/guarded/a/x", Ok(())).is_err());
        assert_eq!(answered(9, "/guarded/a/x", Err(ErrorCode::NoAuth)), Ok(()));
    }

    #[test]
    fn an_event_a_list_and_a_notice_of_a_hidden_lock_are_caught() {
        let shown = |zxid, path: &str| {
            check(Access::Shown { session: SESSION, zxid: Zxid(zxid), path: path.to_owned() })
        };
        assert_eq!(shown(6, "/guarded/a/x/_c_-0000000001"), Ok(()));
        assert!(shown(6, "/guarded/ab/x/_c_-0000000001").is_err() && shown(9, "/guarded/a/x").is_err());
        assert_eq!(shown(9, "/elsewhere"), Ok(()));
        let listed = |zxid: i64| {
            let locks = json!([{ "lock": "/guarded/a/x", "holders": 1, "waiters": 0 }]);
            let list = json!({ "zxid": zxid, "time_ms": 0, "locks": locks, "more": false });
            let locks = Box::new(serde_json::from_value(list).unwrap());
            check(Access::Listed { session: SESSION, locks })
        };
        assert_eq!(listed(6), Ok(()));
        assert!(listed(9).is_err());
        let noticed = |place: &str| check(Access::Noticed { session: SESSION, place: place.to_owned() });
        assert_eq!(noticed("/guarded/a/x/_c_0000000000000007-0000000001"), Ok(()));
        assert!(noticed("/guarded/a/x/_c_0000000000000008-0000000001").is_err());
    }
}
