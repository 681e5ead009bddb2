//! Which command a request is, how its outcome is answered, and what it changed.

use rowlock_proto::lock::{Claim, Notice, NoticeEvent};
use rowlock_proto::{EventType, Request, SessionId, Zxid, path};
use rowlock_state::Question;
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{
    Change, ChangeKind, EndReason, EventContext, EventSink, LockEvent, LockEventKind, SessionEnd,
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

    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        let notice_event = match event.kind {
            // Of a grant in the command that made the place, the reply tells.
            LockEventKind::Granted { .. } if context.zxid.0 == event.token.0 => return,
            LockEventKind::Granted { .. } => NoticeEvent::Granted,
            _ => match event.kind.end().map(|end| end.reason) {
                Some(EndReason::Deleted) => NoticeEvent::Deleted,
                Some(EndReason::Forced) => NoticeEvent::Forced,
                Some(EndReason::Revoked) => NoticeEvent::Revoked,
                _ => return,
            },
        };
        if event.acquired {
            let claim = Claim { path: event.path.into(), token: event.token };
            self.notices.push((event.session, context.zxid, Notice { claim, event: notice_event }));
        }
    }

    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        if event.acquired {
            let claim = Claim { path: event.path.into(), token: event.token };
            let notice_event = NoticeEvent::Asked(question.told_at(context.time_ms));
            self.notices.push((event.session, context.zxid, Notice { claim, event: notice_event }));
        }
    }
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
