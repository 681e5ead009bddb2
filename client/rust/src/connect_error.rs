//! [`ConnectError`] and the errors behind a failed connect.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use rowlock_proto::path::PathError;

use crate::duration::ParseDurationError;

/// Advice, in the same words for flags, variables and the builder.
pub(crate) const PLAINTEXT_PASSWORD: &str = "a password is not sent to another machine over a plain connection; \
    use TLS, or allow it (ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS=true, or allow_plaintext_passwords of the builder)";

pub(crate) const OTHER_CLUSTER: &str = "the servers belong to another cluster than the one that was asked for, or \
    than before (it was restored from a backup, or the addresses are another cluster's now)";

/// Failure to open a session by [`crate::ClientBuilder::connect`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is invalid.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// No server opened a session in time.
    #[error("no server of {endpoints} opened a session in time ({})", all(endpoints, failures))]
    Unreachable {
        /// Servers that the client tried.
        endpoints: String,
        /// Failure of the last attempt at each server.
        failures: Vec<AttemptError>,
        /// Failure of the very last attempt. `None`: no attempt had failed yet.
        source: Option<AttemptError>,
    },
    /// A server refused a credential.
    #[error("authentication failed")]
    AuthFailed,
    /// The cluster refuses sessions that have presented no credential.
    #[error("the cluster requires authentication, and no credential was presented")]
    AuthRequired,
    /// The client reached no server over a connection fit for a password, only plain connections to other
    /// machines. Nothing was sent.
    #[error("{}", PLAINTEXT_PASSWORD)]
    PlaintextPassword,
    /// The servers belong to another cluster than [`crate::ClientBuilder::cluster_id`] says.
    #[error("{}", OTHER_CLUSTER)]
    OtherCluster,
    /// The session of the ticket ([`crate::ClientBuilder::take_over`]) has ended.
    #[error("the session has ended")]
    SessionExpired,
    /// The system gave no thread to a blocking client.
    #[error("no thread for the client: {0}")]
    Thread(#[source] Arc<io::Error>),
}

/// Groups the failures by cause, each with the affected servers.
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

/// Mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No servers were named.
    #[error("no endpoints (ROWLOCK_ENDPOINTS=host:port,...)")]
    NoEndpoints,
    /// An endpoint is not `host:port`.
    #[error("endpoint {endpoint:?}: {what}")]
    Endpoint {
        /// The endpoint as the configuration has it.
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
    /// A credential exceeds the size of a request.
    #[error("a credential longer than {max} bytes")]
    CredentialTooLong {
        /// Largest sum of the bytes of a scheme and a secret.
        max: usize,
    },
    /// The chroot or the lock base is not a path.
    #[error("{what} {path:?} is not a path")]
    NotAPath {
        /// `chroot` or `lock base`.
        what: &'static str,
        /// The path as the configuration has it.
        path: String,
        /// Description of the mistake.
        source: PathError,
    },
    /// A variable of the environment is not a duration.
    #[error("{name}={value}: {source}")]
    Duration {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// Description of the accepted forms.
        source: ParseDurationError,
    },
    /// A variable of the environment has a value outside the allowed set.
    #[error("{name}={value}: {allowed}")]
    Choice {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// List of the allowed values.
        allowed: &'static str,
    },
    /// A variable of the environment needs another variable.
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
        /// The unusable file, and the remedy.
        what: String,
    },
    /// `ROWLOCK_AUTH` is not a scheme, a colon and a secret.
    #[error("ROWLOCK_AUTH: want scheme:secret")]
    Auth,
}

/// Failure of an attempt to reach a server, or end of a connection. The error's source is the cause, for
/// instance an [`io::Error`].
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

    /// Cause without the server, which some network errors name themselves.
    fn cause(&self) -> String {
        let cause = self.cause.to_string();
        match cause.strip_prefix(&self.endpoint).and_then(|rest| rest.strip_prefix(": ")) {
            Some(rest) => rest.to_owned(),
            None => cause,
        }
    }

    /// The server: the configured endpoint if the server could not be reached, otherwise the server's
    /// address.
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
