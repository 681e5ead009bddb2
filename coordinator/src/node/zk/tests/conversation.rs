//! Tests of the conversation alone, step by step: the order of calls replaces the races of sockets.

mod moved;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use bytes::{Buf, Bytes, BytesMut};
use rowlock_consensus::status::Status;
use rowlock_env::sync::watch;
use rowlock_env::{busy, time};
use rowlock_metrics::Metrics;
use rowlock_proto::lock::QueuePosition;
use rowlock_proto::response::Response;
use rowlock_proto::{
    CreateMode, ErrorCode, Request, RequestFrame, SessionId, Xid, Zxid, decode, encode, frame,
};
use rowlock_sessions::{Keepalive, SessionTouch};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::Applied;
use tokio::sync::mpsc;

use super::client::{create, set, unwatched, watched};
use super::locks::acquire;
use super::node::{Reporter, config};
use crate::node::admin::NotBuilt;
use crate::node::context::Replica;
use crate::node::delivery::events::Dispatcher;
use crate::node::delivery::outbox::{self, CloseReason, Inbox, Message};
use crate::node::delivery::registry::{Door, Most, Registry};
use crate::node::delivery::watch::{WatchBounds, WatchTable};
use crate::node::proposer::{Proposer, Submission};
use crate::node::slow::SlowRequests;
use crate::node::zk::conversation::{Access, Attached, Conversation};
use crate::node::zk::end_reason::EndReason;
use crate::node::zk::read_only::Isolation;
use crate::node::zk::{ClientContext, Listener};

/// A conversation of a session that may have two watches, with a log that the test drives.
struct Stage {
    context: ClientContext,
    conversation: Conversation,
    inbox: Inbox,
    session: SessionId,
    password: [u8; 16],
    touches: mpsc::Receiver<Keepalive>,
    next_xid: i32,
}

impl Stage {
    fn new() -> Stage {
        let (to_leader, touches) = mpsc::channel(4);
        let context = ClientContext {
            new_sessions: Arc::new(crate::node::zk::NewSessions::new(0)),
            replica: Arc::new(Replica::default()),
            proposer: Proposer::new(mpsc::channel(1).0),
            admin: Arc::new(NotBuilt),
            reports: Arc::new(Reporter),
            touch: SessionTouch::new(to_leader),
            status: watch::channel(Status::default()).1,
            isolation: Arc::new(Isolation::new(false, Arc::default(), Duration::ZERO)),
            registry: Arc::new(Registry::new()),
            config: Arc::new(config()),
            audit: Default::default(),
            slow: Arc::new(SlowRequests::new(None, Arc::default())),
            metrics: Arc::new(Metrics::default()),
        };
        // Room for three paths of two bytes.
        let bounds = WatchBounds { connection: 3 * 258, ..WatchBounds::default() };
        *context.replica.watches.lock() = WatchTable::bounded_by(bounds);
        let password = [7; 16];
        let open = Command::OpenSession { proof: Proof::of(&password), timeout_ms: 10_000 };
        let opened = apply(&context, SessionId::NONE, open, None).attached.expect("a session opens");
        let (session, attachment) = (opened.session, opened.attachment);
        let (outbox, inbox) = outbox::channel();
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        let peer = context
            .registry
            .accepted(addr, Door::Plain, outbox, Most { connections: 1, of_address: 0, half_open: 1 })
            .unwrap();
        context.registry.attach(peer.id, session, attachment);
        let shared = Listener::new(context.clone()).shared();
        let identities = shared.neighbours.identities(addr.ip());
        let attached =
            Attached { session, attachment, timeout: Duration::from_secs(10).into(), access: Access::Full };
        let conversation = Conversation::new(shared, peer, attached, Zxid(1), identities);
        Stage { context, conversation, inbox, session, password, touches, next_xid: 0 }
    }

    fn ask(&mut self, request: Request) {
        self.next_xid += 1;
        let mut out = BytesMut::new();
        encode::request(&RequestFrame { xid: Xid(self.next_xid), request }, &mut out);
        let frame = frame::split(&mut out, usize::MAX >> 1).unwrap().unwrap();
        self.conversation.receive(frame, time::now());
    }

    fn submission(&mut self) -> Option<Submission> {
        self.conversation.next_submission()
    }

    fn apply(&self, submission: Submission) {
        let Submission { session, command, reply_to, tag, .. } = submission;
        // `apply` pushes the result under the lock, as on a node.
        let _ = apply(&self.context, session, command, Some((reply_to, tag)));
    }

    /// Applies a change by another connection of the session.
    fn change(&self, request: Request) {
        self.change_by(self.session, request);
    }

