//! Operators that end sessions of any client (docs/operations.md, "End a session").

use std::time::Duration;

use rowlock_client::Client;
use rowlock_env::time;

use super::locks::{any_lock, first_of};
use crate::cluster::operator::SECRET;
use crate::cluster::workload::chance::{between, millis};
use crate::cluster::workload::life::Place;
use crate::history::client::{ClientFact, Events};

const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
/// Time limit of a step: a reply, or opening or closing the operator's session.
const EACH: Duration = Duration::from_secs(5);

/// Ends the session that has been first in a lock's queue for a while, as people do who believe its client
/// dead. The session may be the caller's own.
pub(super) async fn end(place: &Place) {
    let (client, (_, queue)) = (place.caller.client(), any_lock(place));
    let Some(first) = first_of(place, &queue).await else { return };
    place.rest(millis(100, 900)).await;
    let Ok(Some(stat)) = client.exists(&format!("{queue}/{first}")).await else { return };
    let connecting = Client::builder()
        .endpoints(&place.caller.profile().membership.endpoints())
        .session_timeout(SESSION_TIMEOUT)
        .connect_timeout(EACH)
        .label("operator")
        .auth("digest", SECRET)
        .allow_plaintext_passwords(true);
    let Ok(operator) = connecting.connect().await else { return };
    let (session, journal) = (stat.ephemeral_owner, place.caller.journal());
    let question = format!("/v1/end-session?session={session}");
    let limit = u32::try_from(between(1, 40)).unwrap_or(1);
    if let Ok(Ok(sessions)) = time::timeout(EACH, operator.report_sessions(limit)).await {
        journal.record(ClientFact::Events(Events::Sessions(Box::new(sessions))));
    }
    if let Ok(Ok(_)) = time::timeout(EACH, operator.operate(&question)).await {
        journal.record(ClientFact::HasEnded { session });
    }
    // A session that cannot be closed expires by itself.
    let _ = time::timeout(EACH, operator.close()).await;
}
