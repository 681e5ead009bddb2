//! Dialing another node: connect, handshake, and a growing pause after failures.

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::backoff::Backoff;
use rowlock_env::time;
use rowlock_metrics::memory::Tally;
use rowlock_proto::NodeId;

use super::error::PeerError;
use super::frame::RequestId;
use super::handshake::{self, HandshakeRefusal, Hello, Identity, Lane};
use super::known_incarnations::{KnownIncarnations, NotRecorded};
use super::security::Security;
use super::wire::{self, Inbox, Outbox, WireError};
use crate::limits::{DIAL_PAUSES, DIAL_REFUSED_PAUSES, PEER_HANDSHAKE_TIMEOUT, PEER_HELLO_MAX_BYTES};

/// Address of a node; the membership changes it, and the next attempt to dial uses the new value.
pub(super) type Address = Arc<Mutex<Addresses>>;

/// Current and previous address of a node. `cluster.toml` and the membership may differ while a node moves,
/// and either may be newer: the log cannot carry the new address to a node that needs this connection to take
/// part. Trying both is safe, since the handshake verifies the node's identity.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    current: String,
    previous: Option<String>,
}

impl Addresses {
    /// Replaces the current address; a different earlier one becomes the previous address.
    pub(super) fn set(&mut self, address: &str) {
        if self.current != address {
            let previous = std::mem::replace(&mut self.current, address.to_owned());
            self.previous = (!previous.is_empty()).then_some(previous);
        }
    }

    /// Returns the address to try after `failures` failures in a row, and whether that address is the current
    /// one.
    fn after(&self, failures: u32) -> (String, bool) {
        match &self.previous {
            Some(previous) if failures % 2 == 1 => (previous.clone(), false),
            _ => (self.current.clone(), true),
        }
    }
}

/// Settings shared by all connections that this node dials.
#[derive(Clone)]
pub(super) struct DialContext {
    pub(super) us: Arc<Identity>,
    pub(super) known: Arc<dyn KnownIncarnations>,
    pub(super) security: Security,
    pub(super) tally: Tally,
}

/// Opens one lane's connections to one node.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) context: DialContext,
    pub(super) to: NodeId,
    /// The address is a guess: a failed attempt is not logged.
    pub(super) is_guess: bool,
    pub(super) lane: Lane,
    pub(super) address: Address,
    /// Pauses, shared by all dialers of this lane.
    pub(super) backoff: Arc<Mutex<Backoff>>,
}

impl Dialer {
    /// Returns a connection that has passed the handshake. First waits for the pause after earlier failures.
    /// Cancel safe: dropping the future ends the attempt.
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
                // Every lane sees the recovery; only the heartbeat lane logs.
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
        let DialContext { us, known, security, tally } = &self.context;
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
    fn a_failed_dial_tries_the_previous_address() {
        let mut addresses = Addresses::default();
        addresses.set("a:1");
        addresses.set("a:1");
        assert_eq!(addresses.after(1), ("a:1".to_owned(), true), "there is no other address");
        addresses.set("b:1");
        assert_eq!(addresses.after(0), ("b:1".to_owned(), true));
        assert_eq!(addresses.after(1), ("a:1".to_owned(), false));
        assert_eq!(addresses.after(2), ("b:1".to_owned(), true));
    }
}
