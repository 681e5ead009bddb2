//! Tries the rounds of a double barrier.

use super::*;

fn names(list: &str) -> Vec<String> {
    list.chars().map(String::from).collect()
}

fn round(members: &str) -> Round {
    Round { size: 3, members: names(members) }
}

#[test]
fn a_round_is_text() {
    for it in [round(""), round("abc")] {
        assert_eq!(Round::parse(it.format().as_bytes()), Some(it));
    }
    assert_eq!((Round::parse(b""), Round::parse(b"3"), Round::parse(&[0xff])), (None, None, None));
}

#[test]
fn a_round_opens_when_enough_are_here_and_takes_no_more() {
    assert_eq!(round("").entering("a", names("ab")), Entering::Wait(None));
    assert_eq!(round("").entering("a", names("cba")), Entering::Open(names("abc")));
    assert_eq!(round("").entering("d", names("dcba")), Entering::Open(names("abc")));
    assert_eq!(round("abc").entering("b", names("abc")), Entering::In);
    assert_eq!(round("abc").entering("b", names("a")), Entering::In, "it was opened with us");
    assert_eq!(round("").entering("b", names("acd")), Entering::Expelled);
}

#[test]
fn who_comes_too_late_waits_for_the_end_of_the_round_even_if_it_died_out() {
    assert_eq!(round("abc").entering("d", names("dcb")), Entering::Wait(Some("b".into())));
    assert_eq!(round("abc").entering("d", names("de")), Entering::Close);
}

#[test]
fn the_lowest_leaves_last() {
    assert_eq!(round("abc").leaving("b", &names("abc")), Leaving::Withdraw);
    assert_eq!(round("abc").leaving("b", &names("ac")), Leaving::Wait("a".into()));
    assert_eq!(round("abc").leaving("a", &names("abc")), Leaving::Wait("c".into()));
    assert_eq!(round("abc").leaving("a", &names("ab")), Leaving::Wait("b".into()));
    assert_eq!(round("abc").leaving("a", &names("a")), Leaving::Close);
    assert_eq!(round("abc").leaving("b", &names("")), Leaving::Out);
}

#[test]
fn members_that_die_are_not_waited_for_and_later_comers_neither() {
    assert_eq!(round("abc").leaving("b", &names("cd")), Leaving::Wait("c".into()), "the lowest died");
    assert_eq!(round("abc").leaving("b", &names("b")), Leaving::Close);
    assert_eq!(round("abc").leaving("b", &names("de")), Leaving::Out);
    assert_eq!(round("def").leaving("b", &names("bdef")), Leaving::Withdraw, "the next round is on");
}
