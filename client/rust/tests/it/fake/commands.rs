//! Which command a request is, how its outcome is answered, and what it changed.

use rowlock_proto::lock::{Claim, Notice, NoticeEvent};
use rowlock_proto::{EventType, Request, Response, SessionId, Zxid, path};
use rowlock_state::Question;
use rowlock_state::command::{Attachment, Command};
use rowlock_state::outcome::{
    Change, ChangeKind, EventSink, LockEvent, LockEventKind, Outcome, SessionEnd, Why,
};

/// What a command changed, in order.
#[derive(Default)]
pub struct Collected {
    pub events: Vec<(EventType, String, Zxid)>,
    pub notices: Vec<(SessionId, Zxid, Notice)>,
}

impl EventSink for Collected {
    fn changed(&mut self, change: &Change<'_>) {
        let event = match change.kind {
            ChangeKind::Created => EventType::NodeCreated,
            ChangeKind::Deleted => EventType::NodeDeleted,
            ChangeKind::DataChanged => EventType::NodeDataChanged,
        };
        self.events.push((event, change.path.to_owned(), change.zxid));
        if let (true, Some(parent)) = (change.kind != ChangeKind::DataChanged, path::parent(change.path)) {
            self.events.push((EventType::NodeChildrenChanged, parent.to_owned(), change.zxid));
        }
    }

    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}

    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}

    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}

    fn lock(&mut self, event: &LockEvent<'_>) {
        let notice_event = match event.kind {
            // Of a grant in the command that made the place, the reply tells.
            LockEventKind::Granted { .. } if event.zxid.0 == event.token.0 => return,
            LockEventKind::Granted { .. } => NoticeEvent::Granted,
            LockEventKind::Gone { why: Why::Deleted, .. } => NoticeEvent::Deleted,
            LockEventKind::Gone { why: Why::Forced, .. } => NoticeEvent::Forced,
            LockEventKind::Gone { why: Why::Revoked, .. } => NoticeEvent::Revoked,
            _ => return,
        };
        if event.is_acquired {
            let claim = Claim { path: event.path.into(), token: event.token };
            self.notices.push((event.session, event.zxid, Notice { claim, event: notice_event }));
        }
    }

    fn asked(&mut self, event: &LockEvent<'_>, question: &Question) {
        if event.is_acquired {
            let claim = Claim { path: event.path.into(), token: event.token };
            let notice_event = NoticeEvent::Asked(question.told_at(event.time_ms));
            self.notices.push((event.session, event.zxid, Notice { claim, event: notice_event }));
        }
    }
}

pub type Form = Box<dyn FnOnce(Outcome) -> Response>;

/// The command of a request that goes through the log, and how it is answered; or the request back.
pub fn command(request: Request) -> Result<(Command, Form), Box<Request>> {
    let path_stat: Form = Box::new(|outcome| match outcome {
        Outcome::Created { path, stat } => Response::PathStat(path, stat),
        other => panic!("{other:?}"),
    });
    let other: Form = Box::new(|outcome| match outcome {
        Outcome::Done => Response::Empty,
        Outcome::Stat(stat) => Response::Stat(stat),
        Outcome::Multi(results) => Response::Multi(results),
        Outcome::PlaceStates(place_states) => Response::PlaceStates(place_states.into_vec()),
        Outcome::Held(held) => Response::Held(held.into_vec()),
        Outcome::Asked(count) => Response::Number(count as i32),
        other => panic!("{other:?}"),
    });
    Ok(match request {
        Request::Create2(create) | Request::CreateContainer(create) => {
            (Command::Create { create, ttl_ms: None }, path_stat)
        }
        Request::Delete { path, version } => (Command::Delete { path, version }, other),
        Request::SetData(set) => (Command::SetData(set), other),
        Request::Multi(ops) => (Command::Multi(ops), other),
        Request::Sync(path) => (Command::Noop, Box::new(|_| Response::Path(path))),
        Request::CloseSession => (Command::CloseSession, other),
        Request::Acquire(all) => (Command::Acquire(all), other),
        Request::Convert { claim, mode, prefix } => (Command::Convert { claim, mode, prefix }, other),
        Request::Release(claims) => (Command::Release(claims), other),
        Request::Verify(claims) => (Command::Verify(claims), other),
        Request::ForceRelease(claim) => (Command::ForceRelease(claim), other),
        Request::Ask(ask) => (Command::Ask(ask), other),
        Request::Abandon(attempts) => (Command::Abandon(attempts), other),
        Request::Tagged { id, acked, request } => {
            let (inner, form) = command(*request)?;
            (Command::Tagged { id, acked, command: Box::new(inner) }, form)
        }
        request => return Err(Box::new(request)),
    })
}

pub fn path_of(request: &Request) -> String {
    match request {
        Request::Create2(create) => create.path.clone(),
        Request::Exists(read)
        | Request::GetData(read)
        | Request::GetChildren(read)
        | Request::GetChildren2(read) => read.path.clone(),
        Request::Multi(ops) => format!("{ops:?}"),
        _ => String::new(),
    }
}
