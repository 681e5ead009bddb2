//! Page of a made-up run.

use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, MessageId, What};

use super::*;
use crate::report::sample;

fn heading(verdict: Verdict) -> Heading {
    Heading {
        title: "Seed 4711".into(),
        verdict,
        facts: vec![("nodes".into(), "3".into()), ("clients".into(), "4".into())],
        reproduce: "rowlock sim run --seed 4711 --seconds 40".into(),
    }
}

/// Checks the text of the page. To view the page in a browser, write it with `ROWLOCK_SAMPLE_REPORT=FILE`.
#[test]
fn the_page_of_a_run_is_complete_and_self_contained() {
    let (record, end) = sample::record(7, true);
    let page = page(&heading(Verdict::Broken("mutual-exclusion: two hold orders/42".into())), &record, end);
    for part in
        ["Seed 4711", "mutual-exclusion", "node3", "client4", "orders/42", "power lost", "partition node1"]
    {
        assert!(page.contains(part), "{part} is missing");
    }
    for outside in ["http://", "https://", "src=", "href=", "@import", "{{"] {
        assert!(!page.contains(outside), "{outside} is there");
    }
    if let Some(file) = std::env::var_os("ROWLOCK_SAMPLE_REPORT") {
        rowlock_world_file(&file, &page);
    }
}

#[allow(clippy::disallowed_methods, reason = "a file for a person to look at, outside any world")]
fn rowlock_world_file(file: &std::ffi::OsStr, page: &str) {
    std::fs::write(file, page).unwrap();
}

#[test]
fn the_page_is_bounded_and_shows_how_much_is_left_out() {
    let hosts = [HostId(0), HostId(1)];
    let mut record: Vec<Happening> = hosts
        .iter()
        .map(|host| What::Host { host: *host, name: format!("node{}", host.0 + 1), kind: "node" })
        .chain(hosts.iter().map(|host| What::Up { host: *host }))
        .map(|what| Happening { at: Nanos(0), what })
        .collect();
    let count = 150_000u64;
    for n in 0..count {
        let (message, at) = (MessageId(n), Nanos(n * 100_000));
        let (from, to) = (hosts[0], hosts[1]);
        let label = format!("append {}", n % 50);
        record.push(Happening { at, what: What::Sent { message, from, to, bytes: 100, label } });
        let what = if n % 100 == 0 { What::Lost { message } } else { What::Arrived { message } };
        record.push(Happening { at: Nanos(at.0 + 50_000), what });
    }
    let page = page(&heading(Verdict::Held), &record, Nanos(0));
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    assert!(page.contains(&format!("\"sent\":{count},\n\"lost\":1500")));
}

#[test]
fn lost_messages_are_kept_first_and_no_period_is_left_out() {
    let (record, end) = sample::record(3, false);
    let scene = Scene::of(&record, end);
    let lost = scene.messages.iter().filter(|message| message.lost).count();
    let thin = thinned(&scene.messages, &[], lost + 200);
    assert_eq!(thin.len(), lost + 200);
    assert_eq!(thin.iter().filter(|message| message.lost).count(), lost);
    assert!(thin.is_sorted_by_key(|message| message.sent));
    let kept: Vec<u64> = thin.iter().filter(|m| !m.lost).map(|m| m.sent.0 / 1_000_000_000).collect();
    for ten in 0..4 {
        assert!(kept.iter().filter(|second| **second / 10 == ten).count() > 20);
    }
}

#[test]
fn no_text_of_the_record_becomes_markup() {
    let text = "</script><script>alert(1)</script> {{data}} & \"quoted\" \\".to_owned();
    let record = [Happening { at: Nanos(1), what: What::Violation { text: text.clone() } }];
    let mut heading = heading(Verdict::Broken(text.clone()));
    heading.facts.push((text.clone(), text));
    let page = page(&heading, &record, Nanos(2));
    assert!(!page.contains("<script>alert"));
    assert_eq!(page.matches("</script>").count(), 2);
}
