//! Encryption of a command's connections: flags, and the equivalent variables.

use std::sync::Arc;

use rowlock_env::net::Stream;
use rowlock_tls::{ClientKeeper, ClientTls, Pem};

use super::PLAINTEXT_PASSWORDS;
use crate::exit::{CONFIG, Failure, USAGE};

const CA: &str = "ROWLOCK_TLS_CA";
const CERT: &str = "ROWLOCK_TLS_CERT";
const KEY: &str = "ROWLOCK_TLS_KEY";
const SERVER_NAME: &str = "ROWLOCK_TLS_SERVER_NAME";
const HEADING: &str = "Encryption";

/// Encryption options of every command that connects to a cluster.
#[derive(clap::Args)]
pub struct TlsOptions {
    /// Use TLS and trust this CA bundle (PEM) [env: ROWLOCK_TLS_CA=]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    tls_ca: Option<String>,
    /// Client certificate (PEM) [env: ROWLOCK_TLS_CERT=]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    tls_cert: Option<String>,
    /// Private key for --tls-cert (PEM, mode 0600) [env: ROWLOCK_TLS_KEY=]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    tls_key: Option<String>,
    /// Host name to expect in server certificates, instead of the endpoints' hosts [env:
    /// ROWLOCK_TLS_SERVER_NAME=]
    #[arg(long, help_heading = HEADING, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Allow passwords and tokens over unencrypted connections to other machines [env:
    /// ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS=]
    #[arg(long, help_heading = HEADING)]
    allow_plaintext_passwords: bool,
}

#[derive(Clone)]
pub struct Secure {
    keeper: Arc<ClientKeeper>,
    server_name: Option<String>,
}

impl Secure {
    /// Loads the TLS files. `server_name` replaces the hosts of all servers' addresses.
    pub fn new(tls: ClientTls, server_name: Option<String>) -> Result<Secure, Failure> {
        let keeper = ClientKeeper::open(tls).map_err(|e| Failure::new(CONFIG, e))?;
        Ok(Secure { keeper, server_name })
    }

    /// Encrypts a connection to the server at `addr`, and requires a certificate for that host. The caller
    /// sets a deadline.
    pub async fn connect(&self, stream: Stream, addr: &str) -> std::io::Result<Stream> {
        let host = self.server_name.as_deref().unwrap_or(host_of(addr));
        self.keeper.connector().connect(stream, host).await.map_err(std::io::Error::other)
    }
}

/// Returns the host of `host:port`; an IPv6 address without brackets.
fn host_of(addr: &str) -> &str {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

impl TlsOptions {
    /// Returns the value of a variable. A flag takes precedence over the environment.
    pub fn var(&self, name: &str) -> Option<String> {
        let flag = match name {
            CA => self.tls_ca.clone(),
            CERT => self.tls_cert.clone(),
            KEY => self.tls_key.clone(),
            SERVER_NAME => self.tls_server_name.clone(),
            PLAINTEXT_PASSWORDS => self.allow_plaintext_passwords.then(|| "true".to_owned()),
            _ => None,
        };
        flag.or_else(|| std::env::var(name).ok())
    }

    /// Returns these flags for a child process with the same environment.
    pub fn arguments(&self) -> Vec<String> {
        let flags = [
            ("--tls-ca", &self.tls_ca),
            ("--tls-cert", &self.tls_cert),
            ("--tls-key", &self.tls_key),
            ("--tls-server-name", &self.tls_server_name),
        ];
        let flags = flags
            .into_iter()
            .filter_map(|(flag, value)| value.as_ref().map(|value| format!("{flag}={value}")));
        flags
            .chain(self.allow_plaintext_passwords.then(|| "--allow-plaintext-passwords".to_owned()))
            .collect()
    }

    pub fn is_enabled(&self) -> bool {
        self.file(CA).is_some()
    }

    /// Returns true if secrets may go over plain connections to other machines.
    pub fn allows_plaintext_passwords(&self) -> bool {
        self.var(PLAINTEXT_PASSWORDS).is_some_and(|value| value == "true")
    }

    /// Returns TLS for connections outside of a session, or `None` if connections are plain.
    pub fn secure(&self) -> Result<Option<Secure>, Failure> {
        let Some(ca) = self.file(CA) else { return Ok(None) };
        let identity = match (self.file(CERT), self.file(KEY)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(Failure::new(USAGE, format!("{CERT} and {KEY} need each other"))),
        };
        let server_name = self.var(SERVER_NAME).filter(|name| !name.is_empty());
        Secure::new(ClientTls { ca, identity }, server_name).map(Some)
    }

    fn file(&self, name: &str) -> Option<Pem> {
        self.var(name).filter(|path| !path.is_empty()).map(|path| Pem::File(path.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_process_gets_the_same_flags() {
        let options = TlsOptions {
            tls_ca: Some("a b.pem".to_owned()),
            tls_cert: None,
            tls_key: None,
            tls_server_name: Some("db".to_owned()),
            allow_plaintext_passwords: true,
        };
        let wanted = ["--tls-ca=a b.pem", "--tls-server-name=db", "--allow-plaintext-passwords"];
        assert_eq!(options.arguments(), wanted);
        assert_eq!(options.var(CA).as_deref(), Some("a b.pem"));
        assert_eq!(options.var(PLAINTEXT_PASSWORDS).as_deref(), Some("true"));
        assert_eq!(["h.example:1", "[::1]:2"].map(host_of), ["h.example", "::1"]);
    }
}
