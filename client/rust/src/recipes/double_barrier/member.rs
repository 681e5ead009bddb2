//! One member's znode: from before its create is sent until it is gone. Dropping it leaves the barrier, as
//! with a place in a queue: the drop posts the removal to the session's task.

use bytes::Bytes;
use rowlock_proto::{Acl, CreateMode, ErrorCode, path};
use tokio::sync::OwnedSemaphorePermit;

use crate::client::Client;
use crate::error::Error;
use crate::recipes::names;
use crate::recipes::plain::insist;
use crate::session::znode_removal::ZnodeRemoval;

pub(super) struct Member {
    client: Client,
    /// The barrier's znode, as the application writes it.
    parent: String,
    name: String,
    /// Invariant: set before the create is handed over, so that a drop at any await removes the znode.
    may_exist: bool,
    slot: Option<OwnedSemaphorePermit>,
}

impl Member {
    pub(super) fn new(client: &Client, parent: &str) -> Result<Self, Error> {
        let slot = Some(client.lock_slot()?);
        let (client, parent) = (client.clone(), parent.to_owned());
        Ok(Member { client, parent, name: names::random_id(), may_exist: false, slot })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn path(&self) -> String {
        path::join(&self.parent, &self.name)
    }

    /// Makes the znode: ephemeral, not sequential (a sequential one would be a contender for a lock). Its
    /// name is random, so that one that is there already is ours: of a try whose reply was lost.
    ///
    /// # Errors
    /// NoNode: the barrier's znode is not there.
    pub(super) async fn enter(&mut self) -> Result<(), Error> {
        self.may_exist = true;
        let (path, label) = (self.path(), self.client.config().label.clone());
        let data = Some(Bytes::from(label));
        match insist(|| self.client.create(&path, data.clone(), CreateMode::Ephemeral, Acl::open())).await {
            Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn withdraw(&mut self) -> Result<(), Error> {
        let path = self.path();
        match insist(|| self.client.delete(&path, None)).await {
            Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => {
                self.may_exist = false;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Another client removed the znode.
    pub(super) fn expelled(&mut self) -> Error {
        self.forget();
        Error::PlaceLost
    }

    /// The znode is known to be gone.
    pub(super) fn forget(&mut self) {
        self.may_exist = false;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.may_exist {
            let (parent, path) = (self.client.absolute(&self.parent), self.client.absolute(&self.path()));
            self.client.post(ZnodeRemoval::new(parent, self.name.clone(), Some(path), self.slot.take()));
        }
    }
}
