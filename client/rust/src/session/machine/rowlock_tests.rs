//! The machine against a server with extensions: tags, resending, notices, verification, the grace.

use std::sync::Arc;

use rowlock_proto::lock::{Acquire, Claim, Notice, NoticeEvent, QueuePosition};
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::{FencingToken, Stat, Version};

use super::tests::{Outcome, Rig, one, sync};
use super::*;
use crate::error::LostReason;
use crate::session::Call;
use crate::session::lock_states::{LockState, LockStateCell};
use crate::session::znode_removal::ZnodeRemoval;
use rowlock_proto::{ErrorCode, Response};

const ALL: &str = "acquire 1\ntagged 1\nsession-options 1\nreport 1\noperate 1\n";

pub(super) fn rowlock() -> Rig {
    let mut it = Rig::new();
    it.announced = Some(ALL);
    it.attach(0);
    it
}

fn set(path: &str) -> Request {
    Request::SetData(SetData { path: path.to_owned(), data: None, version: Version::ANY })
}

pub(super) fn acquire() -> Request {
    Request::Acquire([Acquire::exclusive("/l", "_c_a-lock-")].into())
}

pub(super) fn claim() -> Claim {
    Claim { path: "/l/_c_a-lock-0000000000".into(), token: FencingToken(7) }
}

/// The tags of what is sent, and what they carry.
fn tags(it: &mut Rig, seconds: u64) -> Vec<(u64, u64, Request)> {
    let tagged = |frame: RequestFrame| match frame.request {
        Request::Tagged { id, acked, request } => Some((id, acked, *request)),
        _ => None,
    };
    it.sent(seconds).into_iter().filter_map(tagged).collect()
}

pub(super) fn ask(it: &mut Rig, request: Request) -> (Outcome, Arc<LockStateCell>) {
    let (reply, outcome) = tokio::sync::oneshot::channel();
    let cell = LockStateCell::new();
    let call = Call { request, reply, watch: None, cells: vec![cell.clone()], _permit: None };
    it.machine.command(Action::Call(Box::new(call)));
    (outcome, cell)
}

fn push(it: &mut Rig, event: NoticeEvent) {
    let mut out = bytes::BytesMut::new();
    encode::notice(Zxid(9), &Notice { claim: claim(), event }, &mut out);
    it.machine.frame(one(&mut out), it.at(2)).unwrap();
    it.settle();
}

pub(super) fn ok(outcome: &mut Outcome) -> bool {
    matches!(outcome.try_recv(), Ok(Ok(_)))
}

#[test]
fn nothing_is_sent_before_the_server_has_said_what_it_understands() {
    let mut it = Rig::new();
    it.announced = Some(ALL);
    it.silent_about_extensions = true;
    let _call = it.call(sync());
    it.attach(0);
    assert_eq!(it.sent(0), [], "a call overtook the probe");
    assert_eq!(it.machine.vitals().extensions, None);
    it.announce(0);
    assert_eq!(it.sent(0).len(), 1);
    assert!(it.machine.vitals().extensions.is_some_and(|extensions| extensions.has_locks()));
}

#[test]
fn writes_are_tagged_and_reads_are_not() {
    let mut it = rowlock();
    let _calls = [it.call(set("/a")), it.call(sync()), it.call(set("/b"))];
    let frames = it.sent(0);
    assert!(matches!(&frames[0].request, Request::Tagged { id: 1, acked: 0, .. }));
    assert_eq!(frames[1].request, sync());
    assert!(matches!(&frames[2].request, Request::Tagged { id: 2, acked: 0, .. }));
    it.reply(1, 5, Ok(Response::Stat(Stat::default()))).unwrap();
    let _later = it.call(set("/c"));
    assert_eq!(tags(&mut it, 0), [(3, 1, set("/c"))]);
}

