//! Tests of a connection whose session is attached to another one.

use rowlock_proto::lock::SessionOptions;

use super::*;

#[test]
fn a_conversation_whose_session_moves_ends_without_a_word_about_it() {
    let mut stage = Stage::new();
    stage.ask(create("/a", CreateMode::Persistent));
    stage.ask(Request::GetData(unwatched("/a")));
    stage.ask(set("/a", "1"));
    let write = stage.submission().unwrap();
    stage.apply(write);
    stage.move_away();
    stage.look();
    stage.answer();
    assert_eq!(stage.told(), [(1, None)], "what was done before is answered");
    assert!(stage.submission().is_none());
    assert!(matches!(stage.conversation.take_end(), Some(EndReason::Told(CloseReason::SessionMoved))));
}

/// Two programs that share a session, as an old and a new handle of a C client do, must not take it from each
/// other in turns.
#[test]
fn a_connection_that_asks_for_nothing_stays_until_its_next_frame_when_its_session_moves() {
    for next in [Request::Ping, Request::GetData(unwatched("/a"))] {
        let mut stage = Stage::new();
        stage.ask(Request::GetData(watched("/")));
        stage.answer();
        stage.told();
        stage.move_away();
        stage.look();
        stage.change_by_another(set("/", "seen elsewhere"));
        stage.look();
        stage.answer();
        assert!(stage.conversation.take_end().is_none() && stage.conversation.accepts());
        assert_eq!(stage.told(), [], "its watches are gone");
        stage.ask(next);
        assert!(matches!(stage.conversation.take_end(), Some(EndReason::Told(CloseReason::SessionMoved))));
        assert_eq!(stage.told(), []);
    }
}

#[test]
fn a_connection_that_waits_or_ends_its_session_by_hanging_up_is_closed_when_its_session_moves() {
    let waits = |stage: &mut Stage| stage.ask(create("/a", CreateMode::Persistent));
    let pings = |stage: &mut Stage| stage.ask(Request::Ping);
    let has_a_grace = |stage: &mut Stage| {
        stage.ask(Request::SessionOptions(SessionOptions { disconnect_grace_ms: 500 }));
        stage.answer();
    };
    for prepare in [&waits as &dyn Fn(&mut Stage), &pings, &has_a_grace] {
        let mut stage = Stage::new();
        prepare(&mut stage);
        stage.move_away();
        stage.look();
        assert!(matches!(stage.conversation.take_end(), Some(EndReason::Told(CloseReason::SessionMoved))));
    }
}

#[test]
fn a_write_that_comes_behind_the_move_of_its_session_is_not_answered() {
    let mut stage = Stage::new();
    stage.ask(create("/a", CreateMode::Persistent));
    let write = stage.submission().unwrap();
    let answer = Applied { zxid: Zxid(1), result: Err(ErrorCode::SessionMoved), attached: None };
    write.reply_to.push(Message::applied(write.tag, answer));
    stage.look();
    stage.answer();
    assert_eq!(stage.told(), []);
    assert!(matches!(stage.conversation.take_end(), Some(EndReason::Told(CloseReason::SessionMoved))));
}