    fn change_by_another(&self, request: Request) {
        let open = Command::OpenSession { proof: Proof::of(&[8; 16]), timeout_ms: 10_000 };
        let opened = apply(&self.context, SessionId::NONE, open, None).attached.expect("a session opens");
        self.change_by(opened.session, request);
    }

    fn change_by(&self, session: SessionId, request: Request) {
        apply(&self.context, session, Command::Client(request), None).result.unwrap();
    }

    /// Attaches the session to another connection.
    fn move_away(&self) {
        let (session, proof) = (self.session, Proof::of(&self.password));
        let attach = Command::Reattach { from: None, session, proof, timeout_ms: 10_000 };
        apply(&self.context, SessionId::NONE, attach, None).result.unwrap();
    }

    fn look(&mut self) {
        busy::begin_turn();
        self.conversation.take_messages(&mut self.inbox, time::now());
    }

    fn answer(&mut self) {
        busy::begin_turn();
        self.conversation.answer(&mut self.inbox, time::now());
    }

    /// Returns xids and errors of the frames so far.
    fn told(&mut self) -> Vec<(i32, Option<ErrorCode>)> {
        let mut told = Vec::new();
        while self.conversation.output.has_remaining() {
            let mut frame: Bytes =
                frame::split(&mut self.conversation.output, usize::MAX >> 1).unwrap().expect("whole frames");
            let header = decode::reply_header(&mut frame).unwrap();
            told.push((header.xid.0, header.err));
        }
        told
    }
}

fn apply(
    context: &ClientContext,
    session: SessionId,
    command: Command,
    reply: Option<(outbox::Outbox, u64)>,
) -> Applied {
    let mut state = context.replica.state.write();
    let mut watches = context.replica.watches.lock();
    let mut sink = Dispatcher::new(&mut watches, &context.registry, &context.metrics);
    let attachment = Attachment(1);
    let proposal =
        Proposal { origin: Origin::default(), session, attachment, identities: Default::default(), command };
    let applied = state.apply(0, &proposal, &mut sink);
    if let Some((outbox, tag)) = reply {
        outbox.push(Message::applied(tag, applied.clone()));
    }
    applied
}

#[test]
fn a_change_between_a_look_into_the_inbox_and_a_read_is_told_before_the_read_shows_it() {
    let mut stage = Stage::new();
    stage.change(create("/a", CreateMode::Persistent));
    stage.ask(Request::GetData(watched("/a")));
    stage.answer();
    stage.ask(Request::GetData(unwatched("/a")));
    stage.look();
    stage.change(set("/a", "1"));
    stage.answer();
    assert_eq!(stage.told(), [(1, None), (Xid::EVENT.0, None), (2, None)]);
}

#[test]
fn a_grant_between_a_look_into_the_inbox_and_a_read_is_told_before_the_read_shows_it() {
    let mut stage = Stage::new();
    let open = Command::OpenSession { proof: Proof::of(&[8; 16]), timeout_ms: 10_000 };
    let opened = apply(&stage.context, SessionId::NONE, open, None).attached.expect("a session opens");
    let holder = opened.session;
    let of_holder = Command::Client(Request::Acquire([acquire("a-lock-")].into()));
    let held = apply(&stage.context, holder, of_holder, None).result.unwrap();
    let Response::QueuePositions(positions) = held else { panic!("{held:?}") };
    let [QueuePosition::Held(claim)] = &positions[..] else { panic!("{positions:?}") };
    stage.ask(Request::Acquire([acquire("b-lock-")].into()));
    let acquiring = stage.submission().unwrap();
    stage.apply(acquiring);
    stage.ask(Request::GetChildren(unwatched("/locks/a")));
    stage.look();
    let release = Command::Client(Request::Release([claim.clone()].into()));
    apply(&stage.context, holder, release, None).result.unwrap();
    stage.answer();
    assert_eq!(stage.told(), [(1, None), (Xid::NOTICE.0, None), (2, None)]);
}

#[tokio::test]
async fn a_change_between_a_look_into_the_inbox_and_a_report_is_told_before_the_report_shows_it() {
    let mut stage = Stage::new();
    stage.change(create("/a", CreateMode::Persistent));
    stage.ask(Request::GetData(watched("/a")));
    stage.answer();
    stage.ask(Request::Report("/v1/locks".to_owned()));
    stage.ask(create("/b", CreateMode::Persistent));
    stage.look();
    stage.change(set("/a", "1"));
    stage.answer();
    assert_eq!(stage.told(), [(1, None), (Xid::EVENT.0, None)]);
    assert!(stage.submission().is_none(), "a write waits for what was asked before it");
    let mut told = Vec::new();
    while told.is_empty() {
        tokio::task::yield_now().await;
        stage.look();
        stage.answer();
        told = stage.told();
    }
    assert_eq!(told, [(2, None)]);
    assert!(stage.submission().is_some());
}

