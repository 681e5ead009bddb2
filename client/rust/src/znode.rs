//! The znode calls of [`Client`], and watches on znodes.
//!
//! These calls share their rules. *Errors*: [`Error::Rejected`] (the server refused; no effect),
//! [`Error::ConnectionLoss`] (a write may have taken effect), the end of the session. *Cancel safety*: a
//! dropped future's request may or may not take effect, as with a lost connection. *Ordering*: requests of a
//! session take effect in the order in which their futures were first polled; the connected server answers
//! reads, never with a state older than this session has seen; [`Client::sync`] first makes reads fresh.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_proto::request::{Create, PathWatch, SetAcl, SetData};
use rowlock_proto::{Acl, CreateMode, ErrorCode, Request, Response, Stat, Version, WatchedEvent};
use tokio::sync::oneshot;

use crate::client::Client;
use crate::error::Error;
use crate::path;
use crate::session::watches::{WatchRequest, WatchedBy};
use crate::session::{Reply, Shared};

/// A znode just created, with its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Path of the znode; includes the number of a sequential znode.
    pub path: String,
    /// The Stat of the new znode.
    pub stat: Stat,
}

/// Data and Stat of a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    /// Data of the znode; null (`None`) and empty differ.
    pub data: Option<Bytes>,
    /// The Stat at the time of the read.
    pub stat: Stat,
}

impl Znode {
    /// Returns the data; null reads as empty.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_deref().unwrap_or_default()
    }
}

/// Names of a znode's children, and the znode's Stat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Children {
    /// Names (not paths) of the children, in no order.
    pub names: Vec<String>,
    /// The Stat of the znode itself.
    pub stat: Stat,
}

/// The access control list of a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessList {
    /// Entries of the list, in their order.
    pub acl: Vec<Acl>,
    /// The Stat of the znode; `aversion` is the version of the list.
    pub stat: Stat,
}

/// A value, and a watch that reports the value's next change.
#[derive(Debug)]
pub struct Watched<T, W = OneshotWatch> {
    /// The value at the time of the read.
    pub value: T,
    /// Watch of the value; dropping the watch forgets the registration.
    pub watch: W,
}

const ODD: Error = Error::Protocol("the body does not belong to the request");

impl Client {
    /// Creates a znode; the server appends ten digits to the name in sequential modes. `data`: null (`None`)
    /// and empty stay different.
    ///
    /// # Errors
    /// NodeExists, NoNode (the parent is missing), NoAuth, NoChildrenForEphemerals, BadArguments; the common
    /// errors above. Do not blindly repeat a sequential create after [`Error::ConnectionLoss`]: two znodes
    /// may then exist.
    pub async fn create(
        &self,
        path: &str,
        data: Option<Bytes>,
        mode: CreateMode,
        acl: Vec<Acl>,
    ) -> Result<Created, Error> {
        let create = Create { path: self.absolute(path), data, acl: Some(acl.into()), flags: mode.flags() };
        let request = if mode == CreateMode::Container {
            Request::CreateContainer(create)
        } else {
            Request::Create2(create)
        };
        self.created(self.ask(request).await?)
    }

    /// Creates a znode (persistent, or persistent sequential) that the servers remove after `ttl` without
    /// children and changes. Apache ZooKeeper refuses the call (Unimplemented) unless the feature is on
    /// there.
    ///
    /// # Errors
    /// The errors of [`Client::create`]; BadArguments for a time below 1 ms or above 2^40 - 1 ms, or another
    /// mode.
    pub async fn create_with_ttl(
        &self,
        path: &str,
        data: Option<Bytes>,
        mode: CreateMode,
        acl: Vec<Acl>,
        ttl: Duration,
    ) -> Result<Created, Error> {
        let mode = match mode {
            CreateMode::Persistent => CreateMode::PersistentWithTtl,
            CreateMode::PersistentSequential => CreateMode::PersistentSequentialWithTtl,
            other => other,
        };
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let create = Create { path: self.absolute(path), data, acl: Some(acl.into()), flags: mode.flags() };
        self.created(self.ask(Request::CreateTtl(create, ttl_ms)).await?)
    }

