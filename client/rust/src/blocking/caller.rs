//! The way from a blocking handle to the session: the client, the thread that serves it, and how long to
//! wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::task::Background;
use rowlock_env::time;

use crate::client::Client;
use crate::connect_error::ConnectError;
use crate::error::Error;
use crate::limits::BLOCKING_FAREWELL;
use crate::session::SessionState;

/// Shared by all handles of one session; its thread ends after the last of them.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    link: Arc<RuntimeLink>,
    /// Time limit of calls that wait only for the servers.
    patience: Option<Duration>,
}

#[derive(Debug)]
struct RuntimeLink {
    /// Both parts, taken only by the drop.
    parts: Option<(Client, Background)>,
}

impl Caller {
    /// Starts the thread and opens the session.
    pub(super) fn connect(
        open: impl Future<Output = Result<Client, ConnectError>>,
    ) -> Result<Self, ConnectError> {
        let thread = Background::start("rowlock-client");
        let background = thread.map_err(|error| ConnectError::Thread(Arc::new(error)))?;
        let client = background.run(open)?;
        Ok(Caller { link: Arc::new(RuntimeLink { parts: Some((client, background)) }), patience: None })
    }

    pub(super) fn with_patience(&self, patience: Duration) -> Self {
        Caller { link: self.link.clone(), patience: Some(patience) }
    }

    pub(super) fn patience(&self) -> Option<Duration> {
        self.patience
    }

    pub(super) fn client(&self) -> &Client {
        &self.link.parts().0
    }

    pub(super) fn background(&self) -> &Background {
        &self.link.parts().1
    }

    /// Waits for a call that may wait for others.
    pub(super) fn wait<F: Future>(&self, call: F) -> F::Output {
        self.background().run(call)
    }

    /// Waits for a call that is answered by the servers alone.
    pub(super) fn ask<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let Some(patience) = self.patience else { return self.wait(call) };
        self.wait(async { time::timeout(patience, call).await.unwrap_or(Err(Error::NoAnswer)) })
    }
}

impl RuntimeLink {
    fn parts(&self) -> &(Client, Background) {
        self.parts.as_ref().expect("only the drop takes the parts")
    }
}

impl Drop for RuntimeLink {
    /// The last handle of the session is gone. Its task closes it then; the thread stays for that, for a
    /// while.
    fn drop(&mut self) {
        let Some((client, background)) = self.parts.take() else { return };
        let mut states = client.states();
        drop(client);
        background.end(async move {
            let ended = |state: &SessionState| state.is_final();
            // Should it not be closed in time, the servers expire it.
            let _ = time::timeout(BLOCKING_FAREWELL, states.wait_for(ended)).await;
        });
    }
}
