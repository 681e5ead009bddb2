//! The machine alone: frames and a clock in, frames and completions out.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::time::Instant;
use rowlock_proto::request::PathWatch;
use rowlock_proto::response::{ConnectResponse, ReplyHeader};
use rowlock_proto::{
    ConnectRequest, ErrorCode, EventType, Request, RequestFrame, Response, SessionId, WatchedEvent, Xid,
    Zxid, decode, encode, frame,
};
use tokio::sync::oneshot;

use super::*;
use crate::session::watches::{WatchRequest, WatchedBy};
use crate::session::znode_removal::ZnodeRemoval;
use crate::session::{Call, Reply};

pub(super) const TIMEOUT: Duration = Duration::from_secs(9);

pub(in crate::session) struct Rig {
    pub machine: Machine,
    start: Instant,
    /// What the server announces; `None`: it is a plain ZooKeeper.
    pub announced: Option<&'static str>,
    /// It takes its time to say so: see [`Rig::announce`].
    pub silent_about_extensions: bool,
    /// What the next connections are told of the other servers.
    pub elsewhere: Elsewhere,
}

pub(super) type Outcome = oneshot::Receiver<Result<Reply, Error>>;

impl Rig {
    pub(super) fn new() -> Self {
        Rig::with(Machine::new(TIMEOUT, Duration::ZERO, Vec::new()))
    }

    pub(super) fn with(machine: Machine) -> Self {
        let elsewhere = Elsewhere::default();
        Rig { machine, start: Instant::now(), announced: None, silent_about_extensions: false, elsewhere }
    }

    /// A machine that is attached since second 0.
    pub(in crate::session) fn up() -> Self {
        let mut it = Rig::new();
        it.attach(0);
        it
    }

    /// The same, and this is what the server says of itself.
    pub(in crate::session) fn up_to(announced: &'static str) -> Self {
        let mut it = Rig { announced: Some(announced), ..Rig::new() };
        it.attach(0);
        it
    }

    pub(super) fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    pub(super) fn hello(&mut self, seconds: u64) -> ConnectRequest {
        self.machine.connected(self.at(seconds), self.elsewhere.clone());
        let frame = frame::split(&mut self.machine.effects.out, 1 << 20).unwrap().unwrap();
        decode::connect_request(frame).unwrap()
    }

    pub(super) fn welcome(&mut self, session: i64, seconds: u64) -> Result<(), Fault> {
        let timeout_ms = if session == 0 { 0 } else { 9_000 };
        let password = Bytes::from_static(&[5; 16]);
        let (session_id, read_only) = (SessionId(session), Some(false));
        let answer = ConnectResponse { protocol_version: 0, timeout_ms, session_id, password, read_only };
        let mut out = BytesMut::new();
        encode::connect_response(&answer, &mut out);
        self.machine.frame(one(&mut out), self.at(seconds))?;
        if session != 0 && !self.silent_about_extensions {
            self.announce(seconds);
        }
        Ok(())
    }

    /// The answer to the probe of the attachment.
    pub(super) fn announce(&mut self, seconds: u64) {
        let data = |text: &'static str| {
            Response::Data(Some(Bytes::from_static(text.as_bytes())), rowlock_proto::Stat::default())
        };
        self.reply_at(0, 0, self.announced.map(data).ok_or(ErrorCode::NoNode), seconds).unwrap();
    }

    pub(super) fn cut(&mut self) {
        self.machine.disconnected(self.start);
    }

    pub(super) fn attach(&mut self, seconds: u64) {
        self.hello(seconds);
        self.welcome(1, seconds).unwrap();
    }

    pub(super) fn call(&mut self, request: Request) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        let call = Call { request, reply, watch: None, cells: Vec::new(), _permit: None };
        self.machine.command(Action::Call(Box::new(call)));
        outcome
    }

    fn watch(&mut self, path: &str) -> oneshot::Receiver<WatchedEvent> {
        let (event, receiver) = oneshot::channel();
        let (reply, _keep) = oneshot::channel();
        let request = Request::GetData(PathWatch { path: path.to_owned(), watch: true });
        let watch = Some(WatchRequest { by: WatchedBy::GetData, path: path.to_owned(), event });
        let call = Call { request, reply, watch, cells: Vec::new(), _permit: None };
        self.machine.command(Action::Call(Box::new(call)));
        self.sent(0);
        self.reply(1, 10, Ok(Response::Data(None, rowlock_proto::Stat::default()))).unwrap();
        receiver
    }

    pub(super) fn sent(&mut self, seconds: u64) -> Vec<RequestFrame> {
        self.machine.tick(self.at(seconds)).unwrap();
        let mut frames = Vec::new();
        while let Some(frame) = frame::split(&mut self.machine.effects.out, 1 << 20).unwrap() {
            let frame = decode::request(frame).unwrap();
            // The probe, which every attachment begins with, is answered already.
            frames.extend((frame.xid != Xid(0)).then_some(frame));
        }
        frames
    }

    pub(super) fn reply(
        &mut self,
        xid: i32,
        zxid: i64,
        result: Result<Response, ErrorCode>,
    ) -> Result<(), Fault> {
        self.reply_at(xid, zxid, result, 0)
    }

    pub(super) fn reply_at(
        &mut self,
        xid: i32,
        zxid: i64,
        result: Result<Response, ErrorCode>,
        s: u64,
    ) -> Result<(), Fault> {
        let mut out = BytesMut::new();
        let header = ReplyHeader { xid: Xid(xid), zxid: Zxid(zxid), err: result.as_ref().err().copied() };
        encode::reply(header, result.as_ref().ok(), &mut out);
        self.machine.frame(one(&mut out), self.at(s))
    }

    /// Tells the waiting calls, as the task does.
    pub(super) fn settle(&mut self) {
        std::mem::take(&mut self.machine.effects.done).into_iter().for_each(Done::complete);
    }

    pub(super) fn error(&mut self, outcome: &mut Outcome) -> Error {
        self.settle();
        outcome.try_recv().unwrap().unwrap_err()
    }
}

