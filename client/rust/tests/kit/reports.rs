//! Reports about locks, sessions and history, as types.

use rowlock_client::HistoryQuery;
use rowlock_client::report::{LockEventKind, ModeName};
use rowlock_env::{task, time};
use rowlock_testkit::Cluster;

use crate::support::{SOON, within};

#[tokio::test]
async fn a_client_reads_who_holds_who_waits_and_what_has_happened() {
    let cluster = Cluster::start_with(1, |config| config.history.enabled = true).await;
    let (a, b) = (cluster.client().await, cluster.client().await);
    let guard = within("a lock", a.mutex("x").request().label("writer").lock()).await.unwrap();
    let waiting = b.mutex("x");
    let waiting = task::spawn("waiter", async move { waiting.lock().await });
    let path = a.mutex("x").server_path();
    let deadline = time::now() + SOON;
    let queue = loop {
        let queue = a.report_queue(&path, 10).await.unwrap();
        if queue.waiter_count == 1 {
            break queue;
        }
        assert!(time::now() < deadline, "{queue:?}");
    };
    let (holder, waiter) = (&queue.holders[0], &queue.waiters[0]);
    assert_eq!((holder.place.position, waiter.place.position), (1, 2));
    assert_eq!(holder.place.token, Some(guard.token()));
    assert_eq!((holder.place.session, waiter.place.session), (Some(a.session_id()), Some(b.session_id())));
    assert_eq!(
        (holder.place.label.as_deref(), holder.place.mode),
        (Some("writer"), Some(ModeName::Exclusive))
    );
    assert_eq!(waiter.waits_for.as_ref(), Some(&holder.place.path));

    let locks = b.report_locks(10).await.unwrap();
    assert_eq!((locks.locks[0].path.as_str(), locks.locks[0].waiters), (path.as_str(), 1));
    // Each client sees its own session only.
    let sessions = b.report_sessions(10).await.unwrap();
    assert_eq!((sessions.sessions[0].session, sessions.sessions[0].locks_waiting), (b.session_id(), 1));

    let token = guard.token();
    guard.release().await.unwrap();
    let next = within("the next grant", waiting).await.unwrap().unwrap();
    let of_a = HistoryQuery { session: Some(a.session_id()), ..HistoryQuery::default() };
    loop {
        let history = a.report_history(&of_a).await.unwrap();
        if let [requested, granted, released] = &history.entries[..] {
            let [requested, granted, released] = [requested, granted, released].map(|it| it.event.lock());
            let (requested, granted, released) = (requested.unwrap(), granted.unwrap(), released.unwrap());
            assert_eq!(requested.kind, LockEventKind::Requested { ahead: 0 });
            assert!(matches!(granted.kind, LockEventKind::Granted { .. }) && granted.token == token);
            assert!(matches!(released.kind, LockEventKind::Released(_)) && released.label == "writer");
            break;
        }
        assert!(time::now() < deadline, "{history:?}");
    }
    next.release().await.unwrap();
}
