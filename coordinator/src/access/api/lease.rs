//! REST leases: sessions of clients without a connection.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::limits::API_ANSWER_MAX;
use rowlock_env::{decides, rng, time};
use rowlock_proto::{ErrorCode, Request, SessionId};
use rowlock_state::command::{Attachment, Command};
use rowlock_state::outcome::Attached;
use rowlock_state::{Proof, acl};

use super::call::Call;
use super::request_id::hex;
use super::{Api, Caller, Refusal};
use crate::node::end_session::{EndSession, NotExpired};
use crate::node::zk::Opener;

/// Secret of a lease: session id and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    pub session: SessionId,
    key: Key,
}

#[derive(Clone, PartialEq, Eq)]
enum Key {
    /// Shown by the client.
    Password([u8; 16]),
    /// Held by the node for its own use; a client cannot present a proof.
    Proof(Proof),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub session: SessionId,
    pub(super) attachment: Attachment,
    /// Longest time between two keepalives, in milliseconds; after this time the lease expires.
    pub ttl_ms: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Secret for the client.
    pub secret: Secret,
    /// Granted TTL in milliseconds; may differ from the requested TTL.
    pub ttl_ms: u32,
}

impl Key {
    fn proof(&self) -> Proof {
        match self {
            Key::Password(password) => Proof::of(password),
            Key::Proof(proof) => *proof,
        }
    }
}

impl Secret {
    /// Returns the secret of a session without a password. Only the node acts for this session.
    pub(super) fn of_node(session: SessionId, proof: Proof) -> Self {
        Secret { session, key: Key::Proof(proof) }
    }

    pub(super) fn opens(&self, proof: &Proof) -> bool {
        proof.is_that_of(&self.proof())
    }

    pub(super) fn proof(&self) -> Proof {
        self.key.proof()
    }

    /// Encodes the secret for the client. Must not appear in logs.
    pub fn reveal(&self) -> String {
        let Key::Password(password) = &self.key else {
            unreachable!("Invariant: no client gets what a node acts by")
        };
        format!("{:016x}{}", self.session.0, hex(password))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.session)
    }
}

impl FromStr for Secret {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::Bad("secret is not what POST /v1/leases gave".to_owned());
        if text.len() != 48 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let (session, password) = text.split_at(16);
        let session = i64::from_str_radix(session, 16).map_err(|_| wrong())?;
        let password = u128::from_str_radix(password, 16).map_err(|_| wrong())?;
        Ok(Secret { session: SessionId(session), key: Key::Password(password.to_be_bytes()) })
    }
}

impl Api {
    /// Opens a lease. `ttl_ms` is clamped to the bounds of `[session]`.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: a lease may exist without an owner; an unused lease expires.
    /// # Cancel safety
    /// Same as after `Unknown`.
    pub async fn open(&self, caller: &Caller, ttl_ms: u32) -> Result<Opened, Refusal> {
        let is_super = acl::is_super(&caller.identities);
        self.open_as(caller, ttl_ms, if is_super { Opener::Operator } else { Opener::Client }).await
    }

    pub(super) async fn open_as(
        &self,
        caller: &Caller,
        ttl_ms: u32,
        opener: Opener,
    ) -> Result<Opened, Refusal> {
        let mut password = [0; 16];
        rng::fill(&mut password);
        self.open_by(caller, ttl_ms, (opener, Key::Password(password))).await
    }

    /// Opens a session without a password: no client can resume this session.
    pub(super) async fn open_for_node(
        &self,
        caller: &Caller,
        ttl_ms: u32,
        (opener, proof): (Opener, Proof),
    ) -> Result<Secret, Refusal> {
        self.open_by(caller, ttl_ms, (opener, Key::Proof(proof))).await.map(|opened| opened.secret)
    }

    async fn open_by(
        &self,
        caller: &Caller,
        ttl_ms: u32,
        (opener, key): (Opener, Key),
    ) -> Result<Opened, Refusal> {
        self.check_serving()?;
        let context = &self.context;
        let left = u64::try_from(context.metrics.restore_grace_seconds.get()).unwrap_or(0);
        let restored = || Refusal::Restored(left.max(1));
        if decides!("grace-refuses-leases", context.replica.state.read().grace_ms() > 0) {
            context.metrics.sessions_refused_total.inc();
            return Err(restored());
        }
        context.new_sessions.make_room(context, caller.address.ip(), opener).map_err(Refusal::Full)?;
        let timeout = context.config.session.clamp(Duration::from_millis(ttl_ms.into()));
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let command = Command::OpenSession { proof: key.proof(), timeout_ms };
        let mut call = Call::new(self, caller);
        let applied = call.submit(SessionId::NONE, Attachment::default(), command).await?;
        match (applied.result, applied.attached) {
            (Ok(_), Some(Attached { session, timeout_ms, .. })) => {
                assert!(session.0 > 0, "a session has a positive number, which its secret can tell");
                Ok(Opened { secret: Secret { session, key }, ttl_ms: timeout_ms })
            }
            (Err(ErrorCode::ThrottledOp), _) => Err(restored()),
            other => unreachable!("opening a session gives a session or refuses it: {other:?}"),
        }
    }

    /// Sends a keepalive to the leader and waits for the acknowledgment. Returns the validity of the lease in
    /// milliseconds, counted from the time of the client's request: the leader restarted the timer later.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: no leader acknowledged the keepalive; the client counts from its last success.
    pub async fn keep_alive(&self, caller: &Caller, secret: &Secret) -> Result<u32, Refusal> {
        self.check_serving()?;
        let mut call = Call::new(self, caller);
        let lease = call.find(secret).await?;
        call.touch(lease.session);
        call.be_noted(lease.session).await?;
        Ok(lease.ttl_ms)
    }

    /// Closes a lease and releases all its locks. Repeating the request is no error.
    pub async fn close(&self, caller: &Caller, secret: &Secret) -> Result<(), Refusal> {
        self.check_serving()?;
        let mut call = Call::new(self, caller);
        match call.act(secret, Command::Client(Request::CloseSession)).await {
            Ok(_) | Err(Refusal::LeaseOver) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Closes a lease without queue positions. If the close fails, the lease expires.
    pub(super) async fn close_unused(&self, caller: &Caller, secret: &Secret) {
        if let Err(error) = self.close(caller, secret).await {
            tracing::debug!(?secret, %error, "cannot close an unused lease; the lease expires");
        }
    }
}

impl Api {
    /// Expires a session or lease of any client. Returns false if there was no such session; repeating the
    /// request is no error. The caller checks the permission.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]: repeat the request.
    /// # Cancel safety
    /// Not cancel safe: once polled, the session may end even when the future is dropped.
    pub async fn end_session(&self, caller: &Caller, session: SessionId) -> Result<bool, Refusal> {
        self.check_serving()?;
        // After this call the local state has each session opened before the request.
        Call::new(self, caller).sync().await?;
        let (replica, proposer) = (self.context.replica.clone(), self.context.proposer.clone());
        let deadline = time::now() + API_ANSWER_MAX;
        match (EndSession { replica, proposer }).run(session, caller.identities.clone(), deadline).await {
            Ok(()) => Ok(true),
            Err(NotExpired::NoSession) => Ok(false),
            Err(NotExpired::Unknown) => Err(Refusal::Unknown),
        }
    }
}
