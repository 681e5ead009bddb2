//! TLS handshake of a client, before the first byte of ZooKeeper's protocol: bounded in number, time and
//! pace. The client's certificate becomes the connection's first identity.
//!
//! Must never send more than an alert of TLS to a client that fails.

use std::sync::Arc;

use rowlock_env::net::Stream;
use rowlock_env::time::{self, Instant};
use rowlock_tls::{Hello, Keeper, Secured, TlsError, looks_like_tls, refuse_plain};

use super::conversation::audit::record_tls;
use super::end_reason::EndReason;
use super::handshake::next_message;
use super::identity;
use super::shared::Shared;
use crate::node::delivery::outbox::{Inbox, Message};
use crate::node::delivery::registry::ClientConnection;

/// Does the handshake. Writes the identity of the client's certificate into `peer`.
pub(super) async fn shake_hands(
    shared: &Shared,
    peer: &ClientConnection,
    keeper: &Keeper,
    stream: Stream,
    inbox: &mut Inbox,
    deadline: Instant,
) -> Result<Stream, EndReason> {
    let steps = async {
        let told = async {
            match next_message(inbox).await? {
                Message::Close(reason) => Err(EndReason::Told(reason)),
                // No other message can belong to a connection without requests.
                _ => Err(EndReason::Lost),
            }
        };
        tokio::select! {
            biased;
            told = told => told,
            shaken = accept(shared, peer, keeper, stream, deadline) => shaken,
        }
    };
    let shaken = match time::timeout_at(deadline, steps).await {
        Ok(shaken) => shaken,
        Err(time::Elapsed) => Err(EndReason::NoHandshake),
    };
    let metrics = &shared.context.metrics;
    let known = shaken.and_then(|secured| prove(shared, peer, secured));
    match &known {
        Ok(_) => {
            metrics.client_tls_handshakes_total.inc();
            record_tls(shared, peer, None);
        }
        Err(EndReason::NoTls(why)) => {
            metrics.client_tls_handshakes_failed_total.inc();
            record_tls(shared, peer, Some(why));
        }
        Err(EndReason::Told(_) | EndReason::Lost) => {}
        Err(_) => metrics.client_tls_handshakes_failed_total.inc(),
    }
    known
}

async fn accept(
    shared: &Shared,
    peer: &ClientConnection,
    keeper: &Keeper,
    stream: Stream,
    deadline: Instant,
) -> Result<Secured, EndReason> {
    match stream.first_byte().await? {
        None => return Err(EndReason::HungUp),
        Some(first) if looks_like_tls(first) => {}
        Some(_) => {
            refuse_plain(&stream);
            return Err(EndReason::NoTls("it does not speak TLS".to_owned()));
        }
    }
    // A handshake takes a slot only when the whole hello has arrived: silent clients, and clients that send
    // half of it, take none.
    let hello = match Hello::read(stream).await {
        Ok(hello) => hello,
        Err(TlsError::HungUp) => return Err(EndReason::HungUp),
        Err(error) => return Err(EndReason::NoTls(error.to_string())),
    };
    let now = time::now();
    let wait = shared.pace.reserve(peer.addr.ip(), now, deadline.saturating_since(now));
    let Some(wait) = wait else {
        return Err(EndReason::NoTls("too many TLS handshakes at a time".to_owned()));
    };
    time::sleep(wait).await;
    match keeper.material().clients.answer(hello).await {
        Ok(secured) => Ok(secured),
        Err(TlsError::HungUp) => Err(EndReason::HungUp),
        Err(error) => Err(EndReason::NoTls(error.to_string())),
    }
}

fn prove(shared: &Shared, peer: &ClientConnection, secured: Secured) -> Result<Stream, EndReason> {
    let Secured { stream, certificate, is_resumed } = secured;
    if is_resumed {
        shared.context.metrics.client_tls_resumed_total.inc();
    }
    if let Some(certificate) = certificate {
        let address = shared.neighbours.identities(peer.addr.ip());
        let superusers = &shared.context.config.client.x509_superusers;
        let proven = identity::with_certificate(&address, certificate.subject, superusers).map_err(
            |identity::AuthFailed| EndReason::NoTls("the subject of its certificate is too long".to_owned()),
        )?;
        let _: Result<(), Arc<_>> = peer.proven.set(proven);
    }
    Ok(stream)
}