pub(super) fn one(out: &mut BytesMut) -> Bytes {
    frame::split(out, 1 << 20).unwrap().unwrap()
}

pub(super) fn sync() -> Request {
    Request::Sync("/".to_owned())
}

#[test]
fn a_session_is_opened_and_taken_up_again_with_its_password_and_position() {
    let mut it = Rig::new();
    assert_eq!(it.hello(0).session_id, SessionId::NONE);
    it.welcome(1, 0).unwrap();
    assert_eq!(it.machine.vitals().state, SessionState::Connected);
    let _outcome = it.call(sync());
    it.sent(0);
    it.reply(1, 77, Ok(Response::Path("/".into()))).unwrap();
    it.cut();
    assert!(matches!(it.machine.vitals().state, SessionState::Suspended { .. }));
    let hello = it.hello(1);
    assert_eq!((hello.session_id, hello.last_zxid_seen), (SessionId(1), Zxid(77)));
    assert_eq!(hello.password, Bytes::from_static(&[5; 16]));
    it.welcome(1, 3).unwrap();
    assert_eq!(it.machine.vitals().attachments, 2);
    let valid_until = it.machine.vitals().valid_until;
    assert_eq!(valid_until, Some(it.at(1) + TIMEOUT / 10 * 9), "from the sending of the handshake");
}

#[test]
fn a_refusal_ends_an_existing_session_but_only_the_connection_of_a_new_one() {
    let mut it = Rig::new();
    it.hello(0);
    assert!(matches!(it.welcome(0, 0), Err(Fault::Refused)));
    assert_eq!(it.machine.ending(), None);
    let mut it = Rig::up();
    it.cut();
    it.hello(1);
    it.welcome(0, 1).unwrap();
    assert_eq!(it.machine.ending(), Some(Ending::Expired));
}

#[test]
fn replies_out_of_order_break_the_connection() {
    let mut it = Rig::up();
    let (_a, _b) = (it.call(sync()), it.call(sync()));
    assert_eq!(it.sent(0).iter().map(|frame| frame.xid.0).collect::<Vec<_>>(), [1, 2]);
    assert!(matches!(it.reply(2, 1, Ok(Response::Path("/".into()))), Err(Fault::OutOfOrder)));
    assert!(matches!(it.reply(-8, 1, Ok(Response::Empty)), Err(Fault::OutOfOrder)), "nobody had asked");
}

#[test]
fn calls_in_flight_fail_and_calls_not_sent_wait_for_the_next_connection() {
    let mut it = Rig::up();
    let mut sent = it.call(sync());
    assert_eq!(it.sent(0).len(), 1);
    let mut unsent = it.call(sync());
    it.cut();
    assert_eq!(it.error(&mut sent), Error::ConnectionLoss);
    assert!(unsent.try_recv().is_err());
    it.attach(1);
    assert_eq!(it.sent(1), [RequestFrame { xid: Xid(1), request: sync() }]);
}

#[test]
fn a_call_that_nobody_waits_for_any_more_is_not_sent() {
    let mut it = Rig::up();
    drop(it.call(sync()));
    let _kept = it.call(Request::Sync("/kept".into()));
    assert_eq!(it.sent(0).len(), 1);
}

