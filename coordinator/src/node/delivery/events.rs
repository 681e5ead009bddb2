//! Local effects of applied events: watches fire, connections of moved or ended sessions are closed, and
//! holders and waiters of locks are notified.
//!
//! In the flow: apply creates one [`Dispatcher`] per batch, under the write lock of the state; so a reader of
//! the new state finds the events in its outbox already. Must never wait or touch a socket.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_metrics::Metrics;
use rowlock_proto::lock::{Claim, Notice, NoticeEvent};
use rowlock_proto::{FencingToken, SessionId, Zxid, encode};
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{
    Change, EndReason, EventContext, EventSink, LockEvent, LockEventKind, SessionEnd,
};
use rowlock_state::{AskedHolder, Question};

use super::registry::Registry;
use crate::node::delivery::watch::WatchTable;

/// The event sink of apply. Dropping it updates the metrics.
pub struct Dispatcher<'a> {
    watches: &'a mut WatchTable,
    registry: &'a Registry,
    metrics: &'a Metrics,
    fired_before: u64,
}

impl<'a> Dispatcher<'a> {
    /// Creates the sink of one batch; `watches` stays locked (after the state) for as long.
    pub fn new(watches: &'a mut WatchTable, registry: &'a Registry, metrics: &'a Metrics) -> Self {
        let fired_before = watches.fired();
        Dispatcher { watches, registry, metrics, fired_before }
    }
}

impl EventSink for Dispatcher<'_> {
    fn changed(&mut self, change: &Change<'_>) {
        self.watches.fire(change);
    }

    fn session_opened(&mut self, _session: SessionId, _attachment: Attachment, _timeout_ms: u32) {}

    fn session_attached(&mut self, session: SessionId, attachment: Attachment, _timeout_ms: u32) {
        self.registry.session_attached(session, attachment);
    }

    fn session_ended(&mut self, session: SessionId, end: SessionEnd) {
        if decides!("session-has-expired", end == SessionEnd::Expired) {
            self.metrics.sessions_expired_total.inc();
        }
        self.registry.session_ended(session);
    }

    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        match event.kind {
            LockEventKind::Granted { waited_ms } => {
                self.metrics.lock_grants_total.inc();
                self.metrics.lock_wait_seconds.record(ms(waited_ms));
            }
            LockEventKind::Released(end) | LockEventKind::Lost(end) => {
                self.metrics.lock_hold_seconds.record(ms(end.held_ms.unwrap_or_default()));
            }
            LockEventKind::Requested { .. }
            | LockEventKind::Converted
            | LockEventKind::Asked { .. }
            | LockEventKind::Abandoned(_) => {}
        }
        let Some(pushed) = pushed(event, context.zxid) else { return };
        self.notify(event.session, || frame(context.zxid, (event.path, event.token), pushed));
    }

    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        if decides!("questioned-holder-acquired", event.acquired) {
            let pushed = NoticeEvent::Asked(question.told_at(context.time_ms));
            self.notify(event.session, || frame(context.zxid, (event.path, event.token), pushed));
        }
    }
}

impl Dispatcher<'_> {
    fn notify(&self, session: SessionId, frame: impl FnOnce() -> Bytes) {
        if self.registry.notify(session, frame) {
            self.metrics.lock_notices_total.inc();
        }
    }
}

/// Encodes the notice of an earlier question. `zxid` belongs to the state with the question, at `now_ms`.
pub(crate) fn question_frame(zxid: Zxid, asked: &AskedHolder<'_>, now_ms: i64) -> Bytes {
    frame(zxid, (asked.path, asked.token), NoticeEvent::Asked(asked.question.told_at(now_ms)))
}

fn frame(zxid: Zxid, (path, token): (&str, FencingToken), event: NoticeEvent) -> Bytes {
    let claim = Claim { path: path.into(), token };
    let mut out = BytesMut::new();
    encode::notice(zxid, &Notice { claim, event }, &mut out);
    out.freeze()
}

