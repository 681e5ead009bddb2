//! Queue znode of a lock on plain ZooKeeper: a single ephemeral sequential znode, from before the create is
//! sent until the znode is gone.
//!
//! Dropping a `Place`, at any moment, leaves the queue: the drop posts a removal to the session's task. After
//! a lost reply the client looks for the random name before sending the create again, hence no attempt ever
//! has two znodes (CURATOR-79).

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_proto::request::{Create, PathWatch};
use rowlock_proto::{Acl, CreateMode, ErrorCode, Request, Response, Stat, Version, path};
use tokio::sync::OwnedSemaphorePermit;

use super::queue::Queue;
use super::site::pause_or_fail;
use crate::client::Client;
use crate::error::Error;
use crate::session::Reply;
use crate::session::znode_removal::ZnodeRemoval;
use crate::{path as paths, znode};

/// Queue znode of an attempt. All paths are absolute.
pub(crate) struct Place {
    client: Client,
    parent: String,
    /// Name without the server's number; contains a random id.
    prefix: String,
    /// Data of the queue znode.
    data: Bytes,
    /// Data of the lock's znode, for its creation.
    parent_data: Bytes,
    /// Name of the znode, once seen in a reply or a list.
    name: Option<String>,
    /// A create has been sent and the znode is not known to be gone.
    ///
    /// Invariant: set before the create is handed over, hence a drop at any await leaves the queue.
    may_exist: bool,
    slot: Option<OwnedSemaphorePermit>,
}

impl Place {
    pub(crate) fn new(client: Client, parent: String, prefix: String, data: Bytes) -> Result<Self, Error> {
        let slot = Some(client.lock_slot()?);
        let parent_data = Bytes::new();
        Ok(Place { client, parent, prefix, data, parent_data, name: None, may_exist: false, slot })
    }

    /// Sets the data for the creation of the lock's znode.
    pub(crate) fn with_parent_data(mut self, data: Bytes) -> Self {
        self.parent_data = data;
        self
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn parent(&self) -> &str {
        &self.parent
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn path(&self) -> String {
        path::join(&self.parent, self.name())
    }

    /// Enters the queue. Returns the znode's Stat, and the queue if listed in the same round trip.
    pub(crate) async fn enter(&mut self) -> Result<(Stat, Option<Queue>), Error> {
        loop {
            if self.may_exist
                && let Some(stat) = self.find().await?
            {
                return Ok((stat, None));
            }
            self.may_exist = true;
            let create = self.client.submit(self.create_request(), None).await?;
            // Sent right behind the create: without competition the lock takes one round trip.
            let list = self.client.submit(self.list_request(), None).await?;
            match create.await.and_then(|reply| self.client.created(reply)) {
                Ok(made) => {
                    self.name = Some(path::name(&made.path).to_owned());
                    let children = list.await.and_then(znode::children);
                    return Ok((made.stat, children.ok().map(|children| Queue::new(children.names))));
                }
                Err(Error::Rejected(ErrorCode::NoNode)) => {
                    self.may_exist = false;
                    self.make_parent().await?;
                }
                Err(error) => {
                    self.may_exist = error.may_have_happened();
                    pause_or_fail(error).await?;
                }
            }
        }
    }

    /// Lists the queue on the connected server, never from before our entry.
    pub(crate) async fn queue(&self) -> Result<Queue, Error> {
        let children = znode::children(self.insist(self.list_request()).await?)?;
        Ok(Queue::new(children.names))
    }

    /// Leaves the queue and waits for the acknowledgement. `Ok(false)`: the znode was gone already.
    pub(crate) async fn leave(mut self) -> Result<bool, Error> {
        let mut in_doubt = false;
        loop {
            let delete = Request::Delete { path: self.path(), version: Version::ANY };
            match self.client.call(delete).await {
                Ok(_) => {
                    self.may_exist = false;
                    return Ok(true);
                }
                // Gone: by an earlier try of this loop whose reply was lost, or by another client.
                Err(Error::Rejected(ErrorCode::NoNode)) => {
                    self.may_exist = false;
                    return Ok(in_doubt);
                }
                Err(error) => {
                    in_doubt |= error.may_have_happened();
                    pause_or_fail(error).await?;
                }
            }
        }
    }

    pub(crate) fn forget(&mut self) {
        self.may_exist = false;
    }

    /// Looks for the znode after a create with unknown outcome. A sync goes first: the connected server may
    /// not have seen the writes of the previous server.
    async fn find(&mut self) -> Result<Option<Stat>, Error> {
        loop {
            self.insist(Request::Sync(self.parent.clone())).await?;
            let names = match self.insist(self.list_request()).await {
                Ok(reply) => znode::children(reply)?.names,
                Err(Error::Rejected(ErrorCode::NoNode)) => Vec::new(),
                Err(error) => return Err(error),
            };
            let Some(name) = Queue::new(names).find(&self.prefix).map(str::to_owned) else {
                self.may_exist = false;
                return Ok(None);
            };
            self.name = Some(name);
            let exists = Request::Exists(PathWatch { path: self.path(), watch: false });
            match self.insist(exists).await {
                Ok(Reply { response: Response::Stat(stat) }) => return Ok(Some(stat)),
                Ok(_) => return Err(Error::Protocol("exists was answered without a Stat")),
                // Removed in between: look again.
                Err(Error::Rejected(ErrorCode::NoNode)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn create_request(&self) -> Request {
        Request::Create2(Create {
            path: path::join(&self.parent, &self.prefix),
            data: Some(self.data.clone()),
            acl: Some(Acl::shared_open()),
            flags: CreateMode::EphemeralSequential.flags(),
        })
    }

    fn list_request(&self) -> Request {
        Request::GetChildren2(PathWatch { path: self.parent.clone(), watch: false })
    }

    /// Creates the lock's znode (a container, which the servers remove after a long time without children)
    /// and the ancestors.
    pub(crate) async fn make_parent(&self) -> Result<(), Error> {
        let mut not_ours = false;
        for path in paths::lineage(&self.parent) {
            let create = |flags: CreateMode| Create {
                path: path.to_owned(),
                data: Some(if path == self.parent { self.parent_data.clone() } else { Bytes::new() }),
                acl: Some(Acl::shared_open()),
                flags: flags.flags(),
            };
            let request = if path == self.parent {
                Request::CreateContainer(create(CreateMode::Container))
            } else {
                Request::Create2(create(CreateMode::Persistent))
            };
            let result = match self.insist(request).await {
                Err(Error::Rejected(ErrorCode::Unimplemented)) => {
                    self.insist(Request::Create2(create(CreateMode::Persistent))).await
                }
                result => result,
            };
            match result {
                Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => {}
                // An ancestor without access may exist all the same; the last znode decides.
                Err(Error::Rejected(ErrorCode::NoAuth)) if path != self.parent => not_ours = true,
                Err(Error::Rejected(ErrorCode::NoNode)) if not_ours => {
                    return Err(Error::Rejected(ErrorCode::NoAuth));
                }
                // An ancestor was removed in between: the caller comes again.
                Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Repeats a retryable request until the answer is known or the session has ended.
    pub(crate) async fn insist(&self, request: Request) -> Result<Reply, Error> {
        loop {
            match self.client.call(request.clone()).await {
                Err(error) if error.is_retryable() => pause_or_fail(error).await?,
                result => return result,
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if decides!("queued-znode-may-exist", self.may_exist) {
            let known = self.name.as_deref().map(|name| path::join(&self.parent, name));
            self.client.post(ZnodeRemoval::new(
                self.parent.clone(),
                self.prefix.clone(),
                known,
                self.slot.take(),
            ));
        }
    }
}