#[test]
fn a_removal_stays_behind_the_create_it_takes_back_and_is_repeated_over_reconnects() {
    let mut it = Rig::up();
    let _create = it.call(Request::Sync("/stands-for-a-create".into()));
    it.machine.command(Action::Removal(ZnodeRemoval::new(
        "/l".into(),
        "id".into(),
        Some("/l/id1".into()),
        None,
    )));
    let _later = it.call(Request::Sync("/later".into()));
    let opcodes =
        |frames: Vec<RequestFrame>| frames.iter().map(|f| f.request.opcode().as_str()).collect::<Vec<_>>();
    assert_eq!(opcodes(it.sent(0)), ["sync", "delete", "sync"]);
    it.cut();
    it.attach(1);
    assert_eq!(opcodes(it.sent(1)), ["delete"]);
    it.reply(1, 5, Err(ErrorCode::NoNode)).unwrap();
    assert!(it.sent(1).is_empty());
}

#[test]
fn only_heartbeats_move_the_deadline_and_by_when_they_were_sent() {
    let mut it = Rig::up();
    let second_tenths = |it: &Rig| (it.machine.vitals().valid_until.unwrap() - it.start).as_millis() / 100;
    assert_eq!(second_tenths(&it), 81);
    let _outcome = it.call(sync());
    it.sent(2);
    it.reply_at(1, 1, Ok(Response::Path("/".into())), 2).unwrap();
    assert_eq!(second_tenths(&it), 81);
    assert_eq!(it.sent(3)[0].xid, Xid::PING);
    it.reply_at(-2, 1, Ok(Response::Empty), 5).unwrap();
    assert_eq!(second_tenths(&it), 111);
}

