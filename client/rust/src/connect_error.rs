//! Why a client cannot be connected: [`ConnectError`], and what it has as its source.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::num::ParseIntError;
use std::sync::Arc;

use rowlock_proto::path::PathError;

/// Advice, in the same words for flags, variables and the builder.
pub(crate) const PLAINTEXT_PASSWORD: &str = "a password is not sent to another machine over a plain connection; \
    use TLS, or allow it (ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS=true, or allow_plaintext_passwords of the builder)";

pub(crate) const OTHER_CLUSTER: &str = "the servers belong to another cluster than the one that was asked for, or \
    than before (it was restored from a backup, or the addresses are another cluster's now)";

/// Why no session could be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration makes no sense.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// No server opened a session in time.
    #[error("no server of {endpoints} opened a session in time ({})", all(endpoints, failures))]
    Unreachable {
        /// The servers that were tried.
        endpoints: String,
        /// How the last attempt at each of them failed.
        failures: Vec<AttemptError>,
        /// How the very last attempt failed. `None`: none had failed yet.
        source: Option<AttemptError>,
    },
    /// A credential was refused.
    #[error("authentication failed")]
    AuthFailed,
    /// The cluster does nothing for a session that has presented no credential.
    #[error("the cluster requires authentication, and no credential was presented")]
    AuthRequired,
    /// No server was reached to which a password may be sent: the connections would be plain ones to other
    /// machines. Nothing was sent.
    #[error("{}", PLAINTEXT_PASSWORD)]
    PlaintextPassword,
    /// The servers belong to another cluster than [`crate::ClientBuilder::cluster_id`] says.
    #[error("{}", OTHER_CLUSTER)]
    OtherCluster,
    /// The system gave no thread to a blocking client.
    #[error("no thread for the client: {0}")]
    Thread(#[source] Arc<io::Error>),
}

/// Each cause once, with the servers that have it.
fn all(endpoints: &str, failures: &[AttemptError]) -> String {
    let servers = endpoints.split(',').count();
    let mut causes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for failure in failures {
        causes.entry(failure.cause()).or_default().push(&failure.endpoint);
    }
    let mut said: Vec<String> = Vec::new();
    for (cause, mut of) in causes {
        of.sort_unstable();
        said.push(match of.len() == servers && servers > 1 {
            true => format!("each: {cause}"),
            false => format!("{}: {cause}", of.join(", ")),
        });
    }
    match servers {
        _ if failures.is_empty() => said.push("none has answered".to_owned()),
        servers if servers > failures.len() => said.push("no answer from the others".to_owned()),
        _ => {}
    }
    said.join("; ")
}

/// Why a configuration makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No servers were named.
    #[error("no endpoints (ROWLOCK_ENDPOINTS=host:port,...)")]
    NoEndpoints,
    /// An endpoint is not `host:port`.
    #[error("endpoint {endpoint:?}: {what}")]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// Description of the mistake, and the right form.
        what: &'static str,
    },
    /// The session timeout is below 30 ms.
    #[error("session timeout below 30 ms")]
    SessionTimeoutTooShort,
    /// The session timeout has more milliseconds than the protocol can say.
    #[error("session timeout too long")]
    SessionTimeoutTooLong,
    /// A credential does not fit into its request.
    #[error("a credential longer than {max} bytes")]
    CredentialTooLong {
        /// The most that a scheme and its secret may have together.
        max: usize,
    },
    /// The chroot or the lock base is not a path.
    #[error("{what} {path:?} is not a path")]
    NotAPath {
        /// `chroot` or `lock base`.
        what: &'static str,
        /// As it was given.
        path: String,
        /// Description of the mistake.
        source: PathError,
    },
    /// A variable of the environment is not a number of milliseconds.
    #[error("{name}={value}: not milliseconds")]
    Milliseconds {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// Description of the mistake.
        source: ParseIntError,
    },
    /// A variable of the environment is none of what it may be.
    #[error("{name}={value}: {allowed}")]
    Choice {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A variable of the environment is of no use without another one.
    #[error("{name} needs {other}")]
    Needs {
        /// Name of the variable.
        name: &'static str,
        /// Name of the missing variable.
        other: &'static str,
    },
    /// The certificates or the key for TLS cannot be used.
    #[error("TLS: {what}")]
    Tls {
        /// Which, and what to do.
        what: String,
    },
    /// `ROWLOCK_AUTH` is not a scheme, a colon and a secret.
    #[error("ROWLOCK_AUTH: want scheme:secret")]
    Auth,
}

/// How one attempt to reach a server failed, or how a connection ended. Its source is the cause, for instance
/// an [`io::Error`].
#[derive(Clone, Debug)]
pub struct AttemptError {
    endpoint: String,
    cause: Arc<dyn std::error::Error + Send + Sync>,
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint, self.cause())
    }
}

impl std::error::Error for AttemptError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.cause)
    }
}

impl AttemptError {
    pub(crate) fn new(endpoint: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        AttemptError { endpoint: endpoint.to_owned(), cause: Arc::new(cause) }
    }

    /// Without the server, which some errors of the network name themselves.
    fn cause(&self) -> String {
        let cause = self.cause.to_string();
        match cause.strip_prefix(&self.endpoint).and_then(|rest| rest.strip_prefix(": ")) {
            Some(rest) => rest.to_owned(),
            None => cause,
        }
    }

    /// The server: as it was configured if it could not be reached, its address otherwise.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once_with_all_servers_that_have_it() {
        let refused = |server: &str| AttemptError::new(server, io::Error::other("refused"));
        let silent = AttemptError::new("b:1", io::Error::other("b:1: hangs up"));
        assert_eq!(all("a:1,b:1", &[refused("b:1"), refused("a:1")]), "each: refused");
        assert_eq!(all("a:1", &[refused("a:1")]), "a:1: refused");
        let two = [refused("c:1"), silent, refused("a:1")];
        assert_eq!(all("a:1,b:1,c:1", &two), "b:1: hangs up; a:1, c:1: refused");
        assert_eq!(all("a:1,b:1", &[refused("a:1")]), "a:1: refused; no answer from the others");
        assert_eq!(all("a:1,b:1", &[]), "none has answered");
    }
}
