//! Calls for operators and tools: forced releases, requests to holders, operations on nodes, membership
//! changes, reports (holders, waiters, sessions, and the history of locks). The client's own node makes the
//! reports, limited to the data that the client may READ.

use std::fmt::Write as _;
use std::time::Duration;

use rowlock_proto::lock::{ASK_BY_MAX_BYTES, Ask, Claim};
use rowlock_proto::report::{History, LockAccess, Locks, Queue, Sessions, in_query};
use rowlock_proto::{NodeId, Request, Response, SessionId, Stat};
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Error;

/// A change of the members of a cluster, for [`Client::reconfig`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a change does nothing until it is asked for"]
pub struct Reconfig {
    joining: Vec<String>,
    leaving: Vec<NodeId>,
    all: Option<String>,
    version: Option<i64>,
}

impl Reconfig {
    /// Starts with an empty change; [`Reconfig::join`] and [`Reconfig::leave`] add servers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes exactly these servers the members: lines or a comma-separated list in the format of
    /// `/zookeeper/config`. The server then ignores [`Reconfig::join`] and [`Reconfig::leave`].
    pub fn to(all: impl Into<String>) -> Self {
        Reconfig { all: Some(all.into()), ..Self::default() }
    }

    /// Adds a server, or changes the role of a member: `server.4=HOST:PEER:ELECTION:participant;HOST:CLIENT`,
    /// with `observer` for a member without a vote.
    pub fn join(mut self, server: impl Into<String>) -> Self {
        self.joining.push(server.into());
        self
    }

    /// Removes a member from the cluster.
    pub fn leave(mut self, node: NodeId) -> Self {
        self.leaving.push(node);
        self
    }

    /// Only if `/zookeeper/config` still has this version, the number behind its last `version=` (hexadecimal
    /// there).
    pub fn if_version(mut self, version: i64) -> Self {
        self.version = Some(version);
        self
    }

    fn request(&self) -> Request {
        let list = |entries: Vec<String>| (!entries.is_empty()).then(|| entries.join(","));
        Request::Reconfig {
            joining: list(self.joining.clone()),
            leaving: list(self.leaving.iter().map(|node| node.0.to_string()).collect()),
            new_members: self.all.clone(),
            config_id: self.version.unwrap_or(-1),
        }
    }
}

/// Members of a cluster: the content of `/zookeeper/config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// A line for each member, and at last `version=`.
    pub config: String,
    /// The Stat of `/zookeeper/config`.
    pub stat: Stat,
}

impl Client {
    /// Ends another client's hold (or removes the client's request from the queue): exactly the queue znode
    /// and fencing token that a queue or a report shows. Returns `false`, with nothing changed, if the claim
    /// no longer exists. The holder learns of the loss ([`crate::LostReason::ForceReleased`]), but a write of
    /// this holder may still be under way: an operator must know that the holder is dead.
    ///
    /// With the path of the lock and the token 0 the call ends a lock-delay instead, and returns `true` if a
    /// lock-delay was in force.
    ///
    /// On plain ZooKeeper the client compares the znode's token, then deletes the znode.
    ///
    /// # Errors
    /// [`Error::Rejected`] (NoAuth: needs the right `force`, see [`Client::rights_on`], and DELETE on the
    /// lock's znode); the common ones of writes.
    /// # Cancel safety
    /// A dropped future's release may take effect.
    pub async fn force_release(&self, claim: &Claim) -> Result<bool, Error> {
        if !self.extensions().await?.has_locks() {
            return self.force_by_deletion(claim).await;
        }
        let claim = Claim { path: self.absolute(&claim.path).into(), token: claim.token };
        match self.ask(Request::ForceRelease(claim)).await?.response {
            Response::Held(held) => Ok(held[..] == [true]),
            _ => Err(Error::Protocol("a forced release was answered with something else")),
        }
    }

