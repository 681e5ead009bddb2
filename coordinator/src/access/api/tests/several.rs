//! Several locks in one request.

use rowlock_types::limits::API_LOCKS_MAX;

use super::*;

fn parts(names: &[&str]) -> Vec<Part> {
    let part = |name: &&str| Part { lock: name.parse().unwrap(), mode: Mode::Exclusive, limit: 0 };
    names.iter().map(part).collect()
}

async fn all(api: &Api, names: &[&str], wanted: AcquireOptions) -> Result<Vec<QueuePosition>, Refusal> {
    api.acquire(&caller(), &parts(names), wanted).await.map(|acquired| acquired.positions)
}

#[tokio::test]
async fn acquire_all_holds_all_locks_or_none_and_retry_finds_them() {
    let node = Node::start().await;
    let (api, other) = (node.api(), node.api());
    let (one, two) = (open(&api).await, open(&api).await);
    let held = all(&api, &["a", "b"], wanted(&one, "1", 0)).await.unwrap();
    assert!(held.iter().all(|place| matches!(place, QueuePosition::Held(_))), "{held:?}");
    assert_eq!(all(&other, &["a", "b"], wanted(&one, "1", 0)).await, Ok(held.clone()));
    let busy = all(&api, &["c", "b"], wanted(&two, "2", 0)).await.unwrap();
    assert!(
        matches!(&busy[..], [QueuePosition::Absent, QueuePosition::Busy { holder: Some(_), .. }]),
        "{busy:?}"
    );
    let free = |lock: &str| {
        node.context.replica.state.read().lock_queue(lock).is_none_or(|it| it.holder_count() == 0)
    };
    assert!(free("/locks/c"), "none is taken");
    for (name, place) in ["a", "b"].iter().zip(&held) {
        let (QueuePosition::Held(claim), name) = (place, name.parse().unwrap()) else {
            panic!("they are held")
        };
        assert_eq!(api.release(&caller(), &name, (&one, &Which::Token(claim.token))).await, Ok(true));
    }
    let late = all(&other, &["a", "b"], wanted(&one, "1", 0)).await;
    assert_eq!(late, Ok(vec![QueuePosition::Absent, QueuePosition::Absent]), "a late copy takes nothing");
    for names in [vec![], vec!["a"; API_LOCKS_MAX + 1], vec!["a", "a"]] {
        assert!(matches!(all(&api, &names, wanted(&two, "3", 0)).await, Err(Refusal::Bad(_))), "{names:?}");
    }
    let new = AcquireOptions { by: For::New(10_000), request_id: None, ..wanted(&one, "-", 0) };
    assert!(matches!(all(&api, &["a", "b"], new).await, Err(Refusal::Bad(_))), "it needs a lease");
    drop((api, other));
    node.stop().await;
}

#[tokio::test]
async fn waiting_acquire_all_is_granted_with_the_last_free_lock() {
    let node = Node::start().await;
    let api = Arc::new(node.api());
    let (one, two, three) = (open(&api).await, open(&api).await, open(&api).await);
    let first = all(&api, &["a"], wanted(&one, "1", 0)).await.unwrap();
    let second = all(&api, &["b"], wanted(&two, "2", 0)).await.unwrap();
    let waits = spawn("waits", {
        let (api, wanted) = (api.clone(), wanted(&three, "3", 5_000));
        async move { all(&api, &["a", "c", "b"], wanted).await }
    });
    let waiters = |lock: &str| {
        let state = node.context.replica.state.read();
        state.lock_queue(lock).map_or(0, |queue| queue.waiter_count())
    };
    while waiters("/locks/b") == 0 {
        time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(waiters("/locks/a"), 1, "it stands in all queues at once");
    for (name, secret, held) in [("b", &two, second), ("a", &one, first)] {
        let [QueuePosition::Held(claim)] = &held[..] else { panic!("{held:?}") };
        let which = Which::Token(claim.token);
        assert_eq!(api.release(&caller(), &name.parse().unwrap(), (secret, &which)).await, Ok(true));
    }
    let held = waits.await.unwrap().unwrap();
    assert!(held.iter().all(|place| matches!(place, QueuePosition::Held(_))), "{held:?}");
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn acquire_all_reports_a_lock_lost_while_waiting() {
    let node = Node::start().await;
    let api = Arc::new(node.api());
    let (one, two) = (open(&api).await, open(&api).await);
    let busy = all(&api, &["b"], wanted(&one, "1", 0)).await.unwrap();
    let waits = spawn("waits", {
        let (api, wanted) = (api.clone(), wanted(&two, "2", 5_000));
        async move { all(&api, &["a", "b"], wanted).await }
    });
    let state = || node.context.replica.state.read();
    while state().lock_queue("/locks/b").is_none_or(|queue| queue.waiter_count() == 0) {
        time::sleep(Duration::from_millis(1)).await;
    }
    let lost = state().lock_queue("/locks/a").and_then(|queue| queue.holders().next().map(|it| it.token));
    assert_eq!(api.force(&caller(), &"a".parse().unwrap(), lost.expect("it is held")).await, Ok(true));
    let [QueuePosition::Held(claim)] = &busy[..] else { panic!("{busy:?}") };
    let which = Which::Token(claim.token);
    assert_eq!(api.release(&caller(), &"b".parse().unwrap(), (&one, &which)).await, Ok(true));
    let stands = waits.await.unwrap().unwrap();
    assert!(matches!(&stands[..], [QueuePosition::Absent, QueuePosition::Held(_)]), "{stands:?}");
    drop(api);
    node.stop().await;
}
