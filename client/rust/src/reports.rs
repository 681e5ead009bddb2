//! Reports: who holds and waits, whose sessions there are, what happened to locks. The node that the client
//! is attached to makes them, and shows what the client may READ.

use std::fmt::Write as _;

use rowlock_proto::report::{History, LockAccess, Locks, Queue, Sessions, in_query};
use rowlock_proto::{Request, Response, SessionId};
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Error;

/// Which part of the history is asked for, in [`Client::report_history`]. The default is all of it, and the
/// last hundred entries of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only of this lock: the server's path, as [`crate::Mutex::server_path`] gives it.
    pub lock: Option<String>,
    /// Only of this session.
    pub session: Option<SessionId>,
    /// Time of the oldest entries, milliseconds since 1970.
    pub since_ms: i64,
    /// Only what comes before the oldest entry of an earlier answer: its `before`.
    pub before: Option<String>,
    /// Entries at most: 1 to 10,000.
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
    /// The locks that are held or waited for, the most contended first; `limit` of them at most.
    ///
    /// # Errors
    /// As [`Client::report`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report_locks(&self, limit: u32) -> Result<Locks, Error> {
        self.read_report(&format!("/v1/locks?limit={limit}")).await
    }

    /// Who holds the lock and who waits for what, in the order of the queue; `limit` places at most. `lock`:
    /// the server's path, as [`crate::Mutex::server_path`] gives it.
    ///
    /// # Errors
    /// As [`Client::report`]; NoNode: there is no such lock, NoAuth: it may not be read.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report_queue(&self, lock: &str, limit: u32) -> Result<Queue, Error> {
        self.read_report(&format!("/v1/queue?lock={}&limit={limit}", in_query(lock))).await
    }

    /// The open sessions, in order of their ids; `limit` of them at most. A superuser sees all, other clients
    /// see their own.
    ///
    /// # Errors
    /// As [`Client::report`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report_sessions(&self, limit: u32) -> Result<Sessions, Error> {
        self.read_report(&format!("/v1/sessions?limit={limit}")).await
    }

    /// What happened to locks, as the node that the client is attached to has recorded it; the newest last.
    ///
    /// # Errors
    /// As [`Client::report`]; Unimplemented: the node keeps no history.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn report_history(&self, query: &HistoryQuery) -> Result<History, Error> {
        self.read_report(&query.path()).await
    }

    /// Returns the rights on a lock of this client, or for a superuser those of an identity
    /// (`x509:CN=bob`, `token:ci`) that it names. `lock`: the server's path, as
    /// [`crate::Mutex::server_path`] gives it. It says which right was missing when a call ended with NoAuth.
    ///
    /// # Errors
    /// As [`Client::report`]; NoAuth: only superusers may ask for the rights of others.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn rights_on(&self, lock: &str, who: Option<&str>) -> Result<LockAccess, Error> {
        let who = who.map_or(String::new(), |who| format!("&who={}", in_query(who)));
        self.read_report(&format!("/v1/access?lock={}{who}", in_query(lock))).await
    }

    /// A report as JSON: what the node's HTTP listener answers to GET of the same path and query, for
    /// instance `/v1/queue?lock=/locks/x`. Paths of znodes are the server's, without this client's chroot.
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
