//! Configuration from `ROWLOCK_...` variables of the environment.

use std::time::Duration;

use crate::builder::ClientBuilder;
use crate::connect_error::ConfigError;
use crate::duration::parse_duration;
use crate::settings::{PreferLeader, QueueNames};
#[cfg(feature = "tls")]
use crate::tls::Tls;

const CA: &str = "ROWLOCK_TLS_CA";
const CERT: &str = "ROWLOCK_TLS_CERT";
const KEY: &str = "ROWLOCK_TLS_KEY";
const SERVER_NAME: &str = "ROWLOCK_TLS_SERVER_NAME";

impl ClientBuilder {
    /// Reads `ROWLOCK_ENDPOINTS`, `ROWLOCK_SESSION_TIMEOUT`, `ROWLOCK_CONNECT_TIMEOUT` and
    /// `ROWLOCK_DISCONNECT_GRACE` (see [`parse_duration`]), `ROWLOCK_LABEL`, `ROWLOCK_AUTH`
    /// (`scheme:secret`), `ROWLOCK_CHROOT`, `ROWLOCK_LOCK_BASE`, `ROWLOCK_QUEUE_NAMES` (`curator` or
    /// `kazoo`), `ROWLOCK_PREFER_LEADER` (`never`, `when-waiting`, `by-load` or `always`),
    /// `ROWLOCK_CLUSTER_ID` and `ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS` (`true` or `false`). `ROWLOCK_TLS_CA` (a
    /// file) turns TLS on: `ROWLOCK_TLS_CERT` and `ROWLOCK_TLS_KEY` are the client's certificate and key,
    /// `ROWLOCK_TLS_SERVER_NAME` is the name of all servers. An unset variable, or an empty variable of TLS,
    /// keeps the default.
    ///
    /// # Errors
    /// [`ConfigError`]: a variable has an invalid value or lacks a required companion, or the variables ask
    /// for TLS without the feature `tls`.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Works like [`ClientBuilder::from_env`], with `var` in place of the environment.
    ///
    /// # Errors
    /// The errors of [`ClientBuilder::from_env`].
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let duration = |name: &'static str| -> Result<Option<Duration>, ConfigError> {
            let parse = |value: String| {
                parse_duration(&value).map_err(|source| ConfigError::Duration { name, value, source })
            };
            var(name).map(parse).transpose()
        };
        let mut it = ClientBuilder::default();
        if let Some(endpoints) = var("ROWLOCK_ENDPOINTS") {
            it = it.endpoints(&endpoints);
        }
        if let Some(timeout) = duration("ROWLOCK_SESSION_TIMEOUT")? {
            it = it.session_timeout(timeout);
        }
        if let Some(timeout) = duration("ROWLOCK_CONNECT_TIMEOUT")? {
            it = it.connect_timeout(timeout);
        }
        if let Some(label) = var("ROWLOCK_LABEL") {
            it = it.label(label);
        }
        if let Some(auth) = var("ROWLOCK_AUTH") {
            let (scheme, secret) = auth.split_once(':').ok_or(ConfigError::Auth)?;
            it = it.auth(scheme, secret.as_bytes().to_vec());
        }
        if let Some(chroot) = var("ROWLOCK_CHROOT") {
            it = it.chroot(chroot);
        }
        if let Some(base) = var("ROWLOCK_LOCK_BASE") {
            it = it.lock_base(base);
        }
        if let Some(grace) = duration("ROWLOCK_DISCONNECT_GRACE")? {
            it = it.disconnect_grace(grace);
        }
        it = it.choices_from(&var)?;
        it.tls_from(&var)
    }

    /// Reads the variables with a fixed set of values.
    fn choices_from(self, var: &impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut it = self;
        let other =
            |name, value: &str, allowed| Err(ConfigError::Choice { name, value: value.to_owned(), allowed });
        match var("ROWLOCK_QUEUE_NAMES").as_deref() {
            None => {}
            Some("curator") => it = it.queue_names(QueueNames::Curator),
            Some("kazoo") => it = it.queue_names(QueueNames::Kazoo),
            Some(value) => return other("ROWLOCK_QUEUE_NAMES", value, "curator or kazoo"),
        }
        match var("ROWLOCK_PREFER_LEADER").as_deref() {
            None => {}
            Some("never") => it = it.prefer_leader(PreferLeader::Never),
            Some("when-waiting") => it = it.prefer_leader(PreferLeader::WhenWaiting),
            Some("by-load") => it = it.prefer_leader(PreferLeader::ByLoad),
            Some("always") => it = it.prefer_leader(PreferLeader::Always),
            Some(value) => {
                let allowed = "never, when-waiting, by-load or always";
                return other("ROWLOCK_PREFER_LEADER", value, allowed);
            }
        }
        if let Some(id) = var("ROWLOCK_CLUSTER_ID").filter(|id| !id.is_empty()) {
            match id.parse() {
                Ok(id) => it = it.cluster_id(id),
                Err(_) => {
                    return other("ROWLOCK_CLUSTER_ID", &id, "what `rowlock status` calls the cluster id");
                }
            }
        }
        match var("ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS").as_deref() {
            None => {}
            Some("true" | "1") => it = it.allow_plaintext_passwords(true),
            Some("false" | "0" | "") => it = it.allow_plaintext_passwords(false),
            Some(value) => return other("ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS", value, "true or false"),
        }
        Ok(it)
    }

    #[cfg(feature = "tls")]
    fn tls_from(self, var: &impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let file = |name| var(name).filter(|value| !value.is_empty());
        let needs = |name, other| Err(ConfigError::Needs { name, other });
        let Some(ca) = file(CA) else {
            return match [CERT, KEY, SERVER_NAME].into_iter().find(|name| file(name).is_some()) {
                Some(name) => needs(name, CA),
                None => Ok(self),
            };
        };
        let pem = |path: String| rowlock_tls::Pem::File(path.into());
        let mut tls = Tls::new(pem(ca));
        match (file(CERT), file(KEY)) {
            (Some(cert), Some(key)) => tls = tls.identity(pem(cert), pem(key)),
            (None, None) => {}
            (Some(_), None) => return needs(CERT, KEY),
            (None, Some(_)) => return needs(KEY, CERT),
        }
        if let Some(name) = file(SERVER_NAME) {
            tls = tls.server_name(name);
        }
        Ok(self.tls(tls))
    }

    /// A request for TLS must never end in a plain connection.
    #[cfg(not(feature = "tls"))]
    fn tls_from(self, var: &impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let said = |name: &&str| var(name).is_some_and(|value| !value.is_empty());
        match [CA, CERT, KEY, SERVER_NAME].into_iter().find(said) {
            None => Ok(self),
            Some(name) => Err(ConfigError::Tls {
                what: format!("{name} is set, and this client was built without TLS"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::settings::Credential;

    #[test]
    fn every_option_has_a_variable() {
        let it = ClientBuilder::from_vars(|name| {
            Some(
                match name {
                    "ROWLOCK_ENDPOINTS" => "h:1",
                    "ROWLOCK_SESSION_TIMEOUT" => "4",
                    "ROWLOCK_CONNECT_TIMEOUT" => "500ms",
                    "ROWLOCK_LABEL" => "worker-7",
                    "ROWLOCK_AUTH" => "digest:u:p",
                    "ROWLOCK_CHROOT" => "/app",
                    "ROWLOCK_LOCK_BASE" => "/l",
                    "ROWLOCK_DISCONNECT_GRACE" => "0.7s",
                    "ROWLOCK_QUEUE_NAMES" => "kazoo",
                    "ROWLOCK_PREFER_LEADER" => "always",
                    "ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS" => "true",
                    "ROWLOCK_CLUSTER_ID" => "c1",
                    "ROWLOCK_TLS_CA" if cfg!(feature = "tls") => "ca.pem",
                    "ROWLOCK_TLS_CERT" if cfg!(feature = "tls") => "a.pem",
                    "ROWLOCK_TLS_KEY" if cfg!(feature = "tls") => "a.key",
                    "ROWLOCK_TLS_SERVER_NAME" if cfg!(feature = "tls") => "a.example",
                    absent if absent.starts_with("ROWLOCK_TLS_") => return None,
                    other => panic!("unknown variable {other}"),
                }
                .to_owned(),
            )
        })
        .unwrap();
        assert_eq!(it.session_timeout, Duration::from_secs(4));
        assert_eq!(it.connect_timeout, Duration::from_millis(500));
        assert_eq!(it.auth, [Credential { scheme: "digest".into(), secret: Bytes::from_static(b"u:p") }]);
        assert_eq!(
            (it.label.as_str(), it.chroot.as_str(), it.lock_base.as_str()),
            ("worker-7", "/app", "/l")
        );
        assert_eq!(it.prefer_leader, PreferLeader::Always);
        assert_eq!((it.disconnect_grace, it.queue_names), (Duration::from_millis(700), QueueNames::Kazoo));
        assert!(it.allow_plaintext_passwords && it.cluster_id == Some(rowlock_proto::ClusterId(0xc1)));
        #[cfg(feature = "tls")]
        {
            let [ca, cert, key] =
                ["ca.pem", "a.pem", "a.key"].map(|file| rowlock_tls::Pem::File(file.into()));
            assert_eq!(it.tls, Some(Tls::new(ca).identity(cert, key).server_name("a.example")));
        }
        assert_eq!(it.check(), Ok(()));
    }

    #[test]
    fn nonsense_is_refused_and_a_secret_in_it_is_not_repeated() {
        for (name, value) in [
            ("ROWLOCK_SESSION_TIMEOUT", "10 s"),
            ("ROWLOCK_AUTH", "hunter2"),
            ("ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS", "maybe"),
            ("ROWLOCK_CLUSTER_ID", "production"),
        ] {
            let wrong = ClientBuilder::from_vars(|asked| (asked == name).then(|| value.to_owned()));
            assert!(wrong.is_err() && !format!("{wrong:?}").contains("hunter2"), "{wrong:?}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn what_is_only_half_of_tls_is_refused() {
        for (said, needs) in [
            (&[CERT, KEY][..], "ROWLOCK_TLS_CERT needs ROWLOCK_TLS_CA"),
            (&[CA, CERT], "ROWLOCK_TLS_CERT needs ROWLOCK_TLS_KEY"),
            (&[CA, KEY], "ROWLOCK_TLS_KEY needs ROWLOCK_TLS_CERT"),
        ] {
            let wrong = ClientBuilder::from_vars(|name| said.contains(&name).then(|| "x".to_owned()));
            assert_eq!(wrong.unwrap_err().to_string(), needs);
        }
        let plain = ClientBuilder::from_vars(|name| (name == CA).then(String::new)).unwrap();
        assert_eq!(plain.tls, None);
    }
}
