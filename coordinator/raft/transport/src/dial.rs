//! Dialing another node: connect, shake hands, and not too often when it fails.

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::backoff::Backoff;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_types::limits::{PEER_HANDSHAKE_TIMEOUT, PEER_HELLO_MAX_BYTES};
use rowlock_types::memory::Tally;
use rowlock_types::pacing::{DIAL_PAUSES, DIAL_REFUSED_PAUSES};

use super::error::PeerError;
use super::frame::RequestId;
use super::handshake::{self, HandshakeRefusal, Hello, Identity, Lane};
use super::known_incarnations::{KnownIncarnations, NotRecorded};
use super::security::Security;
use super::wire::{self, Inbox, Outbox, WireError};

/// Where a node is; changed when the membership says so, used from the next attempt on.
pub(super) type Address = Arc<Mutex<Places>>;

/// Where a node is said to be, and where it was said to be before. `cluster.toml` and the membership may
/// differ while a node moves, and either may be the newer one: a node that must hear from the moved one
/// before it takes part cannot be told by the log. Trying both is safe, since the handshake asks who is
/// there.
#[derive(Debug, Default)]
pub(super) struct Places {
    now: String,
    before: Option<String>,
}

impl Places {
    /// The node is said to be there.
    pub(super) fn set(&mut self, address: &str) {
        if self.now != address {
            let before = std::mem::replace(&mut self.now, address.to_owned());
            self.before = (!before.is_empty()).then_some(before);
        }
    }

    /// Where to try after so many failures in a row, and whether it was said there last.
    fn after(&self, failures: u32) -> (String, bool) {
        match &self.before {
            Some(before) if failures % 2 == 1 => (before.clone(), false),
            _ => (self.now.clone(), true),
        }
    }
}

/// What all connections that this node dials have in common.
#[derive(Clone)]
pub(super) struct Ours {
    pub(super) us: Arc<Identity>,
    pub(super) known: Arc<dyn KnownIncarnations>,
    pub(super) security: Security,
    pub(super) tally: Tally,
}

/// Opens one lane's connections to one node.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) ours: Ours,
    pub(super) to: NodeId,
    /// That it is not there is no news.
    pub(super) is_guess: bool,
    pub(super) lane: Lane,
    pub(super) address: Address,
    /// Shared by all who dial this lane, so that they share the pauses.
    pub(super) backoff: Arc<Mutex<Backoff>>,
}

impl Dialer {
    /// A connection that has passed the handshake. Waits for the pause after earlier failures first. Cancel
    /// safe: the attempt is given up.
    pub(super) async fn dial(&self) -> Result<(Inbox, Outbox), PeerError> {
        let (not_before, failures) = {
            let backoff = self.backoff.lock();
            (backoff.not_before(), backoff.failures())
        };
        if let Some(not_before) = not_before {
            time::sleep_until(not_before).await;
        }
        let (address, is_newest) = self.address.lock().after(failures);
        let dialed = self.attempt(&address).await;
        let mut backoff = self.backoff.lock();
        match &dialed {
            Ok(_) => {
                // Each lane notices it: one of them says so.
                if backoff.succeeded() > 0 && self.lane == Lane::Heartbeat {
                    tracing::info!(node = %self.to, address, "node reachable again");
                }
            }
            Err(error) => {
                let refused = is_newest && matches!(error, PeerError::Refused { .. });
                backoff.failed(time::now(), if refused { &DIAL_REFUSED_PAUSES } else { &DIAL_PAUSES });
                let is_first = backoff.failures() == 1;
                if is_first && !self.is_guess && (self.lane == Lane::Heartbeat || refused) {
                    tracing::warn!(node = %self.to, address, %error, "node not reachable: still trying");
                }
            }
        }
        dialed
    }

    async fn attempt(&self, address: &str) -> Result<(Inbox, Outbox), PeerError> {
        let unreachable = |reason: String| PeerError::Unreachable { node: self.to, reason };
        let Ours { us, known, security, tally } = &self.ours;
        let stream = security.connect(address, us, self.to).await.map_err(unreachable)?;
        let (mut inbox, mut outbox) = wire::split(stream, PEER_HELLO_MAX_BYTES, tally);
        let hello = Hello {
            from: (**us).clone(),
            to: self.to,
            lane: self.lane,
            incarnation: known.incarnation(),
            cluster: known.cluster(),
            versions: known.versions(),
        };
        outbox.push(RequestId::NONE, &handshake::encode_hello(&hello));
        let answer = async {
            outbox.drain().await?;
            inbox.next().await
        };
        let verdict = match time::timeout(PEER_HANDSHAKE_TIMEOUT, answer).await {
            Err(_) => return Err(unreachable(format!("no handshake within {PEER_HANDSHAKE_TIMEOUT:?}"))),
            Ok(Err(WireError::Frame(_))) => Err(HandshakeRefusal::NotRowlock),
            Ok(Err(error)) => return Err(unreachable(format!("in the handshake: {error}"))),
            Ok(Ok(frame)) => handshake::check_verdict(&frame.body),
        };
        let refused = |refusal| PeerError::Refused { node: self.to, refusal };
        let theirs = verdict.map_err(refused)?;
        handshake::agree(&theirs.versions, &hello.versions).map_err(refused)?;
        known.record(self.to, theirs.incarnation).await.map_err(|cause| match cause {
            NotRecorded::OtherFolder => refused(HandshakeRefusal::OtherFolder { node: self.to }),
            NotRecorded::TooMany | NotRecorded::Disk(_) => unreachable(cause.to_string()),
        })?;
        known.heard(self.to, theirs.versions);
        inbox.set_body_max_bytes(self.lane.frame_max_bytes());
        Ok((inbox, outbox))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_where_it_is_said_to_be_is_looked_for_where_it_was_said_to_be_before() {
        let mut places = Places::default();
        places.set("a:1");
        places.set("a:1");
        assert_eq!(places.after(1), ("a:1".to_owned(), true), "there is no other place");
        places.set("b:1");
        assert_eq!(places.after(0), ("b:1".to_owned(), true));
        assert_eq!(places.after(1), ("a:1".to_owned(), false));
        assert_eq!(places.after(2), ("b:1".to_owned(), true));
    }
}
