//! Reports: holders, waiters, sessions, and the history of locks. The client's own node makes the reports,
//! limited to the data that the client may READ.

use std::fmt::Write as _;

use rowlock_proto::report::{History, LockAccess, Locks, Queue, Sessions, in_query};
use rowlock_proto::{Request, Response, SessionId};
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Error;

/// Filter of [`Client::report_history`]. The default selects the last hundred entries of the whole history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Limits the entries to this lock: the server's path, as from [`crate::Mutex::server_path`].
    pub lock: Option<String>,
    /// Limits the entries to this session.
    pub session: Option<SessionId>,
    /// Time of the oldest entries, milliseconds since 1970.
    pub since_ms: i64,
    /// Continues before the oldest entry of an earlier answer: the answer's `before`.
    pub before: Option<String>,
    /// Maximum number of entries: 1 to 10,000.
    pub limit: Option<u32>,
}

impl HistoryQuery {
    fn path(&self) -> String {
        let mut path = format!("/v1/history?since_ms={}", self.since_ms);
        // Writing to a String does not fail.
        if let Some(lock) = &self.lock {
            let _ = write!(path, "&lock={}", in_query(lock));
        }
        if let Some(session) = self.session {
            let _ = write!(path, "&session={session}");
        }
        if let Some(before) = &self.before {
            let _ = write!(path, "&before={}", in_query(before));
        }
        if let Some(limit) = self.limit {
            let _ = write!(path, "&limit={limit}");
        }
        path
    }
}

impl Client {
    /// Lists the locks with a holder or a waiter, the most contended first; at most `limit` locks.
    ///
    /// # Errors
    /// The errors of [`Client::report`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report_locks(&self, limit: u32) -> Result<Locks, Error> {
        self.read_report(&format!("/v1/locks?limit={limit}")).await
    }

    /// Lists the holders and waiters of a lock in the order of the queue; at most `limit` entries. `lock`:
    /// the server's path, as from [`crate::Mutex::server_path`].
    ///
    /// # Errors
    /// The errors of [`Client::report`]; NoNode: the lock does not exist, NoAuth: the client may not read the
    /// lock.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report_queue(&self, lock: &str, limit: u32) -> Result<Queue, Error> {
        self.read_report(&format!("/v1/queue?lock={}&limit={limit}", in_query(lock))).await
    }

    /// Lists the open sessions in order of their ids; at most `limit` sessions. A superuser sees all
    /// sessions, other clients see their own.
    ///
    /// # Errors
    /// The errors of [`Client::report`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report_sessions(&self, limit: u32) -> Result<Sessions, Error> {
        self.read_report(&format!("/v1/sessions?limit={limit}")).await
    }

    /// Lists the history of locks as the client's own node has recorded the history; the newest entry last.
    ///
    /// # Errors
    /// The errors of [`Client::report`]; Unimplemented: the node keeps no history.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report_history(&self, query: &HistoryQuery) -> Result<History, Error> {
        self.read_report(&query.path()).await
    }

    /// Returns this client's rights on a lock, or for a superuser the rights of the identity `who`
    /// (`x509:CN=bob`, `token:ci`). `lock`: the server's path, as from [`crate::Mutex::server_path`]. The
    /// answer names the right that was missing when a call ended with NoAuth.
    ///
    /// # Errors
    /// The errors of [`Client::report`]; NoAuth: only superusers may ask for the rights of other identities.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn rights_on(&self, lock: &str, who: Option<&str>) -> Result<LockAccess, Error> {
        let who = who.map_or(String::new(), |who| format!("&who={}", in_query(who)));
        self.read_report(&format!("/v1/access?lock={}{who}", in_query(lock))).await
    }

    /// Returns a report as JSON: the body of a GET of the same path and query from the node's HTTP listener,
    /// for instance `/v1/queue?lock=/locks/x`. Paths of znodes are the server's, without this client's
    /// chroot.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on plain ZooKeeper; [`Error::Rejected`] (NoNode: no such report; BadArguments);
    /// the end of the session.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report(&self, path: &str) -> Result<String, Error> {
        match self.ask(Request::Report(path.to_owned())).await?.response {
            Response::Report(json) => Ok(json),
            _ => Err(Error::Protocol("a report was answered with something else")),
        }
    }

    async fn read_report<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let json = self.report(path).await?;
        serde_json::from_str(&json).map_err(|_| Error::Protocol("a report cannot be read"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_encoded() {
        let query = HistoryQuery {
            lock: Some("/locks/a b%&ä".to_owned()),
            session: Some(SessionId(-1)),
            since_ms: 5,
            before: Some("1.2.3".to_owned()),
            limit: Some(7),
        };
        let path = "/v1/history?since_ms=5&lock=/locks/a%20b%25%26%C3%A4&session=0xffffffffffffffff\
                    &before=1.2.3&limit=7";
        assert_eq!(query.path(), path);
        assert_eq!(HistoryQuery::default().path(), "/v1/history?since_ms=0");
    }
}
