//! Failures of other lock services, tried on a healthy cluster, frame by frame: late and repeated releases,
//! retries, queues of readers and writers, several locks at once, deadlocks, names. Numbers as in
//! docs/testing.md.

use rowlock_proto::lock::{Acquire, Attempt, Claim, Mode, Notice, NoticeEvent, Owner, QueuePosition};
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, Request, Response};

use crate::support::cluster::Cluster;
use rowlock_frames::raw::{RawClient, SESSION_MS, exclusive, held, waiting};

/// One session on each node, the leader's first, and two more.
async fn sessions(cluster: &Cluster) -> [RawClient; 5] {
    let leader = cluster.leader().await;
    let mut ids = cluster.ids();
    ids.sort_by_key(|id| *id != leader);
    let attach = |n: usize| RawClient::attach(cluster.endpoint(ids[n % ids.len()]), SESSION_MS);
    [attach(0).await, attach(1).await, attach(2).await, attach(3).await, attach(4).await]
}

fn shared(lock: &str, prefix: &str) -> Acquire {
    Acquire { mode: Mode::Shared, ..exclusive(lock, prefix) }
}

fn owned(lock: &str, prefix: &str, owner: u64, mode: Mode) -> Acquire {
    Acquire { mode, owner: Owner::Named(owner), ..exclusive(lock, prefix) }
}

fn tagged(id: u64, request: Request) -> Request {
    Request::Tagged { id, acked: 0, request: Box::new(request) }
}

async fn granted(raw: &mut RawClient, claim: &Claim) {
    assert_eq!(raw.notice().await.1, Notice { claim: claim.clone(), event: NoticeEvent::Granted });
}

/// Whether nothing was pushed to the session before the answer to its next question.
async fn is_undisturbed(raw: &mut RawClient) -> bool {
    raw.call(Request::Sync("/".to_owned())).await.unwrap();
    raw.notices.is_empty() && raw.events.is_empty()
}

