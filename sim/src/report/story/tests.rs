//! Stories of made-up traces.

use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use super::*;
use crate::report::sample;

fn at(millis: u64, what: What) -> Happening {
    Happening { at: Nanos::from_millis(millis), what }
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_short_run_has_a_line_for_each_event() {
    let (n1, c1) = (HostId(0), HostId(1));
    let lock = || "orders".to_owned();
    let record = [
        at(0, What::Host { host: n1, name: "node1".into(), kind: "node" }),
        at(0, What::Up { host: n1 }),
        at(0, What::Host { host: c1, name: "client1".into(), kind: "client" }),
        at(0, What::Up { host: c1 }),
        at(250, What::Leads { host: n1, term: 1 }),
        at(300, What::Waits { host: c1, lock: lock() }),
        at(310, What::Holds { host: c1, lock: lock(), token: 5 }),
        at(1_000, What::Fault { text: "kill client1 for 2s".into(), hosts: vec![c1] }),
        at(1_000, What::Down { host: c1, how: "killed" }),
        at(3_000, What::Healed { text: "kill client1 for 2s".into(), hosts: vec![c1] }),
        at(3_000, What::Up { host: c1 }),
    ];
    let short = condensed(&record, Nanos::from_millis(10_000), &Verdict::Held);
    assert_eq!(
        text(&short),
        "    0.000 s  node1 and client1 begin.
    0.250 s  node1 leads (term 1).
    0.300 s  client1 waits for orders.
    0.310 s  client1 holds orders with token 5.
    1.000 s  Fault: kill client1 for 2s
    1.000 s  client1 is gone: killed.
    1.000 s  … 2.0 s in which nothing changes; 0 messages
    3.000 s  Over: kill client1 for 2s
    3.000 s  client1 is back.
    3.000 s  … 7.0 s in which nothing changes; 0 messages
   10.000 s  every promise held
"
    );
}

#[test]
fn quiet_lock_steps_are_condensed_except_before_a_broken_promise() {
    let (record, end) = sample::record(1, true);
    let full = in_full(&record);
    let short = condensed(&record, end, &Verdict::Broken("mutual-exclusion".into()));
    assert!(short.len() * 2 < full.len(), "{} of {}:\n{}", short.len(), full.len(), text(&short));
    assert!(short.iter().any(|line| line.text.contains("granted") && line.text.contains("tokens")));
    let violation = short.iter().find(|line| line.tone == Tone::Violation).unwrap();
    let close =
        |line: &&Line| line.at <= violation.at && line.at + std::time::Duration::from_secs(2) >= violation.at;
    let locks = |lines: &[Line]| lines.iter().filter(close).filter(|l| l.tone == Tone::Lock).count();
    assert_eq!(locks(&short), locks(&full));
    assert_eq!(short.last().unwrap().text, "BROKEN: mutual-exclusion");
}

#[test]
fn lines_are_in_the_order_of_their_times() {
    let (record, end) = sample::record(2, false);
    for lines in [in_full(&record), condensed(&record, end, &Verdict::Held)] {
        assert!(lines.is_sorted_by_key(|line| line.at), "{}", text(&lines));
    }
}

#[test]
fn numbers_have_commas() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(thousands).join(" "), "0 999 1,000 1,234,567");
}