#[test]
fn replies_and_events_go_out_in_the_order_of_their_changes() {
    let mut stage = Stage::new();
    stage.ask(Request::Exists(watched("/b")));
    stage.answer();
    stage.ask(create("/a", CreateMode::Persistent));
    stage.ask(create("/b", CreateMode::Persistent));
    let (first, second) = (stage.submission().unwrap(), stage.submission().unwrap());
    stage.apply(first);
    stage.apply(second);
    stage.look();
    stage.answer();
    let no_node = Some(ErrorCode::NoNode);
    assert_eq!(stage.told(), [(1, no_node), (2, None), (Xid::EVENT.0, None), (3, None)]);
}

#[test]
fn a_ping_that_the_leader_did_not_note_is_asked_about_again_and_answered() {
    let mut stage = Stage::new();
    stage.ask(Request::Ping);
    for is_recorded in [false, true] {
        assert!(!stage.conversation.must_ask_again(), "it is asked about");
        let asked = stage.touches.try_recv().unwrap();
        let Keepalive::Touch { confirm: Some(waiter), .. } = asked else { panic!("a ping is asked about") };
        waiter.answer(is_recorded);
        stage.look();
        stage.conversation.ask_again();
    }
    assert!(!stage.conversation.must_ask_again() && stage.touches.try_recv().is_err());
    assert_eq!(stage.told().len(), 1);
}

#[test]
fn a_conversation_comes_to_rest_once_with_each_answered_ping_unless_something_waits() {
    let mut stage = Stage::new();
    let ping = |stage: &mut Stage| {
        stage.ask(Request::Ping);
        assert!(!stage.conversation.has_come_to_rest(), "it waits for the leader's word");
        let Ok(Keepalive::Touch { confirm: Some(waiter), .. }) = stage.touches.try_recv() else {
            panic!("a ping is asked about")
        };
        waiter.answer(true);
        stage.look();
    };
    ping(&mut stage);
    assert!(stage.conversation.has_come_to_rest() && !stage.conversation.has_come_to_rest());
    stage.conversation.rest(&mut stage.inbox);
    assert_eq!(stage.told().len(), 1, "an answer that is not written yet stays");
    stage.ask(create("/a", CreateMode::Persistent));
    ping(&mut stage);
    assert!(!stage.conversation.has_come_to_rest(), "a request waits");
    let write = stage.submission().unwrap();
    stage.apply(write);
    stage.conversation.rest(&mut stage.inbox);
    stage.look();
    assert_eq!(stage.told().len(), 2, "nor does anything else that waits go");
}

#[test]
fn a_write_behind_a_read_is_held_until_the_read_is_answered() {
    let mut stage = Stage::new();
    stage.ask(create("/a", CreateMode::Persistent));
    stage.ask(Request::GetData(unwatched("/a")));
    stage.ask(set("/a", "1"));
    stage.ask(set("/a", "2"));
    let first = stage.submission().unwrap();
    assert!(stage.submission().is_none());
    stage.apply(first);
    stage.look();
    stage.answer();
    assert_eq!(stage.told(), [(1, None), (2, None)]);
    let (second, third) = (stage.submission().unwrap(), stage.submission().unwrap());
    assert!(stage.submission().is_none());
    // Results out of order do not happen; if they did, replies would still be in order.
    stage.apply(third);
    stage.look();
    stage.answer();
    assert_eq!(stage.told(), []);
    stage.apply(second);
    stage.look();
    stage.answer();
    assert_eq!(stage.told(), [(3, None), (4, None)]);
}

#[test]
fn no_more_frames_are_accepted_than_the_pipeline_holds() {
    let mut stage = Stage::new();
    for _ in 0..limits::PIPELINE_MAX_REQUESTS {
        assert!(stage.conversation.accepts());
        stage.ask(Request::Sync("/".to_owned()));
    }
    assert!(!stage.conversation.accepts());
    let first = stage.submission().unwrap();
    stage.apply(first);
    stage.look();
    stage.answer();
    assert!(stage.conversation.accepts());
}