#[test]
fn what_is_unanswered_is_sent_again_in_its_order_with_its_ids_before_what_came_later() {
    let mut it = rowlock();
    let mut answered = it.call(set("/a"));
    let mut calls = [it.call(set("/b")), it.call(sync()), it.call(set("/c"))];
    it.sent(0);
    it.reply(1, 5, Ok(Response::Stat(Stat::default()))).unwrap();
    let _later = it.call(set("/d"));
    it.cut();
    it.settle();
    assert!(ok(&mut answered) && calls.iter_mut().all(|call| call.try_recv().is_err()), "told too early");
    it.attach(1);
    let frames = it.sent(1);
    assert_eq!(frames.iter().map(|frame| frame.xid.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(
        matches!(&frames[0].request, Request::Tagged { id: 2, acked: 1, request } if **request == set("/b"))
    );
    assert_eq!(frames[1].request, sync());
    assert!(
        matches!(&frames[2].request, Request::Tagged { id: 3, acked: 1, request } if **request == set("/c"))
    );
    assert!(
        matches!(&frames[3].request, Request::Tagged { id: 4, acked: 1, request } if **request == set("/d"))
    );
}

#[test]
fn a_call_that_was_dropped_is_not_sent_again_and_holds_no_id() {
    let mut it = rowlock();
    let dropped = it.call(set("/a"));
    it.sent(0);
    it.cut();
    drop(dropped);
    let _later = it.call(set("/b"));
    it.attach(1);
    assert_eq!(tags(&mut it, 1), [(2, 1, set("/b"))]);
}

#[test]
fn a_write_that_meets_a_plain_server_on_its_second_try_has_an_unknown_outcome() {
    let mut it = rowlock();
    let (mut sent, mut read) = (it.call(set("/a")), it.call(sync()));
    it.sent(0);
    let mut unsent = it.call(set("/b"));
    it.cut();
    it.announced = None;
    it.attach(1);
    assert_eq!(it.sent(1).len(), 2, "the read and the write that no server has seen");
    assert_eq!(it.error(&mut sent), Error::ConnectionLoss);
    it.reply(1, 5, Ok(Response::Path("/".into()))).unwrap();
    it.reply(2, 6, Ok(Response::Stat(Stat::default()))).unwrap();
    it.settle();
    assert!(ok(&mut read) && ok(&mut unsent));
}

#[test]
fn extension_requests_are_never_sent_to_a_plain_server() {
    let mut it = Rig::up();
    let mut refused = it.call(acquire());
    assert_eq!(it.sent(0), []);
    assert!(matches!(it.error(&mut refused), Error::Unsupported(_)));
}

#[test]
fn a_refusal_for_the_moment_is_repeated_after_a_pause_with_its_id_and_in_order() {
    let mut it = rowlock();
    let mut calls = [it.call(set("/a")), it.call(set("/b"))];
    it.sent(0);
    it.reply(1, 0, Err(ErrorCode::ThrottledOp)).unwrap();
    it.reply(2, 0, Err(ErrorCode::ThrottledOp)).unwrap();
    let _later = it.call(set("/c"));
    assert_eq!(it.sent(0), [], "no pause");
    assert!(it.machine.next_timer().unwrap() <= it.at(1));
    assert_eq!(tags(&mut it, 1), [(1, 0, set("/a")), (2, 0, set("/b")), (3, 0, set("/c"))]);
    it.reply(3, 5, Ok(Response::Stat(Stat::default()))).unwrap();
    it.settle();
    assert!(ok(&mut calls[0]));
}

#[test]
fn an_operation_that_a_node_did_not_do_in_time_is_refused_and_not_asked_for_again() {
    let mut it = rowlock();
    let mut call = it.call(Request::Operate("/v1/rebalance?node=3&percent=5".to_owned()));
    it.sent(0);
    it.reply(1, 0, Err(ErrorCode::OperationTimeout)).unwrap();
    it.settle();
    assert!(matches!(it.error(&mut call), Error::Rejected(ErrorCode::OperationTimeout)));
    assert_eq!(it.sent(1), []);
}

#[test]
fn a_server_of_another_cluster_ends_the_session_and_nothing_is_sent_to_it() {
    let mut it = Rig::up_to("acquire 1\ntagged 1\ncluster c1\n");
    it.cut();
    it.attach(1);
    assert_eq!(it.machine.ending(), None, "the same cluster");
    it.cut();
    let mut unsent = it.call(set("/a"));
    it.announced = Some("acquire 1\ntagged 1\ncluster c2\n");
    it.attach(2);
    assert_eq!(it.machine.ending(), Some(Ending::OtherCluster));
    assert_eq!(it.error(&mut unsent), Error::OtherCluster);
    let mut pinned = Rig::with(
        Machine::new(super::tests::TIMEOUT, Duration::ZERO, Vec::new()).of_cluster(Some(ClusterId(7))),
    );
    pinned.announced = Some("acquire 1\ncluster c1\n");
    pinned.attach(0);
    assert_eq!(pinned.machine.ending(), Some(Ending::OtherCluster));
}

#[test]
fn a_server_that_takes_us_for_an_older_connection_is_left_and_the_calls_are_kept() {
    let mut it = rowlock();
    let mut call = it.call(set("/a"));
    it.sent(0);
    assert!(matches!(it.reply(1, 0, Err(ErrorCode::SessionMoved)), Err(Fault::Moved)));
    it.cut();
    it.attach(1);
    assert_eq!(tags(&mut it, 1), [(1, 0, set("/a"))]);
    it.reply(1, 5, Ok(Response::Stat(Stat::default()))).unwrap();
    it.settle();
    assert!(ok(&mut call));
}

#[test]
fn at_the_end_of_the_session_what_was_sent_is_unknown_and_what_was_not_did_not_happen() {
    let mut it = rowlock();
    let mut sent = it.call(set("/a"));
    it.sent(0);
    it.cut();
    let mut unsent = it.call(set("/b"));
    it.hello(1);
    it.welcome(0, 1).unwrap();
    assert_eq!(it.machine.ending(), Some(Ending::Expired));
    assert_eq!(it.error(&mut sent), Error::ConnectionLoss);
    assert_eq!(it.error(&mut unsent), Error::SessionExpired);
}

#[test]
fn a_grant_is_learnt_from_the_reply_or_from_a_notice_and_a_loss_from_a_notice() {
    let mut it = rowlock();
    let (_outcome, cell) = ask(&mut it, acquire());
    it.sent(0);
    let waiting = QueuePosition::Waiting { claim: claim(), ahead: 1, holder: None };
    it.reply(1, 7, Ok(Response::QueuePositions(vec![waiting].into()))).unwrap();
    it.settle();
    assert_eq!(cell.get(), LockState::Waiting);
    push(&mut it, NoticeEvent::Granted);
    assert_eq!(cell.get(), LockState::Held { since: it.at(2) });
    push(&mut it, NoticeEvent::Forced);
    assert_eq!(cell.get(), LockState::Lost(LostReason::ForceReleased));
}

#[test]
fn held_places_are_verified_on_the_next_connection_before_anything_else() {
    let mut it = rowlock();
    let (_outcome, cell) = ask(&mut it, acquire());
    it.sent(0);
    it.reply_at(1, 7, Ok(Response::QueuePositions(vec![QueuePosition::Held(claim())].into())), 1).unwrap();
    it.settle();
    assert_eq!(cell.get(), LockState::Held { since: it.at(1) });
    it.cut();
    let _call = it.call(sync());
    it.attach(2);
    let frames = it.sent(2);
    assert_eq!(frames[0].request, Request::Verify([claim()].into()));
    assert_eq!(frames[1].request, sync());
    it.reply(1, 8, Err(ErrorCode::ThrottledOp)).unwrap();
    it.reply(2, 8, Ok(Response::Path("/".into()))).unwrap();
    assert_eq!(it.sent(3)[0].request, Request::Verify([claim()].into()), "it must be known");
    it.settle();
    assert!(matches!(cell.get(), LockState::Held { .. }));
}

#[test]
fn a_removal_on_such_a_server_is_one_request() {
    let mut it = rowlock();
    it.machine.command(Action::Removal(ZnodeRemoval::abandon("/l".into(), "_c_a-lock-".into(), None)));
    assert!(matches!(&it.sent(0)[0].request, Request::Abandon(attempts) if attempts.len() == 1));
    it.cut();
    it.attach(1);
    assert_eq!(it.sent(1).len(), 1, "until it is answered");
    it.reply(1, 5, Ok(Response::Empty)).unwrap();
    it.cut();
    it.attach(2);
    assert_eq!(it.sent(2), []);
}

#[test]
fn an_unwaited_release_is_repeated_over_reconnects_and_its_lock_counts_as_held_no_more() {
    let mut it = rowlock();
    let (_outcome, _cell) = ask(&mut it, acquire());
    it.sent(0);
    it.reply_at(1, 7, Ok(Response::QueuePositions(vec![QueuePosition::Held(claim())].into())), 1).unwrap();
    it.settle();
    let removal = ZnodeRemoval::release(("/l".into(), "_c_a-lock-".into()), claim(), None);
    it.machine.command(Action::Removal(removal));
    assert_eq!(it.sent(1)[0].request, Request::Release([claim()].into()));
    it.cut();
    it.attach(2);
    let frames = it.sent(2);
    assert_eq!(frames[0].request, Request::Verify([claim()].into()), "its cell is alive");
    assert_eq!(frames[1].request, Request::Release([claim()].into()));
    assert!(!it.machine.lock_states.hold_nothing());
    it.reply(1, 8, Ok(Response::Held(vec![true].into()))).unwrap();
    it.reply(2, 9, Ok(Response::Held(vec![true].into()))).unwrap();
    assert!(it.machine.lock_states.hold_nothing(), "the session cannot move to the leader");
    it.cut();
    it.attach(3);
    assert_eq!(it.sent(3), []);
}

#[test]
fn the_grace_is_asked_for_on_each_connection_and_bounds_the_deadline_while_cut_off() {
    let grace = Duration::from_secs(2);
    let mut it = Rig::with(Machine::new(super::tests::TIMEOUT, grace, Vec::new()));
    it.announced = Some(ALL);
    it.attach(0);
    let asks = |frames: &[RequestFrame]| matches!(&frames[0].request, Request::SessionOptions(options) if options.disconnect_grace_ms == 2_000);
    assert!(asks(&it.sent(0)));
    let full = it.machine.vitals().valid_until.unwrap();
    it.machine.disconnected(it.at(1));
    assert_eq!(it.machine.vitals().valid_until, Some(it.at(1) + grace.mul_f64(0.9)));
    it.attach(2);
    assert!(it.machine.vitals().valid_until.unwrap() > full && asks(&it.sent(2)));
    it.machine.disconnected(it.at(3));
    it.machine.tick(it.at(5)).unwrap();
    assert_eq!(it.machine.ending(), Some(Ending::DeadlinePassed));
}

#[test]
fn a_plain_server_is_not_asked_for_a_grace_and_keeps_the_whole_timeout() {
    let mut it = Rig::with(Machine::new(super::tests::TIMEOUT, Duration::from_secs(1), Vec::new()));
    it.attach(0);
    assert_eq!(it.sent(0), []);
    let full = it.machine.vitals().valid_until;
    it.machine.disconnected(it.at(1));
    assert_eq!(it.machine.vitals().valid_until, full);
}

#[test]
fn a_sequential_create_keeps_its_id_however_often_the_connection_breaks() {
    let mut it = rowlock();
    let (path, data, acl, flags) = ("/s-".to_owned(), None, None, 2);
    let create = Request::Create2(Create { path, data, acl, flags });
    let mut outcome = it.call(create.clone());
    for second in 0..5 {
        assert_eq!(tags(&mut it, second), [(1, 0, create.clone())]);
        it.cut();
        it.attach(second);
    }
    it.sent(5);
    it.reply(1, 5, Ok(Response::PathStat("/s-0000000000".into(), Stat::default()))).unwrap();
    it.settle();
    assert!(ok(&mut outcome));
}

fn large(bytes: usize) -> Request {
    let data = Some(vec![7; bytes].into());
    Request::SetData(SetData { path: "/z".to_owned(), data, version: Version::ANY })
}

#[test]
fn a_request_that_no_server_takes_is_refused_and_never_sent() {
    let mut it = rowlock();
    let (mut too_large, _fits) = (it.call(large(1 << 20)), it.call(large((1 << 20) - 100)));
    let sent = it.sent(0);
    assert_eq!(sent.len(), 1, "the one that fits");
    let max = 0xf_ffff;
    assert!(matches!(it.error(&mut too_large), Error::TooLarge { bytes, max: m } if bytes > max && m == max));
    it.cut();
    let mut while_down = it.call(large(1 << 20));
    assert!(matches!(it.error(&mut while_down), Error::TooLarge { .. }), "at once");
}

#[test]
fn a_server_may_say_how_much_it_takes() {
    let mut it = Rig::new();
    it.announced = Some("acquire 1\ntagged 1\nframe-bytes 1000\n");
    it.attach(0);
    let (mut too_large, _fits) = (it.call(large(1_000)), it.call(large(900)));
    assert_eq!(it.sent(0).len(), 1);
    assert!(matches!(it.error(&mut too_large), Error::TooLarge { max: 1_000, .. }));
}

#[test]
fn a_request_over_which_connection_after_connection_breaks_is_given_up_and_the_others_go_on() {
    let mut it = rowlock();
    let (mut cause, mut behind) = (it.call(set("/cause")), it.call(set("/behind")));
    for breaks in 0..crate::limits::TRIES {
        assert_eq!(it.sent(0).len(), 2, "after {breaks}");
        it.settle();
        assert!(cause.try_recv().is_err(), "after {breaks}");
        it.cut();
        it.attach(0);
    }
    assert_eq!(it.error(&mut cause), Error::GivenUp { connections: crate::limits::TRIES });
    assert_eq!(it.sent(0).len(), 1);
    it.reply(1, 5, Ok(Response::Stat(Stat::default()))).unwrap();
    it.settle();
    assert!(behind.try_recv().unwrap().is_ok());
}

#[test]
fn a_connection_is_of_use_once_it_has_done_something_that_was_asked_of_it() {
    let mut it = rowlock();
    assert!(!it.machine.was_of_use(), "it was only accepted");
    let _outcome = it.call(set("/a"));
    it.sent(0);
    it.reply(1, 5, Ok(Response::Stat(Stat::default()))).unwrap();
    it.cut();
    assert!(it.machine.was_of_use());
    it.attach(0);
    assert!(!it.machine.was_of_use());
    it.sent(3);
    it.reply(-2, 0, Ok(Response::Empty)).unwrap();
    assert!(it.machine.was_of_use(), "a heartbeat");
}

#[test]
fn a_connection_on_which_nothing_failed_is_sound_although_nothing_was_asked() {
    let mut it = rowlock();
    assert!(it.machine.is_sound(), "an idle session");
    let _outcome = it.call(set("/a"));
    it.sent(0);
    assert!(!it.machine.is_sound(), "this request may be what ends the connection");
    it.cut();
    assert!(!it.machine.is_sound());
    it.attach(0);
    it.sent(0);
    it.reply(1, 5, Ok(Response::Stat(Stat::default()))).unwrap();
    assert!(it.machine.is_sound());
    it.sent(3);
    assert!(!it.machine.is_sound(), "a heartbeat without an answer");
}
