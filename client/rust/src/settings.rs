//! Settings of a client that the session and the recipes read: below [`crate::ClientBuilder`], which collects
//! the settings.

use std::fmt;

use bytes::Bytes;

/// Identity for `add_auth`: a scheme (`digest`) and the scheme's secret (`user:password`).
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Name of the authentication scheme.
    pub scheme: String,
    /// The secret. Never printed.
    pub secret: Bytes,
}

impl Credential {
    pub(crate) fn bytes(&self) -> usize {
        self.scheme.len() + self.secret.len()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// Naming scheme of our queue znodes: programs that use other clients on the same locks must recognize the
/// names. A Rowlock server orders a queue by creation and ignores the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueNames {
    /// `_c_<id>-lock-0000000007`, `_c_<id>-__READ__0000000007`, `_c_<id>-__WRIT__0000000007`. (kazoo's `Lock`
    /// sees them with `extra_lock_patterns`.)
    #[default]
    Curator,
    /// kazoo's names: `<id>__lock__0000000007`, `<id>__rlock__0000000007`.
    Kazoo,
}

/// Policy for moving the connection to the leader, from a server that names the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreferLeader {
    /// Stays with the server that accepted the connection.
    Never,
    /// Moves while the session waits in a queue, holds nothing and has no call under way: the grant then
    /// takes a shorter path. The session is [`SessionState::Suspended`](crate::SessionState::Suspended) for a
    /// moment, once. Never moves with a disconnect grace, since the moment without a connection would start
    /// the grace.
    WhenWaiting,
    /// Moves like [`PreferLeader::WhenWaiting`], and also when a busy session's server reports that the
    /// leader has room; servers invite a bounded number of sessions per second. The session moves while
    /// holding nothing with no call under way, and follows a change of leader in the same way.
    #[default]
    ByLoad,
    /// Moves when the session is opened. After a later attachment the session moves with the next heartbeat,
    /// hence a mass reconnect serves each session first; with a disconnect grace the session moves at once.
    Always,
}
