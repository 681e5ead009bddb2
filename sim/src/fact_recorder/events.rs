//! Entries of event streams and histories about a lock (docs/monitoring.md), built from the log.

use rowlock_proto::lock::Mode;
use rowlock_proto::report::{HistoryEnd, HistoryEntry, HistoryEvent, HistoryPlace};
use rowlock_state::outcome::{LockEvent, LockEventKind, Why};

pub(super) fn entry(event: &LockEvent<'_>) -> HistoryEntry {
    let label = String::from_utf8_lossy(event.label).into_owned();
    let permits = if let Mode::Permits(permits) = event.mode { Some(permits) } else { None };
    let place = HistoryPlace {
        lock: event.lock.to_owned(),
        path: event.path.to_owned(),
        token: event.token,
        session: event.session,
        label,
        address: Some(event.address.to_owned()).filter(|address| !address.is_empty()),
        mode: event.mode.into(),
        permits,
        acquired: event.is_acquired,
    };
    let event_of_it = match event.kind {
        LockEventKind::Requested { ahead } => HistoryEvent::Requested { ahead, place },
        LockEventKind::Granted { waited_ms } => HistoryEvent::Granted { waited_ms, place },
        LockEventKind::Converted => HistoryEvent::Converted(place),
        LockEventKind::Asked => HistoryEvent::Asked {
            question: place.label.clone(),
            place: HistoryPlace { label: String::new(), ..place },
        },
        LockEventKind::Gone { held_ms, waited_ms, why } => {
            let (reason, is_given_back) = match why {
                Why::Released => ("released", true),
                Why::SessionClosed => ("session-closed", true),
                Why::SessionExpired => ("session-expired", false),
                Why::SessionEnded => ("session-ended", false),
                Why::Deleted => ("deleted", false),
                Why::Forced => ("forced", false),
                Why::Revoked => ("revoked", false),
            };
            let by = Some(event.by.to_owned()).filter(|by| !by.is_empty());
            let end = HistoryEnd { reason: reason.to_owned(), waited_ms, held_ms, by, place };
            match (held_ms.is_some(), is_given_back) {
                (false, _) => HistoryEvent::Abandoned(end),
                (true, true) => HistoryEvent::Released(end),
                (true, false) => HistoryEvent::Lost(end),
            }
        }
    };
    HistoryEntry { time_ms: event.time_ms, zxid: event.zxid, event: event_of_it }
}