    pub(crate) fn created(&self, reply: Reply) -> Result<Created, Error> {
        match reply.response {
            Response::PathStat(path, stat) => Ok(Created { path: self.relative(path), stat }),
            _ => Err(ODD),
        }
    }

    /// Deletes a znode without children, if the version matches (`None`: any).
    ///
    /// # Errors
    /// NoNode, BadVersion, NotEmpty, NoAuth; the common errors above.
    pub async fn delete(&self, path: &str, version: Option<Version>) -> Result<(), Error> {
        let version = version.unwrap_or(Version::ANY);
        self.ask(Request::Delete { path: self.absolute(path), version }).await.map(drop)
    }

    /// Reads the Stat of a znode; `None` if the znode does not exist.
    ///
    /// # Errors
    /// NoAuth; the common errors above.
    pub async fn exists(&self, path: &str) -> Result<Option<Stat>, Error> {
        let request = Request::Exists(PathWatch { path: self.absolute(path), watch: false });
        existing(self.ask(request).await)
    }

    /// [`Client::exists`], and a watch for creation, deletion or change of data.
    ///
    /// # Errors
    /// The errors of [`Client::exists`]; an error leaves no watch.
    pub async fn exists_watched(&self, path: &str) -> Result<Watched<Option<Stat>>, Error> {
        let (reply, watch) = self.watched(WatchedBy::Exists, path).await;
        Ok(Watched { value: existing(reply)?, watch })
    }

    /// Data and Stat of a znode.
    ///
    /// # Errors
    /// NoNode, NoAuth; the common errors above.
    pub async fn get(&self, path: &str) -> Result<Znode, Error> {
        data(self.ask(Request::GetData(PathWatch { path: self.absolute(path), watch: false })).await?)
    }

    /// [`Client::get`], and a watch for a change of data or the deletion.
    ///
    /// # Errors
    /// The errors of [`Client::get`]; an error leaves no watch.
    pub async fn get_watched(&self, path: &str) -> Result<Watched<Znode>, Error> {
        let (reply, watch) = self.watched(WatchedBy::GetData, path).await;
        Ok(Watched { value: data(reply?)?, watch })
    }

    /// Lists the names of the children, with the Stat of the znode.
    ///
    /// # Errors
    /// NoNode, NoAuth; the common errors above.
    pub async fn get_children(&self, path: &str) -> Result<Children, Error> {
        children(
            self.ask(Request::GetChildren2(PathWatch { path: self.absolute(path), watch: false })).await?,
        )
    }

    /// [`Client::get_children`], and a watch for children coming or going, or the deletion of the znode.
    ///
    /// # Errors
    /// The errors of [`Client::get_children`]; an error leaves no watch.
    pub async fn get_children_watched(&self, path: &str) -> Result<Watched<Children>, Error> {
        let (reply, watch) = self.watched(WatchedBy::GetChildren, path).await;
        Ok(Watched { value: children(reply?)?, watch })
    }

    /// Replaces the data, if the version matches (`None`: any).
    ///
    /// # Errors
    /// NoNode, BadVersion, NoAuth; the common errors above.
    pub async fn set(
        &self,
        path: &str,
        data: Option<Bytes>,
        version: Option<Version>,
    ) -> Result<Stat, Error> {
        let version = version.unwrap_or(Version::ANY);
        stat(self.ask(Request::SetData(SetData { path: self.absolute(path), data, version })).await?)
    }

    /// The access control list.
    ///
    /// # Errors
    /// NoNode, NoAuth; the common errors above.
    pub async fn get_acl(&self, path: &str) -> Result<AccessList, Error> {
        match self.ask(Request::GetAcl(self.absolute(path))).await?.response {
            Response::Acl(acl, stat) => Ok(AccessList { acl, stat }),
            _ => Err(ODD),
        }
    }

