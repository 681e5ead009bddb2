//! State that all connections of a node share: their context, counts, and the bounds of logs and passwords.

use std::fmt;
use std::time::Duration;

use rowlock_env::rate::{HandshakePace, LogLimiter};
use rowlock_env::time;

use super::context::ClientContext;
use super::end_reason::EndReason;
use super::identity::Neighbours;
use crate::limits;
use crate::node::delivery::registry::ClientConnection;
use crate::node::delivery::stats::ListenerStats;
use crate::node::guesses::{PasswordThrottle, Verdict};

/// Identity that a password claims.
pub(super) enum PasswordUser<'a> {
    Superuser,
    /// User name; empty if the password is wrong.
    Sasl(&'a str),
}

impl fmt::Display for PasswordUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PasswordUser::Superuser => f.write_str("super"),
            PasswordUser::Sasl(user) => write!(f, "sasl:{user}"),
        }
    }
}

/// State that all connections share.
pub(super) struct Shared {
    pub(super) context: ClientContext,
    pub(super) stats: ListenerStats,
    pub(super) client_port: u16,
    pub(super) secure_port: u16,
    pub(super) pace: HandshakePace,
    pub(super) started_ms: i64,
    pub(super) handshake_max: Duration,
    pub(super) neighbours: Neighbours,
    pub(super) connections_log: LogLimiter,
    password_throttle: PasswordThrottle,
    passwords_log: LogLimiter,
}

impl Shared {
    pub(super) fn new(context: ClientContext) -> Self {
        Shared {
            context,
            stats: ListenerStats::default(),
            client_port: 0,
            secure_port: 0,
            pace: HandshakePace::new(limits::TLS_HANDSHAKES_PER_SECOND, limits::HOSTS_COUNTED_MAX),
            started_ms: time::wall_ms(),
            handshake_max: limits::HANDSHAKE_MAX,
            neighbours: Neighbours::default(),
            connections_log: LogLimiter::default(),
            password_throttle: PasswordThrottle::default(),
            passwords_log: LogLimiter::default(),
        }
    }

    /// Logs the end of a connection: at info, rate limited, if the client broke a rule; else at debug.
    pub(super) fn report(&self, peer: &ClientConnection, end: &EndReason) {
        let (addr, session) = (peer.addr, peer.stats.session());
        if end.is_overflow() {
            self.context.metrics.connections_overflowed_total.inc();
        }
        if end.is_fault_of_client()
            && let Some(suppressed) = self.connections_log.admit()
        {
            tracing::info!(peer = %addr, %session, reason = %end, suppressed, "client connection closed");
        } else {
            tracing::debug!(peer = %addr, %session, reason = %end, "client connection closed");
        }
    }

    /// Returns whether the attempt may be evaluated: false while its host has too many wrong passwords.
    /// Counts and logs a wrong password.
    pub(super) fn admits_password(
        &self,
        peer: &ClientConnection,
        user: &PasswordUser<'_>,
        is_right: bool,
    ) -> bool {
        let addr = peer.addr;
        let verdict = self.password_throttle.check(addr.ip(), &user.to_string(), is_right, time::now());
        if verdict == Verdict::Right {
            return true;
        }
        let metrics = &self.context.metrics;
        match user {
            PasswordUser::Superuser => metrics.super_passwords_wrong_total.inc(),
            PasswordUser::Sasl(_) => metrics.sasl_passwords_wrong_total.inc(),
        }
        if let Some(suppressed) = self.passwords_log.admit() {
            let of = if matches!(user, PasswordUser::Superuser) { "the superuser" } else { "a SASL user" };
            let often =
                if verdict == Verdict::TooMany { "too many wrong passwords" } else { "wrong password" };
            tracing::warn!(peer = %addr, session = %peer.stats.session(), suppressed, "{often} of {of}");
        }
        verdict == Verdict::Wrong
    }
}