#[tokio::test]
async fn hazard_5_a_waiter_whose_predecessor_dies_waits_for_the_holder_and_then_holds() {
    let cluster = Cluster::start(3, "").await;
    let [mut holder, mut middle, mut last, ..] = sessions(&cluster).await;
    let first = held(holder.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    waiting(middle.acquire(exclusive("/locks/a", "_c_2-lock-")).await);
    let (claim, ahead) = waiting(last.acquire(exclusive("/locks/a", "_c_3-lock-")).await);
    assert_eq!(ahead, 2);
    middle.close().await;
    assert!(is_undisturbed(&mut last).await, "a predecessor that only waited grants nothing by its death");
    assert!(!last.verify(&claim).await);
    let (_, ahead) = waiting(last.acquire(exclusive("/locks/a", "_c_3-lock-")).await);
    assert_eq!(ahead, 1);
    assert!(holder.release(&first).await);
    granted(&mut last, &claim).await;
    assert!(last.verify(&claim).await);
}

#[tokio::test]
async fn hazard_5_a_grant_while_no_client_was_connected_is_found_by_asking_again() {
    let cluster = Cluster::start(3, "").await;
    let [mut holder, mut waiter, ..] = sessions(&cluster).await;
    let first = held(holder.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    let (claim, _) = waiting(waiter.acquire(exclusive("/locks/a", "_c_2-lock-")).await);
    waiter.wire.hang_up().await;
    assert!(holder.release(&first).await);
    let endpoint = cluster.endpoint(cluster.leader().await);
    let mut back = waiter.resume(endpoint).await.expect("the session lives");
    assert_eq!(held(back.acquire(exclusive("/locks/a", "_c_2-lock-")).await), claim);
    assert!(back.verify(&claim).await);
}

#[tokio::test]
async fn hazard_7_a_release_that_is_sent_again_frees_no_newer_lock_of_its_session() {
    let cluster = Cluster::start(3, "").await;
    let [mut raw, ..] = sessions(&cluster).await;
    let old = held(raw.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    // The answer to this one is lost with its connection.
    raw.send(tagged(1, Request::Release([old.clone()].into()))).await;
    let mut raw = raw.resume(cluster.endpoint(cluster.follower().await)).await.unwrap();
    let new = held(raw.acquire(exclusive("/locks/a", "_c_2-lock-")).await);
    assert!(new.token > old.token);
    assert!(!raw.release(&old).await, "not held any more");
    assert!(
        raw.held(tagged(1, Request::Release([old.clone()].into()))).await,
        "the outcome of the first time"
    );
    assert!(raw.verify(&new).await);
    // Nor does an abandoned attempt take another one with it.
    let attempt = Attempt { lock: "/locks/a".to_owned(), prefix: "_c_1-lock-".to_owned() };
    assert_eq!(raw.call(Request::Abandon(vec![attempt])).await, Ok(Response::Empty));
    assert!(raw.verify(&new).await);
}

#[tokio::test]
async fn hazard_8_a_release_by_others_of_others_twice_or_too_late_says_so_and_changes_nothing() {
    let cluster = Cluster::start(3, "").await;
    let [mut holder, mut other, mut next, ..] = sessions(&cluster).await;
    let claim = held(holder.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    let (waits, _) = waiting(next.acquire(exclusive("/locks/a", "_c_2-lock-")).await);
    assert!(!other.release(&claim).await, "by a session that does not hold it");
    let guessed = Claim { token: FencingToken(claim.token.0 - 1), ..claim.clone() };
    assert!(!holder.release(&guessed).await, "with another token");
    assert!(!next.release(&waits).await, "of a place that waits");
    assert!(holder.verify(&claim).await && is_undisturbed(&mut next).await);
    let twice = Request::Release(vec![claim.clone(), claim.clone()].into());
    assert_eq!(holder.call(twice).await, Ok(Response::Held(vec![true, false].into())));
    granted(&mut next, &waits).await;
    assert!(!holder.release(&claim).await, "twice");
    next.close().await;
    let Ok(Response::Held(held)) = other.call(Request::Release([waits].into())).await else { panic!() };
    assert_eq!(held[..], [false], "after its session has ended");
}

#[tokio::test]
async fn hazard_9_a_connection_that_the_session_has_left_gets_no_lock() {
    let cluster = Cluster::start(3, "").await;
    let [mut old, mut other, ..] = sessions(&cluster).await;
    let new = old.resume(cluster.endpoint(cluster.follower().await)).await.unwrap();
    let sent = old.send(Request::Acquire([exclusive("/locks/a", "_c_1-lock-")].into())).await;
    match old.answer(sent).await {
        None | Some(Err(ErrorCode::SessionMoved | ErrorCode::SessionExpired)) => {}
        other => panic!("{other:?}"),
    }
    let session = new.session();
    new.close().await;
    assert!(old.resume(cluster.endpoint(1)).await.is_none(), "session {session:?} has ended");
    assert_eq!(other.children("/locks/a").await, Vec::<String>::new());
    held(other.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
}

#[tokio::test]
async fn hazard_10_the_place_of_an_earlier_session_is_not_taken_for_ours() {
    let cluster = Cluster::start(3, "").await;
    let [mut before, mut now, ..] = sessions(&cluster).await;
    let old = held(before.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    // The same program comes back with a new session and asks with the same id.
    let (claim, ahead) = waiting(now.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    assert_eq!(ahead, 1);
    assert!(!now.release(&old).await);
    before.close().await;
    granted(&mut now, &claim).await;
    assert!(claim.token > old.token);
}

#[tokio::test]
async fn hazard_15_readers_pass_no_writer_and_are_granted_together_behind_it() {
    let cluster = Cluster::start(3, "").await;
    let [mut one, mut two, mut writer, mut three, mut four] = sessions(&cluster).await;
    let first = held(one.acquire(shared("/locks/rw", "_c_1-__READ__")).await);
    // A reader of kazoo's.
    two.create("/locks/rw/2__rlock__", "", CreateMode::EphemeralSequential).await.unwrap();
    let (write, ahead) = waiting(writer.acquire(exclusive("/locks/rw", "_c_3-__WRIT__")).await);
    assert_eq!(ahead, 2);
    let (third, _) = waiting(three.acquire(shared("/locks/rw", "_c_4-__READ__")).await);
    let (fourth, ahead) = waiting(four.acquire(shared("/locks/rw", "_c_5-__READ__")).await);
    assert_eq!(ahead, 4, "readers behind a writer wait, also beside readers that hold");
    // Who asks again keeps its place.
    for _ in 0..3 {
        assert_eq!(waiting(three.acquire(shared("/locks/rw", "_c_4-__READ__")).await), (third.clone(), 3));
    }
    assert!(one.release(&first).await);
    assert!(is_undisturbed(&mut writer).await, "one reader still holds");
    two.close().await;
    granted(&mut writer, &write).await;
    assert!(is_undisturbed(&mut three).await && is_undisturbed(&mut four).await);
    assert!(writer.release(&write).await);
    granted(&mut three, &third).await;
    granted(&mut four, &fourth).await;
    assert!(three.verify(&third).await && four.verify(&fourth).await);
}

#[tokio::test]
async fn hazard_22_several_locks_are_taken_all_or_none_so_opposite_orders_never_deadlock() {
    let cluster = Cluster::start(3, "").await;
    let [mut left, mut right, mut third, ..] = sessions(&cluster).await;
    let both = |n: &str, first: &str, second: &str| {
        vec![exclusive(first, &format!("_c_{n}-lock-")), exclusive(second, &format!("_c_{n}-lock-"))]
    };
    for round in 0..10 {
        // Both at once, in opposite orders.
        let (id_l, id_r) = (format!("l{round}"), format!("r{round}"));
        let sent_l = left.send(Request::Acquire(both(&id_l, "/locks/a", "/locks/b").into())).await;
        let sent_r = right.send(Request::Acquire(both(&id_r, "/locks/b", "/locks/a").into())).await;
        let claims_l = claims(left.answer(sent_l).await);
        let claims_r = claims(right.answer(sent_r).await);
        let left_first = claims_l[0].token < claims_r[0].token;
        let (first, claims_1, second, claims_2) = if left_first {
            (&mut left, claims_l, &mut right, claims_r)
        } else {
            (&mut right, claims_r, &mut left, claims_l)
        };
        assert_eq!(
            first.call(Request::Verify(claims_1.clone().into())).await,
            Ok(Response::Held(vec![true; 2].into()))
        );
        assert_eq!(
            first.call(Request::Release(claims_1.into())).await,
            Ok(Response::Held(vec![true; 2].into()))
        );
        let news = [second.notice().await.1, second.notice().await.1];
        assert!(
            news.iter()
                .all(|notice| notice.event == NoticeEvent::Granted && claims_2.contains(&notice.claim))
        );
        assert_eq!(
            second.call(Request::Release(claims_2.into())).await,
            Ok(Response::Held(vec![true; 2].into()))
        );
    }
    // A busy attempt leaves no places of the others; neither does one that is given up.
    let claim = held(left.acquire(exclusive("/locks/a", "_c_x-lock-")).await);
    let mut all = both("y", "/locks/b", "/locks/a");
    all.iter_mut().for_each(|acquire| acquire.wait = false);
    let positions = right.acquire_all(all).await;
    assert!(
        matches!(positions[..], [QueuePosition::Absent, QueuePosition::Busy { ahead: 1, .. }]),
        "{positions:?}"
    );
    // Its node may lag a little: without a sync it may show an older state.
    third.call(Request::Sync("/locks/b".to_owned())).await.expect("the cluster is whole");
    assert!(third.children("/locks/b").await.is_empty());
    let waits = both("z", "/locks/b", "/locks/a");
    let attempt =
        |acquire: &Acquire| Attempt { lock: acquire.lock.to_string(), prefix: acquire.prefix.to_string() };
    let attempts = waits.iter().map(attempt).collect();
    let positions = right.acquire_all(waits).await;
    assert!(
        matches!(positions[..], [QueuePosition::Held(_), QueuePosition::Waiting { .. }]),
        "{positions:?}"
    );
    assert_eq!(right.call(Request::Abandon(attempts)).await, Ok(Response::Empty));
    held(third.acquire(exclusive("/locks/b", "_c_3-lock-")).await);
    assert!(left.release(&claim).await);
    held(third.acquire(exclusive("/locks/a", "_c_3-lock-")).await);
}

fn claims(answer: Option<Result<Response, ErrorCode>>) -> Vec<Claim> {
    let Some(Ok(Response::QueuePositions(positions))) = answer else { panic!("{answer:?}") };
    let claim = |position| match position {
        QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. } => claim,
        other => panic!("{other:?}"),
    };
    positions.into_iter().map(claim).collect()
}

#[tokio::test]
async fn hazard_22_a_circle_of_waiters_is_refused_by_name_and_a_diamond_is_none() {
    let cluster = Cluster::start(3, "").await;
    let [mut a, mut b, mut c, mut d, _] = sessions(&cluster).await;
    let free = Mode::Exclusive;
    // D holds what B and C wait for; both hold what A waits for: a diamond.
    let bottom = held(d.acquire(owned("/locks/bottom", "d", 4, free)).await);
    held(b.acquire(owned("/locks/side", "b", 2, Mode::Shared)).await);
    held(c.acquire(owned("/locks/side", "c", 3, Mode::Shared)).await);
    let top = held(a.acquire(owned("/locks/top", "a", 1, free)).await);
    waiting(b.acquire(owned("/locks/bottom", "b", 2, free)).await);
    waiting(c.acquire(owned("/locks/bottom", "c", 3, free)).await);
    waiting(a.acquire(owned("/locks/side", "a", 1, free)).await);
    // D would wait for A, who waits for B, who waits for D.
    let QueuePosition::Deadlock(circle) = d.acquire(owned("/locks/top", "d", 4, free)).await else {
        panic!("not refused")
    };
    assert!(circle.len() >= 2, "{circle:?}");
    assert_eq!(circle[0].path, top.path, "the first is the one that would be waited for: {circle:?}");
    assert_eq!(d.children("/locks/top").await.len(), 1, "nothing is left behind");
    // A client that takes no part in detection may wait.
    let (waits, _) = waiting(d.acquire(exclusive("/locks/top", "d-unnamed")).await);
    assert!(d.verify(&bottom).await);
    let attempt = Attempt { lock: "/locks/top".to_owned(), prefix: "d-unnamed".to_owned() };
    d.call(Request::Abandon(vec![attempt])).await.unwrap();
    assert!(!d.verify(&waits).await);
}

#[tokio::test]
async fn hazard_23_a_downgrade_keeps_its_place_and_of_two_readers_none_passes_the_other() {
    let cluster = Cluster::start(3, "").await;
    let [mut one, mut two, mut writer, ..] = sessions(&cluster).await;
    let convert = |claim: &Claim, mode| Request::Convert {
        claim: claim.clone(),
        mode,
        prefix: "_c_up-__WRIT__".to_owned(),
    };
    let write = held(one.acquire(exclusive("/locks/rw", "_c_1-__WRIT__")).await);
    let (read, _) = waiting(two.acquire(shared("/locks/rw", "_c_2-__READ__")).await);
    let positions = one.call(convert(&write, Mode::Shared)).await;
    assert_eq!(
        positions,
        Ok(Response::QueuePositions(vec![QueuePosition::Held(write.clone())].into())),
        "same place and token"
    );
    granted(&mut two, &read).await;
    for (raw, claim) in [(&mut one, &write), (&mut two, &read)] {
        let Ok(Response::QueuePositions(positions)) = raw.call(convert(claim, Mode::Exclusive)).await else {
            panic!()
        };
        assert!(matches!(positions[..], [QueuePosition::Busy { .. }]), "{positions:?}");
        assert!(raw.verify(claim).await, "and holds on");
    }
    assert!(two.release(&read).await);
    let (waits, _) = waiting(writer.acquire(exclusive("/locks/rw", "_c_3-__WRIT__")).await);
    let Ok(Response::QueuePositions(positions)) = one.call(convert(&write, Mode::Exclusive)).await else {
        panic!()
    };
    assert!(matches!(positions[..], [QueuePosition::Busy { .. }]), "a writer waits: {positions:?}");
    let attempt = Attempt { lock: "/locks/rw".to_owned(), prefix: "_c_3-__WRIT__".to_owned() };
    writer.call(Request::Abandon(vec![attempt])).await.unwrap();
    assert!(!writer.verify(&waits).await);
    let Ok(Response::QueuePositions(mut positions)) = one.call(convert(&write, Mode::Exclusive)).await else {
        panic!()
    };
    let up = held(positions.remove(0));
    assert!(up.token > write.token && one.verify(&up).await && !one.verify(&write).await);
}

#[tokio::test]
async fn hazard_25_locks_and_attempts_whose_names_begin_alike_are_different_ones() {
    let cluster = Cluster::start(3, "").await;
    let [mut one, mut two, ..] = sessions(&cluster).await;
    let names = [
        "/locks/1",
        "/locks/10",
        "/locks/1/0",
        "/locks/1-lock-0000000000",
        "/locks/\u{4e2d}\u{6587}",
        "/locks/a b",
    ];
    for name in names {
        held(one.acquire(exclusive(name, "_c_1-lock-")).await);
        let (_, ahead) = waiting(two.acquire(exclusive(name, "_c_2-lock-")).await);
        assert_eq!(ahead, 1, "{name}");
    }
    // Attempts of one session: each finds its own place, whichever came first.
    for (lock, first, second) in [("/locks/x", "_c_10", "_c_1"), ("/locks/y", "_c_1", "_c_10")] {
        let holds = held(one.acquire(exclusive(lock, first)).await);
        let (waits, ahead) = waiting(one.acquire(exclusive(lock, second)).await);
        assert_eq!(ahead, 1);
        assert_eq!(held(one.acquire(exclusive(lock, first)).await), holds);
        assert_eq!(waiting(one.acquire(exclusive(lock, second)).await), (waits, 1));
        let attempt = Attempt { lock: lock.to_owned(), prefix: second.to_owned() };
        one.call(Request::Abandon(vec![attempt])).await.unwrap();
        assert!(one.verify(&holds).await);
        assert_eq!(two.children(lock).await.len(), 1);
    }
    for (lock, prefix) in [
        ("/", "a"),
        ("locks", "a"),
        ("/locks/", "a"),
        ("/locks//a", "a"),
        ("/locks/a", "a/b"),
        ("/locks/a", ""),
    ] {
        let refused = one.call(Request::Acquire([exclusive(lock, prefix)].into())).await;
        assert_eq!(refused, Err(ErrorCode::BadArguments), "{lock} {prefix}");
    }
}
