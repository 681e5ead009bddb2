//! [`OneshotWatch`]: waits for the one event of a watch.

use std::sync::Arc;

use rowlock_proto::WatchedEvent;
use tokio::sync::oneshot;

use crate::client::Client;
use crate::error::Error;
use crate::path;
use crate::session::Shared;
use crate::session::watches::{WatchRequest, WatchedBy};

/// A watch on one path. It fires once, also across reconnects: what changed while the connection was down is
/// told after the next one stands. An event says *that* something changed; read again to see what.
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
    /// A watch and the request part that makes the server keep it.
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

    /// Waits for the event; returns the same one when called again.
    ///
    /// # Errors
    /// How the session ended: [`Error::SessionExpired`], [`Error::Closed`], [`Error::AuthFailed`].
    /// # Cancel safety
    /// Nothing is lost when the future is dropped. Dropping the watch itself forgets it.
    pub async fn changed(&mut self) -> Result<WatchedEvent, Error> {
        if self.fired.is_none() {
            let mut event = (&mut self.event).await.map_err(|_| self.shared.ended())?;
            event.path = path::relative(&self.chroot, event.path);
            self.fired = Some(event);
        }
        self.fired.clone().ok_or_else(|| self.shared.ended())
    }
}