    /// Replaces the access control list, if `aversion` matches `version` (`None`: any).
    ///
    /// # Errors
    /// NoNode, BadVersion, InvalidAcl, NoAuth; the common errors above.
    pub async fn set_acl(&self, path: &str, acl: Vec<Acl>, version: Option<Version>) -> Result<Stat, Error> {
        let version = version.unwrap_or(Version::ANY);
        stat(
            self.ask(Request::SetAcl(SetAcl { path: self.absolute(path), acl: Some(acl.into()), version }))
                .await?,
        )
    }

    /// Brings the connected server up to date: later reads of the session see everything committed before the
    /// sync.
    ///
    /// # Errors
    /// The common errors above.
    pub async fn sync(&self, path: &str) -> Result<(), Error> {
        self.ask(Request::Sync(self.absolute(path))).await.map(drop)
    }

    /// Lists the paths of this session's ephemeral znodes that start with `prefix`.
    ///
    /// # Errors
    /// The common errors above.
    pub async fn get_ephemerals(&self, prefix: &str) -> Result<Vec<String>, Error> {
        match self.ask(Request::GetEphemerals(self.absolute(prefix))).await?.response {
            Response::Children(paths) => Ok(paths.into_iter().map(|path| self.relative(path)).collect()),
            _ => Err(ODD),
        }
    }

    async fn watched(&self, by: WatchedBy, path: &str) -> (Result<Reply, Error>, OneshotWatch) {
        let path = self.absolute(path);
        let (watch, registration) = OneshotWatch::new(self, by, path.clone());
        let read = PathWatch { path, watch: true };
        let request = match by {
            WatchedBy::Exists => Request::Exists(read),
            WatchedBy::GetData => Request::GetData(read),
            WatchedBy::GetChildren => Request::GetChildren2(read),
        };
        let reply = self.in_time(async { self.submit(request, Some(registration)).await?.await }).await;
        (reply, watch)
    }
}

fn existing(reply: Result<Reply, Error>) -> Result<Option<Stat>, Error> {
    match reply {
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(None),
        reply => stat(reply?).map(Some),
    }
}

fn stat(reply: Reply) -> Result<Stat, Error> {
    match reply.response {
        Response::Stat(stat) => Ok(stat),
        _ => Err(ODD),
    }
}

pub(crate) fn data(reply: Reply) -> Result<Znode, Error> {
    match reply.response {
        Response::Data(data, stat) => Ok(Znode { data, stat }),
        _ => Err(ODD),
    }
}

pub(crate) fn children(reply: Reply) -> Result<Children, Error> {
    match reply.response {
        Response::Children2(names, stat) => Ok(Children { names, stat }),
        _ => Err(ODD),
    }
}

/// Watch on a path. The watch fires once, also across reconnects: changes during an interruption fire the
/// watch after the reconnect. An event reports only the fact of a change; read the znode again for the
/// content.
#[derive(Debug)]
pub struct OneshotWatch {
    event: oneshot::Receiver<WatchedEvent>,
    fired: Option<WatchedEvent>,
    chroot: String,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.vitals()).finish()
    }
}

impl OneshotWatch {
    /// Makes a watch, and the request's part that registers the watch on the server.
    pub(crate) fn new(client: &Client, by: WatchedBy, absolute: String) -> (Self, WatchRequest) {
        let (sender, event) = oneshot::channel();
        let watch = OneshotWatch {
            event,
            fired: None,
            chroot: client.config().chroot.clone(),
            shared: client.shared().clone(),
        };
        (watch, WatchRequest { by, path: absolute, event: sender })
    }

    /// Waits for the event; returns the same event when called again.
    ///
    /// # Errors
    /// The end of the session: [`Error::SessionExpired`], [`Error::Closed`], [`Error::AuthFailed`].
    /// # Cancel safety
    /// Dropping the future loses nothing. Dropping the watch itself forgets the watch.
    pub async fn changed(&mut self) -> Result<WatchedEvent, Error> {
        if self.fired.is_none() {
            let mut event = (&mut self.event).await.map_err(|_| self.shared.ended())?;
            event.path = path::relative(&self.chroot, event.path);
            self.fired = Some(event);
        }
        self.fired.clone().ok_or_else(|| self.shared.ended())
    }
}