#[test]
fn at_the_deadline_all_is_lost_even_with_a_connection_that_stands() {
    let mut it = Rig::up();
    let mut waiting = it.watch("/a");
    let mut in_flight = it.call(sync());
    it.sent(1);
    // The socket is alive, but no heartbeat is answered.
    it.sent(3);
    it.machine.heard(it.at(7));
    let valid_until = it.machine.vitals().valid_until.unwrap();
    assert_eq!(it.machine.next_timer(), Some(valid_until));
    it.machine.tick(valid_until).unwrap();
    assert_eq!(it.machine.ending(), Some(Ending::DeadlinePassed));
    assert_eq!(it.error(&mut in_flight), Error::ConnectionLoss);
    assert!(waiting.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
    let mut late = it.call(sync());
    assert_eq!(it.error(&mut late), Error::SessionExpired);
    let mut final_write = std::mem::take(&mut it.machine.effects.out);
    let mut last = None;
    while let Some(frame) = frame::split(&mut final_write, 1 << 20).unwrap() {
        last = Some(decode::request(frame).unwrap().request);
    }
    assert_eq!(last, Some(Request::CloseSession));
}

#[test]
fn a_silent_server_is_given_up_in_time_to_try_another() {
    let mut it = Rig::up();
    it.sent(3);
    assert!(matches!(it.machine.tick(it.at(6)), Err(Fault::Silent)));
    it.cut();
    it.hello(6);
    assert!(it.machine.tick(it.at(8)).is_ok());
    assert!(it.machine.next_timer().unwrap() <= it.at(9));
}

#[test]
fn watches_are_registered_again_relative_to_the_last_reply_and_not_to_an_event() {
    let mut it = Rig::up();
    let mut fired = it.watch("/a");
    let mut out = BytesMut::new();
    let event = |path: &str| WatchedEvent {
        zxid: Zxid(99),
        event_type: EventType::NodeDeleted,
        state: 3,
        path: path.to_owned(),
    };
    encode::event(&event("/other-of-the-same-change"), &mut out);
    it.machine.frame(one(&mut out), it.at(1)).unwrap();
    it.cut();
    it.attach(2);
    let frames = it.sent(2);
    let Request::SetWatches(watches) = &frames[0].request else { panic!("{frames:?}") };
    assert_eq!((watches.relative_zxid, &watches.data[..]), (Zxid(10), &["/a".to_owned()][..]));
    encode::event(&event("/a"), &mut out);
    it.machine.frame(one(&mut out), it.at(2)).unwrap();
    it.reply_at(-8, 99, Ok(Response::Empty), 2).unwrap();
    it.settle();
    assert_eq!(fired.try_recv().unwrap().zxid, Zxid(99));
}

#[test]
fn a_close_goes_behind_what_waits_and_refuses_what_comes() {
    let mut it = Rig::up();
    let _earlier = it.call(sync());
    let (signal, mut closed) = oneshot::channel();
    it.machine.command(Action::Close(signal));
    let mut later = it.call(sync());
    assert_eq!(it.error(&mut later), Error::Closed);
    assert_eq!(it.sent(0).last().map(|frame| frame.request.clone()), Some(Request::CloseSession));
    // The reply is lost; the next handshake says that the session is gone.
    it.cut();
    it.hello(1);
    it.welcome(0, 1).unwrap();
    it.settle();
    assert_eq!(closed.try_recv(), Ok(Ok(())));
    assert_eq!(it.machine.ending(), Some(Ending::Closed));
}

#[test]
fn the_server_s_word_that_the_session_has_expired_ends_it() {
    let mut it = Rig::up();
    let mut outcome = it.call(sync());
    it.sent(0);
    it.reply(1, 3, Err(ErrorCode::SessionExpired)).unwrap();
    assert_eq!(it.machine.ending(), Some(Ending::Expired));
    assert_eq!(it.error(&mut outcome), Error::SessionExpired);
}

#[test]
fn a_server_that_requires_a_proof_ends_the_session_and_says_why_nothing_was_done() {
    let mut it = Rig::new();
    it.silent_about_extensions = true;
    it.attach(0);
    let mut outcome = it.call(sync());
    it.reply_at(0, 0, Err(ErrorCode::SessionClosedRequireSaslAuth), 0).unwrap();
    assert_eq!(it.machine.ending(), Some(Ending::AuthRequired));
    assert_eq!(it.error(&mut outcome), Error::AuthRequired);
    assert!(!Error::AuthRequired.may_have_happened() && !Error::AuthRequired.is_retryable());
}

#[test]
fn what_an_earlier_connection_was_asked_for_may_have_happened_before_a_proof_was_required() {
    let mut it = Rig::up();
    let mut write = it.call(Request::Delete { path: "/a".to_owned(), version: rowlock_proto::Version::ANY });
    let mut read = it.call(sync());
    it.sent(0);
    it.cut();
    it.silent_about_extensions = true;
    it.attach(1);
    let answer = it.reply_at(0, 0, Err(ErrorCode::SessionClosedRequireSaslAuth), 1);
    answer.unwrap();
    assert_eq!(it.error(&mut write), Error::ConnectionLoss);
    assert_eq!(it.error(&mut read), Error::ConnectionLoss);
}

#[test]
fn a_credential_that_comes_later_is_kept_back_alone_and_the_session_goes_on() {
    let mut it = Rig::new();
    assert!(it.machine.takes_connection(false));
    it.attach(0);
    let add = |it: &mut Rig| {
        let (signal, answered) = oneshot::channel();
        let credential = Credential { scheme: "digest".to_owned(), secret: Bytes::from_static(b"u:p") };
        it.machine.command(Action::Auth(credential, signal));
        answered
    };
    let refused = |it: &mut Rig, answer: &mut oneshot::Receiver<Result<(), Error>>| {
        it.settle();
        assert_eq!(answer.try_recv(), Ok(Err(Error::PlaintextPassword)));
    };
    let mut answer = add(&mut it);
    refused(&mut it, &mut answer);
    assert!(it.sent(0).iter().all(|frame| frame.xid != Xid::AUTH));
    // While nothing is connected, the next connection decides.
    it.cut();
    let mut answer = add(&mut it);
    assert!(it.machine.takes_connection(false));
    refused(&mut it, &mut answer);
    assert_eq!(it.machine.ending(), None);
    // One that was accepted keeps the session from other connections.
    let _accepted = add(&mut it);
    assert!(it.machine.takes_connection(true));
    it.attach(1);
    let mut accepted = BytesMut::new();
    encode::reply(ReplyHeader { xid: Xid::AUTH, zxid: Zxid(0), err: None }, None, &mut accepted);
    it.machine.frame(one(&mut accepted), it.at(1)).unwrap();
    it.cut();
    assert!(!it.machine.takes_connection(false));
    it.machine.reaches_no_private_connection();
    assert_eq!(it.machine.ending(), None, "it may come back to the first");
}

#[test]
fn a_read_whose_answer_cannot_be_decoded_fails_instead_of_being_asked_for_without_end() {
    let mut it = Rig::up();
    let mut outcome = it.call(Request::GetChildren(PathWatch { path: "/a".to_owned(), watch: false }));
    it.sent(0);
    let mut out = BytesMut::new();
    let names = Response::Children(vec!["bad".to_owned()]);
    encode::reply(ReplyHeader { xid: Xid(1), zxid: Zxid(7), err: None }, Some(&names), &mut out);
    let at = out.len() - 3;
    out[at] = 0xff;
    it.machine.frame(one(&mut out), it.at(0)).unwrap();
    assert_eq!(it.error(&mut outcome), Error::Rejected(ErrorCode::MarshallingError));
    let mut next = it.call(sync());
    it.sent(0);
    it.reply(2, 8, Ok(Response::Path("/".into()))).unwrap();
    it.settle();
    assert!(next.try_recv().unwrap().is_ok(), "the connection goes on");
}
