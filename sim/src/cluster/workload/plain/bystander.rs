//! Quiet clients beside floods: one small request after another, with a pause before each. The checker
//! **in-time** bounds the waits of these clients.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::sync::watch;
use rowlock_env::time;
use rowlock_proto::request::{Create, PathWatch, SetData};
use rowlock_proto::{Acl, CreateMode, Request, Version};

use super::super::Journal;
use super::super::chance::{chance, millis};
use super::session::{Fate, Session};
use crate::cluster::membership::Membership;
use crate::history::client::ClientFact;

const SESSION: Duration = Duration::from_secs(8);
/// Pause between a reply and the next request, in milliseconds.
const REST_MS: (u64, u64) = (10, 60);

/// Sends requests until `closing` is true.
pub(in super::super) async fn live(journal: Journal, membership: Membership, closing: watch::Receiver<bool>) {
    let mut session = None;
    while !*closing.borrow() {
        time::sleep(millis(REST_MS.0, REST_MS.1)).await;
        let is_write = chance(50);
        journal.record(ClientFact::Waits { request: if is_write { "write" } else { "read" } });
        while !*closing.borrow() && !is_answered(&mut session, (&journal, &membership), is_write).await {
            time::sleep(Duration::from_millis(5)).await;
        }
        journal.record(ClientFact::Served);
    }
    if let Some((session, _)) = session {
        session.close().await;
    }
    journal.record(ClientFact::Ended);
}

/// Sends the request once, on a new session if necessary. Returns whether a reply arrived.
async fn is_answered(
    slot: &mut Option<(Session, String)>,
    (journal, membership): (&Journal, &Membership),
    is_write: bool,
) -> bool {
    if slot.as_ref().is_none_or(|(session, _)| session.is_over()) {
        *slot = open(journal, membership).await;
    }
    let Some((session, path)) = slot else { return false };
    if !session.is_attached() && session.attach().await.is_err() {
        return false;
    }
    let path = path.clone();
    let request = if is_write {
        Request::SetData(SetData { path, data: Some(Bytes::from_static(b"still")), version: Version::ANY })
    } else {
        Request::GetData(PathWatch { path, watch: false })
    };
    match session.ask(request).await {
        Ok(_) => true,
        Err(Fate::Lost | Fate::Over) => false,
    }
}

async fn open(journal: &Journal, membership: &Membership) -> Option<(Session, String)> {
    let mut session = Session::open(journal, membership, SESSION).await?;
    let path = format!("/bystander-{:x}", session.id().0);
    let (acl, flags) = (Some(Acl::shared_open()), CreateMode::Ephemeral.flags());
    let create = Create { path: path.clone(), data: None, acl, flags };
    let _ = session.ask(Request::Create2(create)).await.ok()?;
    Some((session, path))
}
