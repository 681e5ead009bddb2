//! The machine beside a server that names another one as the leader.

use rowlock_proto::lock::QueuePosition;
use rowlock_proto::{Response, Stat};

use super::rowlock_tests::{acquire, ask, claim, ok, rowlock};
use super::tests::{Rig, sync};
use super::*;
use crate::limits::CALLS_TO_ASK;

/// Connections to a server that does not lead, beside the leader `l:1`.
fn beside_the_leader(it: &mut Rig) {
    it.announced = Some("acquire 1\ntagged 1\nleader l:1\n");
    it.elsewhere = Elsewhere { endpoints: vec!["l:1".into()], at_once: true, ..Elsewhere::default() };
}

#[test]
fn a_session_that_returns_is_served_first_and_moves_to_the_leader_with_its_next_heartbeat() {
    let mut it = rowlock();
    it.cut();
    beside_the_leader(&mut it);
    let mut call = it.call(sync());
    it.attach(1);
    assert_eq!(it.sent(1)[0].request, sync());
    it.reply_at(1, 1, Ok(Response::Path("/".into())), 1).unwrap();
    it.settle();
    assert!(ok(&mut call));
    assert_eq!(it.sent(4)[0].xid, Xid::PING);
    let pong = it.reply_at(-2, 1, Ok(Response::Empty), 4);
    assert!(matches!(pong, Err(Fault::LedFrom(leader)) if leader == "l:1"));
}

#[test]
fn a_new_session_moves_to_the_leader_before_anything_is_asked_of_it() {
    let mut it = Rig::new();
    beside_the_leader(&mut it);
    it.silent_about_extensions = true;
    let _call = it.call(sync());
    it.attach(0);
    assert_eq!(it.sent(0), []);
    let announced = Response::Data(it.announced.map(|text| text.as_bytes().into()), Stat::default());
    let named = it.reply_at(0, 0, Ok(announced), 0);
    assert!(matches!(named, Err(Fault::LedFrom(leader)) if leader == "l:1"));
}

/// A session beside the leader `l:1`, which follows invitations.
fn follows_invitations() -> Rig {
    let mut it = rowlock();
    it.cut();
    it.announced = Some("acquire 1\ntagged 1\nleader l:1\n");
    it.elsewhere = Elsewhere { endpoints: vec!["l:1".into()], by_invitation: true, ..Elsewhere::default() };
    it.attach(1);
    it
}

/// One call and its answer, as the request of this number.
fn works(it: &mut Rig, xid: i32, seconds: u64) {
    let _outcome = it.call(sync());
    assert_eq!(it.sent(seconds)[0].xid, Xid(xid));
    it.reply_at(xid, 1, Ok(Response::Path("/".into())), seconds).unwrap();
}

/// The session asks for the leader, and is told this.
fn told_of_the_leader(it: &mut Rig, xid: i32, announced: &'static str) -> Result<(), Fault> {
    let asked = it.sent(1);
    assert!(matches!(&asked[..], [RequestFrame { xid: now, request: Request::GetData(_) }] if now.0 == xid));
    it.reply_at(xid, 1, Ok(Response::Data(Some(announced.as_bytes().into()), Stat::default())), 1)
}

const INVITED: &str = "acquire 1\ntagged 1\nleader l:1\ninvites 1\n";

#[test]
fn a_session_at_work_asks_for_the_leader_and_goes_there_if_it_is_invited() {
    let mut it = follows_invitations();
    let many = CALLS_TO_ASK as i32;
    (1..=many).for_each(|xid| works(&mut it, xid, 1));
    told_of_the_leader(&mut it, many + 1, "acquire 1\ntagged 1\nleader l:1\n").unwrap();
    (many + 2..=3 * many).for_each(|xid| works(&mut it, xid, 1));
    assert_eq!(it.sent(4)[0].xid, Xid::PING, "it has not asked again before the next heartbeat");
    it.reply_at(-2, 1, Ok(Response::Empty), 4).unwrap();
    works(&mut it, 3 * many + 1, 5);
    assert_eq!(it.sent(7)[0].xid, Xid::PING);
    it.reply_at(-2, 1, Ok(Response::Empty), 7).unwrap();
    let there = told_of_the_leader(&mut it, 3 * many + 2, INVITED);
    assert!(matches!(there, Err(Fault::LedFrom(leader)) if leader == "l:1"));
}

#[test]
fn an_invited_session_goes_when_it_holds_nothing_and_no_call_is_under_way() {
    for is_late in [false, true] {
        let mut it = follows_invitations();
        let (_outcome, _cell) = ask(&mut it, acquire());
        it.sent(1);
        it.reply_at(1, 5, Ok(Response::QueuePositions([QueuePosition::Held(claim())].into())), 1).unwrap();
        let many = CALLS_TO_ASK as i32;
        (2..=many).for_each(|xid| works(&mut it, xid, 1));
        told_of_the_leader(&mut it, many + 1, INVITED).unwrap();
        works(&mut it, many + 2, 1);
        if is_late {
            assert_eq!(it.sent(4)[0].xid, Xid::PING);
            it.reply_at(-2, 1, Ok(Response::Empty), 4).unwrap();
        }
        let _released = it.call(Request::Release([claim()].into()));
        it.sent(1);
        let released = it.reply_at(many + 3, 6, Ok(Response::Held(vec![true].into())), 4);
        assert_eq!(matches!(released, Err(Fault::LedFrom(_))), !is_late, "an old invitation is void");
    }
}

#[test]
fn an_idle_session_asks_for_no_leader() {
    let mut it = follows_invitations();
    for heartbeat in 1..4 {
        let now = 1 + 3 * heartbeat;
        assert_eq!(it.sent(now)[0].xid, Xid::PING);
        it.reply_at(-2, 1, Ok(Response::Empty), now).unwrap();
        assert_eq!(it.sent(now), []);
    }
}
