//! Contention, from the log's commands to the document.

use std::collections::BTreeMap;

use super::*;
use crate::access::report::contention::tests::{DAY_MS, Day};

/// Applies the day's commands up to its end. Returns the time at which the day begins.
async fn live_through(world: &mut World, day: &Day) -> i64 {
    let session = world.open();
    let begun_ms = world.time_ms;
    let mut commands = Vec::new();
    for (n, hold) in day.0.iter().enumerate() {
        commands.push((hold.requested_ms, true, n));
        commands.push((hold.released_ms, false, n));
    }
    commands.retain(|(at_ms, ..)| *at_ms <= DAY_MS);
    commands.sort_unstable();
    for (count, (at_ms, is_request, n)) in commands.into_iter().enumerate() {
        let hold = &day.0[n];
        // The world advances by a second before a command.
        world.time_ms = begun_ms + at_ms - 1_000;
        if is_request {
            let data = Some(hold.label().into());
            let request = Acquire { data, ..Acquire::exclusive(hold.path().as_str(), prefix(n as u32)) };
            world.run(session, Command::Client(Request::Acquire([request].into())));
        } else {
            world.abandon(session, &hold.path(), n as u32);
        }
        if count % 5_000 == 0 {
            // Waits for the history's thread, which drops events that arrive too fast.
            world.ask("/v1/history?limit=1").await;
        }
    }
    world.time_ms = begun_ms + DAY_MS - 1_000;
    world.open();
    begun_ms
}

#[tokio::test]
async fn a_day_of_300_locks_is_the_sum_of_what_the_clients_have_measured() {
    let (mut world, day) = (World::new(), Day::draw(64));
    let begun_ms = live_through(&mut world, &day).await;
    for since_ms in [0, DAY_MS / 2] {
        let window = (since_ms, DAY_MS);
        let query = format!("/v1/contention?limit=10000&since_ms={}", begun_ms + since_ms);
        let found = world.ask(&query).await;
        let known = ["gaps", "unknown_ms", "cut", "more"].map(|field| found[field].clone());
        assert_eq!(known, [json!([]), json!(0), json!(null), json!(false)]);
        assert_eq!(found["from_ms"], begun_ms + since_ms);
        let measured = day.waited_in(window);
        let locks = found["locks"].as_array().unwrap();
        let shown: BTreeMap<String, i64> = locks
            .iter()
            .map(|lock| (lock["lock"].as_str().unwrap().to_owned(), lock["waited_ms"].as_i64().unwrap()))
            .collect();
        println!("{} locks, {} hours", shown.len(), found["waited_ms"].as_i64().unwrap() / 3_600_000);
        assert_eq!(shown, measured);
        assert_eq!(found["waited_ms"], measured.values().sum::<i64>());
        let waits = day.0.iter().filter(|hold| hold.waited_in(window) > 0).count();
        assert_eq!((&found["waits"], &found["lock_count"]), (&json!(waits), &json!(measured.len())));
        let slices = found["slices"]["waited_ms"].as_array().unwrap();
        let in_slices: i64 = slices.iter().map(|slice| slice.as_i64().unwrap()).sum();
        assert!((in_slices - measured.values().sum::<i64>()).abs() <= 60, "60 parts, each rounded");
        for lock in locks.iter().step_by(30) {
            let path = lock["lock"].as_str().unwrap();
            let one = world.ask(&format!("{query}&lock={path}")).await;
            let pairs = one["locks"][0]["pairs"].as_array().unwrap().iter().map(|pair| {
                let name = |field: &str| pair[field].as_str().unwrap().to_owned();
                ((name("waiter"), name("holder")), pair["waited_ms"].as_i64().unwrap())
            });
            assert_eq!(pairs.collect::<BTreeMap<_, _>>(), day.pairs_in(path, window), "{path}");
        }
    }
}

