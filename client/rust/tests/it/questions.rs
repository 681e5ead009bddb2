//! Asking the holder of a lock, on a server that keeps the queues.

use std::time::Duration;

use rowlock_client::{Error, LostReason};
use rowlock_env::time;

use crate::fake::Fake;
use crate::served::{LOCK, waiter};

const SOON: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_holder_hears_who_asks_and_why_and_the_queue_stays_as_it_is() {
    let fake = Fake::rowlock().await;
    let (client, next, other) = (fake.client().await, fake.client().await, fake.client().await);
    assert_eq!(other.ask_holders(LOCK, "hotfix", None).await, Ok(0), "it is free");
    let guard = client.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &next).await;
    let mut questions = guard.asked();
    assert!(time::timeout(SOON, questions.next()).await.is_err(), "none yet");
    assert_eq!(other.ask_holders(LOCK, "hotfix", None).await, Ok(1));
    let question = questions.next().await.unwrap();
    assert_eq!((question.reason.as_str(), question.deadline), ("hotfix", None));
    assert_eq!(guard.asked().next().await, Some(question.clone()), "another handle hears it as well");
    assert_eq!(guard.asked().newest(), Some(question));
    assert!(time::timeout(SOON, questions.next()).await.is_err(), "it was returned");
    fake.world().clock_ahead_ms += 1_000;
    assert_eq!(other.ask_holders(LOCK, "still", None).await, Ok(1));
    assert_eq!(questions.next().await.unwrap().reason, "still", "no call before has lost it");
    assert!(guard.is_held() && !task.is_finished());
    guard.release().await.unwrap();
    assert_eq!(questions.next().await, None, "there will be no more");
    let guard = task.await.unwrap().unwrap();
    assert_eq!(guard.asked().newest(), None, "the next holder was not asked");
}

#[tokio::test]
async fn a_lock_that_is_asked_for_with_a_deadline_is_lost_then_and_not_before() {
    let fake = Fake::rowlock().await;
    let (client, next, other) = (fake.client().await, fake.client().await, fake.client().await);
    let guard = client.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &next).await;
    let (asked, within) = (time::now(), Duration::from_millis(4_000));
    assert_eq!(other.ask_holders(LOCK, "now", Some(within)).await, Ok(1));
    let question = guard.asked().next().await.unwrap();
    let deadline = question.deadline.unwrap();
    assert!(deadline >= asked + within && guard.valid_until().unwrap() <= deadline);
    // A later notice takes it not back.
    fake.world().clock_ahead_ms += 1_000;
    assert_eq!(other.ask_holders(LOCK, "please", None).await, Ok(1));
    let mut questions = guard.asked();
    while questions.next().await.unwrap().reason != "please" {}
    assert!(questions.newest().unwrap().deadline.unwrap() <= deadline);
    assert_eq!(guard.lost().await, LostReason::Asked);
    assert!(time::now() >= asked + Duration::from_millis(3_000), "less what the cluster's clock has jumped");
    assert_eq!(questions.next().await, None);
    assert!(!task.is_finished());
    drop(guard);
    assert!(task.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn an_upgrade_keeps_the_question_and_its_deadline() {
    let fake = Fake::rowlock().await;
    let (client, other) = (fake.client().await, fake.client().await);
    let reader = client.rwlock("l").read().await.unwrap();
    assert_eq!(other.ask_holders(LOCK, "now", Some(Duration::from_secs(60))).await, Ok(1));
    let question = reader.asked().next().await.unwrap();
    let writer = reader.try_upgrade().await.unwrap();
    assert_eq!(writer.asked().newest(), Some(question));
    assert!(fake.world().queue(LOCK)[0].asked.is_some());
}

#[tokio::test]
async fn what_is_no_question_is_refused_here_and_old_servers_are_not_asked() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let long = "r".repeat(257);
    for (reason, within) in [
        ("", None),
        (long.as_str(), None),
        ("r", Some(Duration::from_millis(999))),
        ("r", Some(Duration::from_secs(3_601))),
    ] {
        let asked = client.ask_holders(LOCK, reason, within).await;
        assert!(matches!(asked, Err(Error::InvalidArgument(_))), "{asked:?}");
    }
    fake.world().announced = Some("acquire 2\ntagged 1\n".to_owned());
    let older = fake.client().await;
    assert!(matches!(older.ask_holders(LOCK, "r", None).await, Err(Error::Unsupported(_))));
}