#[test]
fn no_more_bytes_are_accepted_than_the_pipeline_holds() {
    let mut stage = Stage::new();
    let large = || {
        let data = Some(Bytes::from(vec![7; 1_000_000]));
        Request::SetData(rowlock_proto::request::SetData {
            path: "/".to_owned(),
            data,
            version: rowlock_proto::Version::ANY,
        })
    };
    for _ in 0..5 {
        assert!(stage.conversation.accepts());
        stage.ask(large());
    }
    assert!(!stage.conversation.accepts(), "five megabytes wait");
    let first = stage.submission().unwrap();
    stage.apply(first);
    stage.look();
    stage.answer();
    assert!(stage.conversation.accepts(), "one of them is answered");
}

#[test]
fn reads_stop_while_the_client_does_not_take_their_replies() {
    let mut stage = Stage::new();
    stage.change(create("/big", CreateMode::Persistent));
    stage.change(set("/big", &"x".repeat(100_000)));
    for _ in 0..50 {
        stage.ask(Request::GetData(unwatched("/big")));
    }
    stage.answer();
    stage.answer();
    assert!(stage.conversation.is_full() && !stage.conversation.accepts());
    let made = stage.told().len();
    assert!(made < 5, "{made} replies were made");
    stage.answer();
    assert_eq!(stage.told().len(), made);
}

/// The zxid of a reply shows how far the client has seen: the client asks other nodes for no older state.
#[test]
fn a_refusal_behind_an_event_says_the_events_zxid() {
    let mut stage = Stage::new();
    stage.change(create("/a", CreateMode::Persistent));
    stage.ask(Request::GetData(watched("/a")));
    stage.answer();
    stage.told();
    stage.change(set("/a", "1"));
    stage.look();
    stage.ask(Request::Check { path: "/a".to_owned(), version: rowlock_proto::Version(0) });
    stage.answer();
    let mut zxids = Vec::new();
    while stage.conversation.output.has_remaining() {
        let mut frame = frame::split(&mut stage.conversation.output, usize::MAX >> 1).unwrap().unwrap();
        let header = decode::reply_header(&mut frame).unwrap();
        zxids.push((header.xid, header.zxid));
    }
    assert_eq!(zxids, [(Xid::EVENT, Zxid(3)), (Xid(2), Zxid(3))]);
}

#[test]
fn a_node_that_leaves_answers_what_it_has_taken_and_takes_no_more() {
    let mut stage = Stage::new();
    stage.ask(create("/a", CreateMode::Persistent));
    let write = stage.submission().unwrap();
    stage.ask(Request::GetData(unwatched("/a")));
    stage.context.registry.close_all(CloseReason::Leaving);
    stage.look();
    assert!(!stage.conversation.accepts() && stage.conversation.take_end().is_none());
    stage.apply(write);
    stage.look();
    stage.answer();
    assert_eq!(stage.told(), [(1, None), (2, None)]);
    assert!(matches!(stage.conversation.take_end(), Some(EndReason::Finished)));
}

#[test]
fn a_node_that_leaves_closes_whoever_waits_for_nothing_and_in_the_end_everybody() {
    let mut idle = Stage::new();
    idle.context.registry.close_all(CloseReason::Leaving);
    idle.look();
    assert!(matches!(idle.conversation.take_end(), Some(EndReason::Told(CloseReason::Leaving))));
    let mut waiting = Stage::new();
    waiting.ask(Request::Sync("/".to_owned()));
    for reason in [CloseReason::Leaving, CloseReason::Leaving, CloseReason::Shutdown] {
        assert!(waiting.conversation.take_end().is_none());
        waiting.context.registry.close_all(reason);
        waiting.look();
    }
    assert!(matches!(waiting.conversation.take_end(), Some(EndReason::Told(CloseReason::Shutdown))));
}

#[test]
fn one_watch_too_many_is_an_error_and_the_end_of_the_connection() {
    let mut stage = Stage::new();
    for path in ["/a", "/b", "/c", "/b", "/d", "/e"] {
        stage.ask(Request::Exists(watched(path)));
    }
    stage.answer();
    let missing = Some(ErrorCode::NoNode);
    let want = [(1, missing), (2, missing), (3, missing), (4, missing), (5, Some(ErrorCode::SystemError))];
    assert_eq!(stage.told(), want);
    assert!(matches!(stage.conversation.take_end(), Some(EndReason::Finished)));
}

#[test]
fn a_connection_whose_task_does_not_keep_up_with_its_messages_is_over() {
    let mut stage = Stage::new();
    stage.ask(Request::AddWatch { path: "/".to_owned(), mode: 0 });
    stage.answer();
    for i in 0..=limits::OUTBOX_MAX_MESSAGES {
        stage.change(create(&format!("/{i}"), CreateMode::Persistent));
    }
    stage.look();
    let end = stage.conversation.take_end().unwrap();
    assert!(matches!(end, EndReason::Slow(_)) && end.is_overflow(), "{end}");
}
