//! Znode of a member: from before the create is sent until the znode is gone. Dropping the member leaves the
//! barrier: the drop posts the removal to the session's task.

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
    /// Path of the barrier's znode, without the chroot.
    parent: String,
    name: String,
    /// Invariant: set before the create is handed over, hence a drop at any await removes the znode.
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

    /// Creates the znode: ephemeral, not sequential (a sequential znode would be a contender for a lock). The
    /// name is random: an existing znode comes from our own create whose reply was lost.
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

    pub(super) fn expelled(&mut self) -> Error {
        self.forget();
        Error::PlaceLost
    }

    /// Records the end of the znode.
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
