//! Where the cluster is, for the client commands: flag, environment, cluster.toml, or the default ports.

use std::path::PathBuf;
use std::time::Duration;

use rowlock_client::{Client, ClientConfig, ConnectError, Error};
use rowlock_coordinator::config::ClusterConfig;

use crate::exit::{CONFIG, DEADLOCK, Failure, LOST, REFUSED, UNAVAILABLE, USAGE};

/// The client addresses of the cluster.toml that the repository ships.
const DEFAULT_ENDPOINTS: &str = "127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183";

/// Options of every command that talks to a cluster.
#[derive(clap::Args)]
pub struct Cluster {
    /// Client addresses, host:port,host:port; without it those of cluster.toml, else 127.0.0.1:2181-2183
    #[arg(long, value_name = "LIST", env = "ROWLOCK_ENDPOINTS")]
    pub endpoints: Option<String>,
    /// The cluster's file
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    pub config: Option<PathBuf>,
    /// Session timeout, which the server may clamp [env: ROWLOCK_SESSION_TIMEOUT_MS=] [default: 10]
    #[arg(long, visible_alias = "ttl", value_name = "SEC", value_parser = seconds)]
    pub session_timeout: Option<Duration>,
    /// How long to try to reach the cluster [env: ROWLOCK_CONNECT_TIMEOUT_MS=] [default: 10]
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    pub connect_timeout: Option<Duration>,
}

/// Seconds with an optional fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "use seconds, e.g. 2.5".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|e| e.to_string())
}

impl Cluster {
    /// `host:port,host:port`
    pub fn endpoints(&self) -> Result<String, Failure> {
        if let Some(list) = &self.endpoints {
            return Ok(list.clone());
        }
        Ok(self.file()?.map_or_else(|| DEFAULT_ENDPOINTS.to_owned(), |config| config.endpoints()))
    }

    /// Opens a session. Credentials, chroot and label come from the environment (`ClientConfig::from_env`).
    pub async fn connect(&self) -> Result<Client, Failure> {
        open(self.client()?).await
    }

    /// What a session is opened with.
    pub fn client(&self) -> Result<ClientConfig, Failure> {
        let mut config =
            Client::from_env().map_err(|e| Failure::new(USAGE, e))?.endpoints(&self.endpoints()?);
        if let Some(timeout) = self.session_timeout {
            config = config.session_timeout(timeout);
        }
        if let Some(timeout) = self.connect_timeout {
            config = config.connect_timeout(timeout);
        }
        Ok(config)
    }

    /// The cluster's file, if there is one: a file that was asked for must exist, `cluster.toml` here may.
    pub fn file(&self) -> Result<Option<ClusterConfig>, Failure> {
        let path = match &self.config {
            Some(path) => path.clone(),
            None => PathBuf::from("cluster.toml"),
        };
        if self.config.is_none() && !path.exists() {
            return Ok(None);
        }
        ClusterConfig::load(&path).map(Some).map_err(|e| Failure::new(CONFIG, e))
    }
}

/// Opens a session.
pub async fn open(config: ClientConfig) -> Result<Client, Failure> {
    config.connect().await.map_err(|e| match e {
        ConnectError::Config(_) => Failure::new(USAGE, e),
        ConnectError::AuthFailed => Failure::new(REFUSED, format!("{e}; check ROWLOCK_AUTH")),
        _ => Failure::new(UNAVAILABLE, format!("{e}; start the cluster or name it with --endpoints")),
    })
}

/// The failure of a call about `what` (a path, the name of a lock).
pub fn failed(what: &str, e: &Error) -> Failure {
    let code = match e {
        Error::InvalidName(_) | Error::Unsupported(_) => USAGE,
        Error::Deadlock { .. } => DEADLOCK,
        e if e.may_have_happened() || e.is_session_end() => LOST,
        _ => REFUSED,
    };
    let text = match (e.code(), e) {
        (Some(code), _) => format!("{what}: {code}"),
        (None, Error::Deadlock { .. }) => format!("{what}: {e}; give back what is held and start over"),
        (None, _) => format!("{what}: {e}"),
    };
    Failure::new(code, text)
}
