//! [`OneshotWatch`]: waits for the single event of a watch.

use std::sync::Arc;

use rowlock_proto::WatchedEvent;
use tokio::sync::oneshot;

use crate::client::Client;
use crate::error::Error;
use crate::path;
use crate::session::Shared;
use crate::session::watches::{WatchRequest, WatchedBy};

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