/// Returns the notice for the queue position's session. A session gets no notice of its own requests: the
/// reply contains the result. So a grant in the command of the position's creation, whose zxid is the token,
/// sends none.
fn pushed(event: &LockEvent<&str>, zxid: Zxid) -> Option<NoticeEvent> {
    let is_new = zxid.0 == event.token.0;
    match event.kind {
        _ if decides!("event-is-of-plain-queue", !event.acquired) => None,
        LockEventKind::Granted { .. } if mutant::is(Mutant::LoseNotices) => None,
        LockEventKind::Granted { .. } => (!is_new).then_some(NoticeEvent::Granted),
        LockEventKind::Abandoned(end) | LockEventKind::Released(end) | LockEventKind::Lost(end) => {
            match end.reason {
                EndReason::Deleted => Some(NoticeEvent::Deleted),
                EndReason::Forced => Some(NoticeEvent::Forced),
                EndReason::Revoked => Some(NoticeEvent::Revoked),
                EndReason::Released
                | EndReason::SessionClosed
                | EndReason::SessionExpired
                | EndReason::SessionEnded => None,
            }
        }
        LockEventKind::Requested { .. } | LockEventKind::Converted | LockEventKind::Asked { .. } => None,
    }
}

/// Converts to a duration. A leader's clock that was set back can make the difference negative; the result is
/// zero then.
fn ms(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

impl Drop for Dispatcher<'_> {
    fn drop(&mut self) {
        self.metrics.watch_fired_total.add(self.watches.fired() - self.fired_before);
        self.watches.show(self.metrics);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::SocketAddr;

    use rowlock_proto::lock::{self, Mode};
    use rowlock_proto::{Xid, decode};
    use rowlock_state::Deadline;
    use rowlock_state::outcome::PositionEnd;

    use super::super::outbox::{self, Inbox, Message};
    use super::super::registry::{Door, Most};
    use super::*;

    const MINE: SessionId = SessionId(7);

    struct Stage {
        registry: Registry,
        metrics: Metrics,
        watches: WatchTable,
        inbox: Inbox,
    }

    impl Stage {
        /// Connects the session [`MINE`] to this node.
        fn new() -> Stage {
            let (outbox, inbox) = outbox::channel();
            let registry = Registry::new();
            let most = Most { connections: 1, of_address: 0, half_open: 1 };
            let peer =
                registry.accepted(SocketAddr::from(([127, 0, 0, 1], 1)), Door::Plain, outbox, most).unwrap();
            registry.attach(peer.id, MINE, Attachment(1));
            Stage { registry, metrics: Metrics::default(), watches: WatchTable::default(), inbox }
        }

        fn lock(&mut self, event: LockEvent<&str>) -> Vec<(Zxid, Notice)> {
            Dispatcher::new(&mut self.watches, &self.registry, &self.metrics).lock(&event, &CONTEXT);
            self.told()
        }

        fn asked(&mut self, event: LockEvent<&str>, question: &Question) -> Vec<(Zxid, Notice)> {
            let mut dispatcher = Dispatcher::new(&mut self.watches, &self.registry, &self.metrics);
            dispatcher.asked(&event, &CONTEXT, question);
            drop(dispatcher);
            self.told()
        }

        fn told(&mut self) -> Vec<(Zxid, Notice)> {
            let mut messages = VecDeque::new();
            self.inbox.take(&mut messages).unwrap();
            let notice = |message| {
                let Message::Event(mut frame) = message else { panic!("{message:?}") };
                let length = frame.split_to(4);
                assert_eq!(&length[..], u32::try_from(frame.len()).unwrap().to_be_bytes());
                let header = decode::reply_header(&mut frame).unwrap();
                assert_eq!((header.xid, header.err), (Xid::NOTICE, None));
                (header.zxid, decode::notice(&mut frame).unwrap())
            };
            messages.into_iter().map(notice).collect()
        }
    }

    const CONTEXT: EventContext<'_> = EventContext { zxid: Zxid(9), time_ms: 1_000, acl: &[], lock_acl: &[] };

    fn event(kind: LockEventKind<&'static str>) -> LockEvent<&'static str> {
        LockEvent {
            kind,
            lock: "/locks/a",
            path: "/locks/a/x-lock-0000000001",
            token: FencingToken(5),
            session: MINE,
            label: "",
            address: None,
            mode: Mode::Exclusive,
            acquired: true,
        }
    }

    fn gone(reason: EndReason) -> LockEvent<&'static str> {
        event(LockEventKind::ended(PositionEnd { reason, waited_ms: 3, held_ms: Some(20), by: None }))
    }

    #[test]
    fn a_grant_is_notified_once_to_the_waiting_session() {
        let mut stage = Stage::new();
        let granted = event(LockEventKind::Granted { waited_ms: 3 });
        let claim = Claim { path: granted.path.into(), token: granted.token };
        assert_eq!(stage.lock(granted), [(Zxid(9), Notice { claim, event: NoticeEvent::Granted })]);
        assert_eq!(stage.lock(LockEvent { session: SessionId(8), ..granted }), []);
        assert_eq!(stage.metrics.lock_grants_total.get(), 2);
        assert_eq!(stage.metrics.lock_notices_total.get(), 1);
        assert_eq!(stage.metrics.lock_wait_seconds.view().sum, 6);
    }

    #[test]
    fn the_content_of_a_reply_is_not_notified_again() {
        let mut stage = Stage::new();
        let at_once = LockEvent { token: FencingToken(9), ..event(LockEventKind::Granted { waited_ms: 0 }) };
        for event in [
            at_once,
            event(LockEventKind::Requested { ahead: 1 }),
            event(LockEventKind::Converted),
            gone(EndReason::Released),
            gone(EndReason::SessionClosed),
            gone(EndReason::SessionExpired),
        ] {
            assert_eq!(stage.lock(event), [], "{:?}", event.kind);
        }
        assert_eq!(stage.metrics.lock_grants_total.get(), 1);
        assert_eq!(stage.metrics.lock_hold_seconds.view().count, 3);
    }

    #[test]
    fn a_loss_caused_by_others_is_notified_with_its_cause() {
        let mut stage = Stage::new();
        for (why, pushed) in [
            (EndReason::Deleted, NoticeEvent::Deleted),
            (EndReason::Forced, NoticeEvent::Forced),
            (EndReason::Revoked, NoticeEvent::Revoked),
        ] {
            let told = stage.lock(gone(why));
            assert!(matches!(&told[..], [(_, notice)] if notice.event == pushed), "{told:?}");
        }
    }

    #[test]
    fn a_question_reaches_the_holder_with_the_remaining_time() {
        let mut stage = Stage::new();
        let deadline = Some(Deadline { since_ms: 400, within_ms: 2_000 });
        let (reason, by) = ("hotfix".to_owned(), "ip:10.0.0.1".to_owned());
        let askers = std::sync::Arc::default();
        let question = Question { reason: reason.clone(), by: by.clone(), asked_ms: 1_000, deadline, askers };
        let told = stage.asked(event(LockEventKind::Asked { question: "" }), &question);
        let left_ms = Some(1_400);
        let expected = NoticeEvent::Asked(lock::QuestionNotice { reason, by, asked_ms: 1_000, left_ms });
        assert!(matches!(&told[..], [(Zxid(9), notice)] if notice.event == expected), "{told:?}");
        let plain = LockEvent { acquired: false, ..event(LockEventKind::Asked { question: "" }) };
        assert_eq!(stage.asked(plain, &question), [], "its client knows no such notice");
        assert_eq!(stage.metrics.lock_notices_total.get(), 1);
    }

    #[test]
    fn positions_of_plain_creates_get_no_notices() {
        let mut stage = Stage::new();
        let plain = |event| LockEvent { acquired: false, ..event };
        assert_eq!(stage.lock(plain(event(LockEventKind::Granted { waited_ms: 3 }))), []);
        assert_eq!(stage.lock(plain(gone(EndReason::Deleted))), []);
        assert_eq!(stage.metrics.lock_grants_total.get(), 1);
    }
}
