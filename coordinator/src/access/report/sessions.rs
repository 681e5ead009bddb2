//! `/v1/sessions`: open sessions and their znodes. A client sees its own session; superusers see all
//! sessions.

use rowlock_env::decides;
use rowlock_proto::SessionId;
use rowlock_proto::report::{Session as Shown, SessionZnode, Sessions};
use rowlock_state::{Machine, Session};

use super::list::List;
use super::{Refusal, Viewer};
use crate::node::delivery::registry::Registry;

/// Lists the visible sessions in the order of their ids, or one session.
pub(super) fn overview(
    machine: &Machine,
    only: Option<SessionId>,
    limit: usize,
    reader: &Viewer,
    registry: &Registry,
) -> Result<Sessions, Refusal> {
    let mut list = List::new(limit);
    if let Some(id) = only {
        if decides!("session-is-hidden", !reader.may_see_session(id)) {
            return Err(Refusal::NotPermitted(format!(
                "{id} is a foreign session, visible to superusers only"
            )));
        }
        let Some(session) = machine.session(id) else {
            return Err(Refusal::NotThere(format!("there is no session {id}")));
        };
        let mut one = item(machine, id, session, registry);
        one.znodes = znodes(machine, id, limit);
        list.push(one);
    } else if !reader.is_super() {
        let own = machine.session(reader.session);
        own.map(|session| list.push(item(machine, reader.session, session, registry)));
    } else {
        for (id, session) in machine.sessions() {
            if !list.push(item(machine, id, session, registry)) {
                break;
            }
        }
    }
    Ok(Sessions {
        zxid: machine.last_zxid(),
        session_count: machine.counts().sessions,
        sessions: list.items,
        more: list.more,
    })
}

fn item(machine: &Machine, id: SessionId, session: &Session, registry: &Registry) -> Shown {
    let (held, waiting) = machine.session_locks(id);
    Shown {
        session: id,
        timeout_ms: session.timeout_ms,
        attachment: session.attachment.0,
        address: registry.address_of(id).map(|address| address.to_string()),
        ephemerals: session.ephemeral_count() as u64,
        locks_held: held as u64,
        locks_waiting: waiting as u64,
        znodes: Vec::new(),
    }
}

/// Lists the session's first znodes, bounded by the size of a report.
fn znodes(machine: &Machine, id: SessionId, limit: usize) -> Vec<SessionZnode> {
    let mut list = List::new(limit);
    for (path, czxid, holds) in machine.session_znodes(id) {
        let place = holds.map(|holds| if holds { "holds" } else { "waits" }.to_owned());
        if !list.push(SessionZnode { path: path.to_owned(), czxid, place }) {
            break;
        }
    }
    list.items
}