    /// Asks the holders of the lock at this path ([`crate::Mutex::path`] and the like) to release the lock:
    /// the holders learn at once ([`crate::Guard::asked`]) the `reason` (1 to 256 bytes), the caller's
    /// identity and the caller's label. The queue does not change. Returns the number of holders; 0 means a
    /// free lock.
    ///
    /// `within` (1 s to 1 h) turns the notice into a deadline: a holder that has not released the lock by
    /// then loses the lock. As with a maximum hold, the cluster revokes the lock only after a further eighth
    /// of the time plus the holder's session timeout; a disconnected holder has given up before then.
    ///
    /// Holders that use a plain ZooKeeper client receive no notice, and lose the lock just the same.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; [`Error::Unsupported`] on plain ZooKeeper and older releases;
    /// [`Error::Rejected`] (NoAuth: needs CREATE on the lock's znode, as acquiring does, and the right `ask`;
    /// with `within` also DELETE, and `force` in place of `ask`, see [`Client::rights_on`]); the end of the
    /// session.
    /// # Cancel safety
    /// The servers may deliver the request of a dropped future.
    pub async fn ask_holders(
        &self,
        lock: &str,
        reason: &str,
        within: Option<Duration>,
    ) -> Result<u32, Error> {
        let within_ms = within.map_or(0, |time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1));
        let mut by = self.config().label.clone();
        while by.len() > ASK_BY_MAX_BYTES {
            by.pop();
        }
        let ask = Ask { lock: self.absolute(lock), reason: reason.to_owned(), by, within_ms };
        if !ask.is_good() {
            return Err(Error::InvalidArgument(
                "a question has a reason of 1 to 256 bytes, and gives 1 s to 1 h",
            ));
        }
        match self.ask(Request::Ask(ask)).await?.response {
            Response::Number(count) => Ok(u32::try_from(count).unwrap_or(0)),
            _ => Err(Error::Protocol("a question was answered with something else")),
        }
    }

    /// ZooKeeper never uses the name of a queue znode twice, hence the compared znode is the deleted znode.
    async fn force_by_deletion(&self, claim: &Claim) -> Result<bool, Error> {
        self.sync(&claim.path).await?;
        let stat = self.exists(&claim.path).await?;
        if stat.is_none_or(|stat| stat.czxid.0 != claim.token.0) {
            return Ok(false);
        }
        match self.delete(&claim.path, None).await {
            Ok(()) => Ok(true),
            Err(Error::Rejected(rowlock_proto::ErrorCode::NoNode)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Runs an operator's command on a node, given as path and query; docs/protocol.md lists the commands.
    /// Any node accepts the command and forwards a command for another node. Returns the node's JSON
    /// document. Superusers only ([`crate::ClientBuilder::auth`]).
    ///
    /// # Errors
    /// [`Error::Unsupported`] on plain ZooKeeper and on older releases; [`Error::Rejected`], with nothing
    /// changed: NoAuth; BadArguments; NoNode (the named object does not exist); NewConfigNoQuorum (no voter
    /// could take over). [`Error::Rejected`] with OperationTimeout, or [`Error::ConnectionLoss`]: the command
    /// may have run.
    /// # Cancel safety
    /// The node may run the command after the future is dropped.
    pub async fn operate(&self, what: &str) -> Result<String, Error> {
        match self.ask(Request::Operate(what.to_owned())).await?.response {
            Response::Report(json) => Ok(json),
            _ => Err(Error::Protocol("an operation was answered with something else")),
        }
    }

    /// Changes the members of the cluster, and returns the configuration then in force: the content of
    /// `/zookeeper/config`. Superusers only ([`crate::ClientBuilder::auth`]). New members must run already;
    /// removed members stop afterwards. The change may take some seconds, and later calls of the session wait
    /// for the change.
    ///
    /// # Errors
    /// [`Error::Rejected`], with nothing changed: NoAuth; ReconfigDisabled; BadVersion; BadArguments;
    /// NewConfigNoQuorum (new voters, or too many of all, lag); ReconfigInProgress (another change is under
    /// way: retry). [`Error::ConnectionLoss`]: read `/zookeeper/config` after a [`Client::sync`]; repeating
    /// the same change is harmless.
    /// # Cancel safety
    /// A dropped future's change may take effect.
    pub async fn reconfig(&self, change: &Reconfig) -> Result<Members, Error> {
        const ODD: Error = Error::Protocol("a reconfiguration was answered with something else");
        match self.ask(change.request()).await?.response {
            Response::Data(Some(config), stat) => {
                Ok(Members { config: String::from_utf8(config.to_vec()).map_err(|_| ODD)?, stat })
            }
            _ => Err(ODD),
        }
    }
}

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
    fn a_change_is_written_as_zookeeper_reads_it() {
        let change = Reconfig::new()
            .join("server.4=h:1:2:observer;h:2")
            .join("server.5=i:1:2;i:2")
            .leave(NodeId(2))
            .leave(NodeId(3))
            .if_version(0x1f);
        let want = Request::Reconfig {
            joining: Some("server.4=h:1:2:observer;h:2,server.5=i:1:2;i:2".to_owned()),
            leaving: Some("2,3".to_owned()),
            new_members: None,
            config_id: 0x1f,
        };
        assert_eq!(change.request(), want);
        let want = Request::Reconfig {
            joining: None,
            leaving: None,
            new_members: Some("server.1=h:1:1;h:2".to_owned()),
            config_id: -1,
        };
        assert_eq!(Reconfig::to("server.1=h:1:1;h:2").request(), want);
    }

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
