//! Rowlock's own client: acquire is one request, release another, and a grant is pushed.

use anyhow::{Context, Result};
use rowlock_client::Guard;

use super::Settings;

/// One session.
pub struct Client {
    /// For what a lock does not need.
    pub client: rowlock_client::Client,
    guard: Option<Guard>,
}

impl Client {
    /// The client chooses the order of the addresses. The environment variables for clients apply.
    pub async fn connect(addresses: &[String], settings: Settings) -> Result<Self> {
        let config = rowlock_client::Client::from_env()?
            .endpoints(&addresses.join(","))
            .session_timeout(settings.ttl)
            .disconnect_grace(settings.disconnect_grace);
        Ok(Client { client: config.connect().await?, guard: None })
    }

    /// See [`super::Driver::acquire`].
    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        self.guard = Some(self.client.mutex(lock).lock().await?);
        Ok(())
    }

    /// See [`super::Driver::release`].
    pub async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().context("nothing is held")?;
        Ok(guard.release().await?)
    }

    /// See [`super::Driver::post_release`]: dropping the guard is just that.
    pub fn post_release(&mut self) -> Result<()> {
        drop(self.guard.take().context("nothing is held")?);
        Ok(())
    }

    /// See [`super::Driver::close`].
    pub async fn close(self) -> Result<()> {
        Ok(self.client.close().await?)
    }
}
