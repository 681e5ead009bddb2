//! Queries of reports, over HTTP and in the request `report`.
//!
//! Nothing may panic, and a valid query stays within the bounds of a report.

#![cfg_attr(feature = "libfuzzer", no_main)]

use rowlock_coordinator::access::report::question::{
    ContentionQuestion, HistoryQuestion, LocksQuestion, Question, Scope,
};
use rowlock_coordinator::limits::REPORT_MAX_ITEMS;
use rowlock_fuzz::{fuzz_target, within_worth};
use rowlock_proto::path;

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    let Ok(question) = within_worth(input, 16 << 10, 64, || Question::parse(&text)) else { return };
    let (limit, lock) = match &question {
        // A backup has no limit of its own; its pieces have.
        Question::Backup { .. } => return,
        Question::Access { lock, .. } => (1, Some(lock)),
        Question::Locks(LocksQuestion { limit, .. }) | Question::Sessions { limit, .. } => (*limit, None),
        Question::Queue { lock, limit, .. } => (*limit, Some(lock)),
        Question::History(HistoryQuestion { lock, limit, .. }) => (*limit, lock.as_ref()),
        Question::Contention(ContentionQuestion { scope, limit, .. }) => {
            (*limit, if let Scope::Lock(lock) = scope { Some(lock) } else { None })
        }
    };
    assert!((1..=REPORT_MAX_ITEMS).contains(&limit));
    assert!(lock.is_none_or(|lock| path::validate(lock).is_ok()));
});