#[tokio::test]
async fn a_reader_sees_the_waits_of_the_locks_and_positions_that_the_reader_may_read() {
    let mut world = World::new();
    let (bob, acl) = private();
    let a = world.open();
    for path in ["/secret", "/secret/x"] {
        let create = Create { path: path.to_owned(), data: None, acl: Some(acl.clone().into()), flags: 0 };
        world.run_as(a, &bob, Command::Client(Request::Create2(create))).unwrap();
    }
    let acquire_as = |world: &mut World, lock: &str, n: u32, acl: Option<Vec<Acl>>| {
        let mut request = acquire(lock, n, Mode::Exclusive);
        if let Some(acl) = acl {
            request.acl = Some(acl.into());
        }
        world.run_as(a, &private().0, Command::Client(Request::Acquire([request].into()))).unwrap();
    };
    for (lock, n, acl) in [
        ("/secret/x", 1, Some(&acl)),
        ("/secret/x", 2, Some(&acl)),
        ("/half", 3, Some(&acl)),
        ("/half", 4, None),
        ("/half", 5, Some(&acl)),
        ("/open", 6, None),
        ("/open", 7, None),
    ] {
        acquire_as(&mut world, lock, n, acl.cloned());
    }
    for round in ["in the queue", "in the history"] {
        world.open();
        let found = world.ask("/v1/contention").await;
        let shown = found.to_string();
        let locks: Vec<&str> =
            found["locks"].as_array().unwrap().iter().map(|lock| lock["lock"].as_str().unwrap()).collect();
        assert_eq!(locks, ["/half", "/open"], "{round}: {found}");
        assert!(!shown.contains("worker-3") && !shown.contains("worker-5"), "{round}: {found}");
        let half = &found["locks"][0];
        assert_eq!((&half["requests"], &half["behind"][0]["holder"]), (&json!(1), &json!(null)), "{round}");
        assert_eq!(found["lock_count"], 2, "{round}");
        let refused = world.ask_as("/v1/contention?lock=/secret/x", &[]).await;
        assert_eq!(refused, Err(Refusal::NotPermitted("/secret/x may not be read".to_owned())), "{round}");
        let all = world.ask_as("/v1/contention", &bob).await.unwrap();
        assert_eq!((&all["lock_count"], &all["requests"]), (&json!(3), &json!(7)), "{round}: {all}");
        let below = world.ask_as("/v1/contention?prefix=/sec", &bob).await.unwrap();
        assert_eq!(below["lock_count"], 1, "{round}: {below}");
        for (lock, n) in [
            ("/secret/x", 1),
            ("/secret/x", 2),
            ("/half", 3),
            ("/half", 4),
            ("/half", 5),
            ("/open", 6),
            ("/open", 7),
        ] {
            let attempt = Attempt { lock: lock.to_owned(), prefix: prefix(n) };
            world.run_as(a, &bob, Command::Client(Request::Abandon(vec![attempt]))).unwrap();
        }
    }
}

#[tokio::test]
async fn a_gap_of_the_history_is_in_the_document() {
    let mut world = World::new();
    let a = world.open();
    world.acquire(a, "/locks/x", 3, Mode::Exclusive);
    world.acquire(a, "/locks/x", 4, Mode::Exclusive);
    let last_ms = world.time_ms;
    // The history misses the session's changes.
    world.time_ms += 9_000;
    world.open();
    world.sink.installed(world.machine.last_zxid(), world.time_ms);
    world.acquire(a, "/locks/x", 5, Mode::Exclusive);
    let found = world.ask("/v1/contention?lock=/locks/x").await;
    let [gap] = &found["gaps"].as_array().unwrap()[..] else { panic!("{found}") };
    assert_eq!((&gap["reason"], &gap["missing"]), (&json!("snapshot"), &json!(null)), "{found}");
    assert_eq!((&gap["from_ms"], &gap["to_ms"]), (&json!(last_ms), &json!(last_ms + 10_000)), "{found}");
    assert_eq!((&found["unknown_ms"], &found["requests"]), (&json!(10_000), &json!(3)), "{found}");
}

#[tokio::test]
async fn thousands_of_locks_are_listed_up_to_the_limit() {
    let mut world = World::new();
    let a = world.open();
    for n in 0..3_000 {
        for waiter in [0, 1] {
            world.acquire(a, &format!("/locks/m/{n:05}"), 10 + 2 * n + waiter, Mode::Exclusive);
        }
    }
    let found = world.ask("/v1/contention?since_ms=0").await;
    let locks = found["locks"].as_array().unwrap();
    assert_eq!((locks.len(), &found["more"], &found["lock_count"]), (100, &json!(true), &json!(2_999)));
    assert_eq!(locks[0]["lock"], "/locks/m/00000", "the longest time first");
    let most = format!("/v1/contention?since_ms=0&limit={REPORT_MAX_ITEMS}");
    let place = world.reports.begin(&[], party(0)).unwrap();
    let text = place.answer(world.machine.freeze(), &most, Viewer::anyone()).await.unwrap();
    println!("{} bytes", text.len());
    assert!(text.len() < REPORT_MAX_BYTES + 20_000, "{}", text.len());
}
