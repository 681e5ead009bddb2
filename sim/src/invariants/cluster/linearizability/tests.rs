//! Histories that one order explains, and histories that no order explains.

use rowlock_proto::{ErrorCode, Version};
use rowlock_state::outcome::SessionEnd;

use super::super::super::check_history;
use super::super::testing::{create, data, delete, get, invoked, logged, returned, set, stat, znode};
use super::*;
use crate::history::Millis;
use crate::history::client::ZnodeChange;

const A: &str = "/data/a";
const B: &str = "/data/b";

fn check_facts(facts: &[Fact]) -> Result<(), String> {
    check_history(Linearizability::default(), facts)
}

fn created() -> Result<Answer, Failure> {
    Ok(Answer::Created { path: A.to_owned(), stat: stat(1, 1, 0) })
}

fn was_set(version: i32) -> Result<Answer, Failure> {
    Ok(Answer::Set(stat(1, 1, version)))
}

fn read(text: &str, version: i32) -> Result<Answer, Failure> {
    Ok(Answer::Data(data(text), stat(1, 1, version)))
}

fn refused(code: ErrorCode) -> Result<Answer, Failure> {
    Err(Failure::Refused(code))
}

/// A call by itself.
fn call(who: usize, call: u64, op: Op, result: Result<Answer, Failure>) -> [Fact; 2] {
    [invoked(who, call, op), returned(who, call, result)]
}

fn one_after_another(calls: &[[Fact; 2]]) -> Vec<Fact> {
    calls.concat()
}

#[test]
fn calls_one_after_another_do_what_they_say() {
    let facts = one_after_another(&[
        call(1, 1, create(A), created()),
        call(2, 2, create(A), refused(ErrorCode::NodeExists)),
        call(1, 3, set(A, "1"), was_set(1)),
        call(2, 4, get(A, true), read("1", 1)),
        call(2, 5, delete(A), Ok(Answer::Deleted)),
        call(1, 6, set(A, "2"), refused(ErrorCode::NoNode)),
        call(1, 7, get(A, true), refused(ErrorCode::NoNode)),
    ]);
    assert_eq!(check_facts(&facts), Ok(()));
}

