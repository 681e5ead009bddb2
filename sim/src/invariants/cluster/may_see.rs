//! may-see: no answer, error, event, notice or list shows a client a lock that the rules in force hide, and
//! no read of a lock that they show is refused.

use rowlock_proto::report::HistoryEntry;
use rowlock_proto::{ErrorCode, SessionId, Zxid};

use super::super::Invariant;
use super::lock_events::lock_in;
use super::rules::{Reader, Rules};
use crate::history::access::{Access, Need, is_closed, is_guarded};
use crate::history::client::{ClientFact, Events};
use crate::history::{Book, Fact};

#[derive(Default)]
pub struct MaySee(Rules);

impl MaySee {
    fn check_access(&self, reader: Reader, what: &Access) -> Result<(), String> {
        match what {
            Access::Answered { since, zxid, needs, result, .. }
                if !needs.is_empty() && needs.iter().all(Need::is_sight) =>
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
            // The ACL of a removed znode was in force until then.
            Access::Shown { zxid, path, .. } if is_closed(path) => {
                self.check_path(reader, path, (Zxid(zxid.0 - 1), *zxid))
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
        let is_hidden = is_guarded(path) || is_closed(path);
        match !is_hidden || self.0.may_see(reader, path, times) {
            true => Ok(()),
            false => Err(format!("was shown {path} at {}, which the rules or its ACL hide", times.1)),
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

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
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
                Access::Credential { .. } => Ok(()),
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
