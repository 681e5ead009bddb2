//! Rowlock's own client: acquire is one request, release another, and the server pushes the grant.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use rowlock_client::{ClientBuilder, Guard, Pem, Tls};

use super::Settings;

/// Offset of the TLS ports from the plain ports.
pub const TLS_OFFSET: u16 = 50;

/// Certificates of this program for the servers that it has started.
static TLS: OnceLock<Tls> = OnceLock::new();

/// Sets the certificate for later clients, from a folder of `rowlock tls`.
pub fn use_certificates(folder: &Path) {
    let [ca, cert, key] =
        ["peers-ca.pem", "client-bench.pem", "client-bench.key"].map(|file| Pem::File(folder.join(file)));
    TLS.get_or_init(|| Tls::new(ca).identity(cert, key));
}

pub struct Client {
    /// Client for calls beyond locks.
    pub client: rowlock_client::Client,
    guard: Option<Guard>,
}

impl Client {
    /// Connects; the client chooses the order of the addresses. The environment variables for clients apply.
    pub async fn connect(addresses: &[String], settings: Settings) -> Result<Self> {
        let config = rowlock_client::Client::from_env()?.endpoints(&addresses.join(","));
        Client::connect_with(config, settings).await
    }

    /// Connects like [`Client::connect`] to the same servers by TLS.
    pub async fn connect_by_tls(addresses: &[String], settings: Settings) -> Result<Self> {
        let tls =
            TLS.get().context("servers that run elsewhere: use the system `rowlock` and ROWLOCK_TLS_CA")?;
        let mut endpoints = Vec::new();
        for address in addresses {
            let mut address: SocketAddr = address.parse()?;
            address.set_port(address.port() + TLS_OFFSET);
            endpoints.push(address.to_string());
        }
        let config = rowlock_client::Client::from_env()?.endpoints(&endpoints.join(",")).tls(tls.clone());
        Client::connect_with(config, settings).await
    }

    async fn connect_with(config: ClientBuilder, settings: Settings) -> Result<Self> {
        let config = config.session_timeout(settings.ttl).disconnect_grace(settings.disconnect_grace);
        Ok(Client { client: config.connect().await?, guard: None })
    }

    pub fn handle(&self) -> Self {
        Client { client: self.client.clone(), guard: None }
    }

    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        self.guard = Some(self.client.mutex(lock).lock().await?);
        Ok(())
    }

    pub async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().context("nothing is held")?;
        Ok(guard.release().await?)
    }

    /// Drops the guard, which releases without waiting; see [`super::Driver::post_release`].
    pub fn post_release(&mut self) -> Result<()> {
        drop(self.guard.take().context("nothing is held")?);
        Ok(())
    }

    pub async fn close(self) -> Result<()> {
        Ok(self.client.close().await?)
    }
}