#[test]
fn answers_that_no_order_explains_are_caught() {
    let start = one_after_another(&[call(1, 1, create(A), created())]);
    for wrong in [
        call(1, 2, set(A, "1"), was_set(2)),
        call(2, 2, create(A), created()),
        call(2, 2, set(A, "1"), refused(ErrorCode::NoNode)),
        call(2, 2, get(A, true), read("other", 0)),
        call(2, 2, get(A, true), refused(ErrorCode::NoNode)),
    ] {
        assert!(check_facts(&[&start[..], &wrong].concat()).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_lost_update_is_caught() {
    let if_version = |text: &str| Op::Set { path: A.to_owned(), data: data(text), version: Version(0) };
    let facts = |second| {
        let start = one_after_another(&[call(1, 1, create(A), created())]);
        let both = [
            invoked(1, 2, if_version("1")),
            invoked(2, 3, if_version("2")),
            returned(2, 3, was_set(1)),
            returned(1, 2, second),
        ];
        [&start[..], &both].concat()
    };
    assert!(check_facts(&facts(was_set(1))).is_err());
    assert_eq!(check_facts(&facts(refused(ErrorCode::BadVersion))), Ok(()));
}

#[test]
fn calls_beside_each_other_may_be_in_any_order_but_in_one() {
    let facts = |first: i32, second: i32, text: &str| {
        let start = one_after_another(&[call(1, 1, create(A), created())]);
        let beside = [
            invoked(1, 2, set(A, "1")),
            invoked(2, 3, set(A, "2")),
            returned(1, 2, was_set(first)),
            returned(2, 3, was_set(second)),
        ];
        let end = one_after_another(&[call(3, 4, get(A, true), read(text, 2))]);
        [&start[..], &beside, &end].concat()
    };
    assert_eq!(check_facts(&facts(1, 2, "2")), Ok(()));
    assert_eq!(check_facts(&facts(2, 1, "1")), Ok(()));
    assert!(check_facts(&facts(2, 1, "2")).is_err());
    assert!(check_facts(&facts(1, 1, "2")).is_err());
}

#[test]
fn a_read_may_see_a_concurrent_write_but_no_older_state() {
    let start = one_after_another(&[call(1, 1, create(A), created())]);
    let beside = |text: &str, version| {
        let facts = [
            invoked(2, 2, get(A, true)),
            invoked(1, 3, set(A, "1")),
            returned(2, 2, read(text, version)),
            returned(1, 3, was_set(1)),
        ];
        [&start[..], &facts].concat()
    };
    assert_eq!(check_facts(&beside("new", 0)), Ok(()));
    assert_eq!(check_facts(&beside("1", 1)), Ok(()));
    // A write stays done once a read has shown it.
    let then = |text: &str, version| {
        let facts = [
            invoked(1, 2, set(A, "1")),
            invoked(2, 3, get(A, true)),
            returned(2, 3, read("1", 1)),
            invoked(3, 4, get(A, true)),
            returned(3, 4, read(text, version)),
        ];
        [&start[..], &facts].concat()
    };
    assert_eq!(check_facts(&then("1", 1)), Ok(()));
    assert!(check_facts(&then("new", 0)).is_err());
}

#[test]
fn an_unknown_call_may_run_until_its_session_goes_on() {
    let unknown = Err(Failure::Unknown);
    let facts = |tail: &[[Fact; 2]]| {
        let start = [call(1, 1, create(A), created()), call(1, 2, set(A, "1"), unknown.clone())];
        one_after_another(&[&start[..], tail].concat())
    };
    let old = |call_id| call(2, call_id, get(A, true), read("new", 0));
    let new = |call_id| call(2, call_id, get(A, true), read("1", 1));
    assert_eq!(check_facts(&facts(&[old(3), old(4)])), Ok(()));
    assert_eq!(check_facts(&facts(&[old(3), new(4)])), Ok(()), "it was late");
    assert!(check_facts(&facts(&[new(3), old(4)])).is_err());
    let goes_on = call(1, 5, set(B, "1"), refused(ErrorCode::NoNode));
    assert_eq!(check_facts(&facts(&[old(3), goes_on, new(4)])), Ok(()), "a refusal proves nothing here");
    let goes_on = || call(1, 5, create(B), created());
    assert!(check_facts(&facts(&[goes_on(), old(3), new(4)])).is_err());
    assert_eq!(check_facts(&facts(&[goes_on(), new(3)])), Ok(()), "it was done before");
    assert_eq!(check_facts(&facts(&[goes_on(), old(3)])), Ok(()), "it was not");
}

#[test]
fn a_call_that_was_not_done_has_no_effect() {
    let facts = |text: &str, version| {
        one_after_another(&[
            call(1, 1, create(A), created()),
            call(1, 2, set(A, "1"), Err(Failure::NotDone)),
            call(2, 3, get(A, true), read(text, version)),
        ])
    };
    assert_eq!(check_facts(&facts("new", 0)), Ok(()));
    assert!(check_facts(&facts("1", 1)).is_err());
}

#[test]
fn a_multi_ties_znodes_together_and_is_seen_whole() {
    let both = || Op::Multi(vec![set(A, "1"), set(B, "1")]);
    let done = Ok(Answer::Multi(vec![Answer::Set(stat(1, 1, 1)), Answer::Set(stat(1, 1, 1))]));
    let facts = |in_b: &str, version| {
        let start = one_after_another(&[call(1, 1, create(A), created()), call(1, 2, create(B), created())]);
        let tail = [
            invoked(1, 3, both()),
            invoked(2, 4, get(A, true)),
            returned(2, 4, read("1", 1)),
            invoked(2, 5, get(B, true)),
            returned(2, 5, read(in_b, version)),
            returned(1, 3, done.clone()),
        ];
        [&start[..], &tail].concat()
    };
    assert_eq!(check_facts(&facts("1", 1)), Ok(()));
    assert!(check_facts(&facts("new", 0)).is_err());
}

#[test]
fn a_multi_that_was_refused_has_changed_nothing() {
    let both = Op::Multi(vec![set(A, "1"), create(A)]);
    let facts = |result, text: &str, version| {
        one_after_another(&[
            call(1, 1, create(A), created()),
            call(1, 2, both.clone(), result),
            call(2, 3, get(A, true), read(text, version)),
        ])
    };
    let refused = |at| Err(Failure::RefusedAt(at, ErrorCode::NodeExists));
    assert_eq!(check_facts(&facts(refused(1), "new", 0)), Ok(()));
    assert!(check_facts(&facts(refused(1), "1", 1)).is_err());
    let wrong = Err(Failure::RefusedAt(0, ErrorCode::NoNode));
    assert!(check_facts(&facts(wrong, "new", 0)).is_err());
}

#[test]
fn an_ephemeral_goes_with_its_session() {
    let mode = CreateMode::Ephemeral;
    let ephemeral = Op::Create { path: A.to_owned(), data: data("new"), mode };
    let ended = Fact::SessionEnded { session: SessionId(1), end: SessionEnd::Expired, at: Millis(0) };
    let start = one_after_another(&[call(1, 1, ephemeral, created())]);
    let gone = call(2, 2, get(A, true), refused(ErrorCode::NoNode));
    let there = call(2, 2, get(A, true), read("new", 0));
    assert!(check_facts(&[&start[..], &gone].concat()).is_err());
    assert_eq!(check_facts(&[&start[..], &there].concat()), Ok(()));
    assert_eq!(check_facts(&[&start[..], std::slice::from_ref(&ended), &gone].concat()), Ok(()));
    assert!(check_facts(&[&start[..], &[ended], &there].concat()).is_err());
}

#[test]
fn many_calls_beside_each_other_end_the_search_and_not_the_run() {
    let mut facts = one_after_another(&[call(1, 1, create(A), created())]);
    facts.extend((0..12).map(|n| invoked(n + 2, n as u64 + 2, set(A, &n.to_string()))));
    facts.push(returned(2, 2, was_set(12)));
    assert_eq!(check_facts(&facts), Ok(()));
}

#[test]
fn a_number_that_is_given_again_makes_another_znode() {
    let mode = CreateMode::PersistentSequential;
    let numbered = Op::Create { path: "/data/".to_owned(), data: data("new"), mode };
    let facts = one_after_another(&[call(1, 1, create(A), created()), call(1, 2, set(A, "1"), was_set(1))]);
    let again =
        [znode(9, A, ZnodeChange::Created, Some(("new", stat(9, 9, 0)))), logged(1, 9, numbered, created())];
    let reads = call(2, 3, get(A, true), read("new", 0));
    assert_eq!(check_facts(&[&facts[..], &again, &reads].concat()), Ok(()));
    assert!(check_facts(&[&facts[..], &reads].concat()).is_err());
}

#[test]
fn a_create_may_be_refused_after_later_answers() {
    let no_node = || refused(ErrorCode::NoNode);
    let facts = [
        invoked(1, 1, create(A)),
        invoked(1, 2, set(A, "1")),
        returned(1, 2, no_node()),
        returned(1, 1, no_node()),
    ];
    assert_eq!(check_facts(&facts), Ok(()), "it has no parent");
    let facts = [&facts[..3], &[returned(1, 1, created())]].concat();
    assert!(check_facts(&facts).is_err());
}

#[test]
fn a_delete_may_be_refused_after_later_answers() {
    let start = one_after_another(&[call(1, 1, create(A), created())]);
    // Both answers come in one packet; the client's tasks report them in the order in which the tasks wake.
    let facts = |of_set, of_delete| {
        let sent = [invoked(2, 2, delete(A)), invoked(2, 3, set(A, "1"))];
        let told = [returned(2, 3, of_set), returned(2, 2, of_delete)];
        [&start[..], &sent, &told].concat()
    };
    let not_empty = || refused(ErrorCode::NotEmpty);
    assert_eq!(check_facts(&facts(was_set(1), not_empty())), Ok(()), "it has children");
    assert_eq!(check_facts(&facts(refused(ErrorCode::NoNode), Ok(Answer::Deleted))), Ok(()));
    assert!(check_facts(&facts(was_set(1), Ok(Answer::Deleted))).is_err());
    assert!(check_facts(&facts(refused(ErrorCode::NoNode), not_empty())).is_err());
    // Another client may see the write before any of them is answered.
    let seen = call(3, 4, get(A, true), read("1", 1));
    let facts = [
        &start[..],
        &[invoked(2, 2, delete(A)), invoked(2, 3, set(A, "1"))],
        &seen,
        &[returned(2, 2, not_empty()), returned(2, 3, was_set(1))],
    ];
    assert_eq!(check_facts(&facts.concat()), Ok(()));
}
