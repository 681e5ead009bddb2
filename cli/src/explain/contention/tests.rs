//! Waiting times of pairs, from entries and queues.

use super::*;

fn entry(time_ms: i64, event: &str, field: &str, ms: i64, label: &str) -> Value {
    json!({ "time_ms": time_ms, "event": event, field: ms, "label": label, "lock": "/locks/l" })
}

/// Returns the pairs of the only lock, in whole milliseconds.
fn pairs(book: &Book) -> Vec<(String, String, i64)> {
    let locks = book.locks();
    assert_eq!(locks.len(), 1);
    let of = |(pair, ms): (&Pair, &f64)| (pair.0.clone(), behind(pair.1.as_deref()), ms.round() as i64);
    locks[0].sorted().into_iter().map(of).collect()
}

fn rows(rows: &[(&str, &str, i64)]) -> Vec<(String, String, i64)> {
    rows.iter().map(|(waiter, holder, ms)| ((*waiter).to_owned(), (*holder).to_owned(), *ms)).collect()
}

#[test]
fn each_moment_of_a_wait_counts_behind_the_holder_of_that_moment() {
    let mut book = Book::new(By::Label, (0, 10_000));
    book.add_entries(&[
        entry(1_000, "granted", "waited_ms", 0, "a"),
        // `b` waits since 2,000 and `c` since 3,000; no client holds the lock from 5,000 to 5,500.
        entry(5_000, "released", "held_ms", 4_000, "a"),
        entry(5_500, "granted", "waited_ms", 3_500, "b"),
        entry(7_500, "released", "held_ms", 2_000, "b"),
        entry(7_500, "granted", "waited_ms", 4_500, "c"),
    ]);
    let expected = [("b", "a", 3_000), ("c", "a", 2_000), ("c", "b", 2_000), ("b", "(no holder)", 500)];
    let found = pairs(&book);
    assert_eq!(found[..4], rows(&expected), "and the other hand-over: {found:?}");
    let lock = &book.locks()[0];
    assert_eq!((lock.positions, lock.waits, lock.longest_ms, lock.gave_up), (3, 2, 4_500, 0));
    assert_eq!(lock.waited_ms.round() as i64, 3_500 + 4_500, "the pairs add up to the waits");
}

#[test]
fn holders_that_share_the_lock_share_the_waiting() {
    let mut book = Book::new(By::Label, (0, 10_000));
    book.add_entries(&[
        entry(4_000, "released", "held_ms", 4_000, "reader 1"),
        entry(4_000, "released", "held_ms", 4_000, "reader 2"),
        entry(4_000, "granted", "waited_ms", 4_000, "writer"),
    ]);
    assert_eq!(pairs(&book), rows(&[("writer", "reader 1", 2_000), ("writer", "reader 2", 2_000)]));
}

#[test]
fn only_the_time_of_the_question_counts_and_the_queue_of_this_moment_does() {
    let mut book = Book::new(By::Label, (1_000, 3_000));
    book.add_queue(
        "/locks/l",
        &json!({
            "holders": [{ "since_ms": 0, "label": "", "address": "10.0.0.7" }],
            "waiters": [{ "since_ms": 500, "label": "w" }, { "since_ms": null }],
        }),
    );
    // Ended after the report of the queue: the report has it.
    book.add_entries(&[
        entry(3_001, "granted", "waited_ms", 2_501, "w"),
        entry(2_000, "abandoned", "waited_ms", 200, "v"),
    ]);
    assert_eq!(pairs(&book), rows(&[("w", "10.0.0.7", 2_000), ("v", "10.0.0.7", 200)]));
    let lock = &book.locks()[0];
    assert_eq!((lock.positions, lock.waits, lock.longest_ms, lock.gave_up), (2, 2, 2_500, 1));
}

#[test]
fn a_lock_without_waits_is_not_listed_and_a_gap_is_known() {
    let mut book = Book::new(By::Session, (0, 9));
    book.add_entries(&[entry(5, "granted", "waited_ms", 0, "a"), json!({ "time_ms": 6, "event": "gap" })]);
    assert!(book.locks().is_empty() && book.has_gap);
    assert!(summary(&book, &[], 0.0).ends_with("no client waited for a lock."));
}
