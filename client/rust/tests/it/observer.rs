//! What an observer gets: the length of waits and holds, and how they ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowlock_client::{Client, Hold, HoldOutcome, Observer, Wait, WaitOutcome};
use rowlock_env::{task, time};

use crate::fake::{Fake, SHORT};

const STEP: Duration = Duration::from_millis(400);

#[derive(Default)]
struct Seen(Mutex<Events>);

#[derive(Clone, Default)]
struct Events {
    in_progress: i32,
    names: Vec<String>,
    waits: Vec<(String, String, bool, WaitOutcome, Duration)>,
    holds: Vec<(String, HoldOutcome, Duration)>,
}

impl Observer for Seen {
    fn waiting(&self, name: &str, _lock: &str) {
        let mut seen = self.0.lock().unwrap();
        seen.in_progress += 1;
        seen.names.push(name.to_owned());
    }

    fn waited(&self, wait: &Wait<'_>) {
        let mut seen = self.0.lock().unwrap();
        seen.in_progress -= 1;
        let (name, lock) = (wait.name.to_owned(), wait.lock.to_owned());
        seen.waits.push((name, lock, wait.contended, wait.outcome, wait.waited));
    }

    fn held(&self, hold: &Hold<'_>) {
        self.0.lock().unwrap().holds.push((hold.name.to_owned(), hold.outcome, hold.held));
    }
}

async fn observed(fake: &Fake) -> (Client, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let builder = fake.config().session_timeout(SHORT).observer(seen.clone());
    (builder.connect().await.unwrap(), seen)
}

impl Seen {
    fn now(&self) -> Events {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_contended_wait_ends_at_the_grant_and_its_hold_at_the_release() {
    for fake in [Fake::start().await, Fake::rowlock().await] {
        let (client, seen) = observed(&fake).await;
        let holder = fake.client().await.mutex("a/1").lock().await.unwrap();
        let began = time::now();
        let request = client.mutex("a/1").request().metrics_name("a");
        let waiting = task::spawn("waiter", async move { request.lock().await.unwrap() });
        fake.until("the waiter is queued", |world| world.children("/locks/a/1").len() == 2).await;
        let queued = time::now();
        time::sleep(STEP).await;
        assert_eq!((seen.now().in_progress, seen.now().waits.len()), (1, 0));
        let least_waited = queued.elapsed();
        holder.release().await.unwrap();
        let guard = waiting.await.unwrap();
        let granted = time::now();
        time::sleep(STEP).await;
        let released = time::now();
        drop(guard);
        let (ended, Events { in_progress, waits, holds, .. }) = (time::now(), seen.now());
        let ((name, lock, contended, outcome, waited), (_, end, held)) = (&waits[0], &holds[0]);
        assert_eq!((in_progress, waits.len(), holds.len()), (0, 1, 1));
        assert_eq!((&**name, &**lock, *contended, *outcome), ("a", "/locks/a/1", true, WaitOutcome::Granted));
        assert_eq!(*end, HoldOutcome::Released);
        assert!(*waited >= least_waited && *held >= released - granted, "{waited:?} {held:?}");
        assert!(
            *waited + *held <= ended - began,
            "the wait and the hold share no moment: {waited:?} {held:?}"
        );
    }
}

#[tokio::test]
async fn each_acquire_has_one_outcome_and_leaves_the_waiting() {
    for fake in [Fake::start().await, Fake::rowlock().await] {
        let (client, seen) = observed(&fake).await;
        let mutex = client.mutex("l");
        drop(mutex.lock().await.unwrap());
        let _holder = fake.client().await.mutex("l").lock().await.unwrap();
        assert!(mutex.try_lock().await.unwrap().is_none());
        let asked = time::now();
        mutex.lock_timeout(STEP).await.unwrap_err();
        let timed_out_within = asked.elapsed();
        assert!(time::timeout(STEP, mutex.lock()).await.is_err(), "it is dropped");
        fake.until("the dropped one has left", |world| world.children("/locks/l").len() == 1).await;
        let waiting = task::spawn("waiter", async move { mutex.lock().await });
        fake.until("the waiter is queued", |world| world.children("/locks/l").len() == 2).await;
        // A session's answers come in order: the waiter has its own before the last of these.
        for _ in 0..3 {
            client.exists("/").await.unwrap();
        }
        fake.expire(&client);
        waiting.await.unwrap().unwrap_err();
        let Events { in_progress, waits, holds, .. } = seen.now();
        let ends: Vec<_> =
            waits.iter().map(|(_, _, contended, outcome, _)| (outcome.as_str(), *contended)).collect();
        let expected =
            [("granted", false), ("busy", true), ("timed_out", true), ("canceled", true), ("lost", true)];
        assert_eq!((in_progress, ends, holds.len()), (0, expected.to_vec(), 1));
        assert!(waits[2].4 >= STEP && waits[2].4 <= timed_out_within, "{waits:?}");
    }
}

#[tokio::test]
async fn a_lost_hold_ends_at_its_deadline_and_once() {
    for fake in [Fake::start().await, Fake::rowlock().await] {
        let (client, seen) = observed(&fake).await;
        let began = time::now();
        let guard = client.mutex("l").lock().await.unwrap();
        let granted = time::now();
        fake.silence();
        // A heartbeat that is on its way may move the deadline.
        let mut until = granted;
        while let Some(valid) = guard.valid_until() {
            until = valid;
            let _ = time::timeout(STEP / 20, guard.lost()).await; // the end of the time asks again
        }
        time::sleep(STEP).await;
        drop(guard);
        let holds = seen.now().holds;
        assert_eq!((holds.len(), holds[0].1), (1, HoldOutcome::Lost));
        assert!(until - granted <= holds[0].2 && holds[0].2 <= until - began, "{holds:?} {until:?}");
    }
}

#[tokio::test]
async fn a_hold_goes_on_when_its_mode_changes_and_several_locks_are_one_hold() {
    for fake in [Fake::start().await, Fake::rowlock().await] {
        let (client, seen) = observed(&fake).await;
        let read = client.rwlock("l").read().await.unwrap();
        time::sleep(STEP).await;
        let write = read.try_upgrade().await.unwrap();
        let read = write.downgrade().await.unwrap();
        assert_eq!(seen.now().holds.len(), 0);
        read.release().await.unwrap();
        let both = client.multi(["x", "y"]).request().metrics_name("both").lock().await.unwrap();
        both.release().await.unwrap();
        let Events { waits, holds, .. } = seen.now();
        let names: Vec<_> = holds.iter().map(|(name, outcome, _)| (&**name, *outcome)).collect();
        assert_eq!(names, [("default", HoldOutcome::Released), ("both", HoldOutcome::Released)]);
        assert!(holds[0].2 >= STEP, "{holds:?}");
        assert_eq!(waits[1].1, "/locks/x, /locks/y");
    }
}

#[tokio::test]
async fn names_beyond_the_bound_count_as_one() {
    let fake = Fake::rowlock().await;
    let (client, seen) = observed(&fake).await;
    let mutex = client.mutex("l");
    for at in 0..102 {
        drop(mutex.request().metrics_name(format!("job-{at}")).lock().await.unwrap());
    }
    drop(mutex.request().metrics_name("job-0").lock().await.unwrap());
    drop(mutex.lock().await.unwrap());
    assert_eq!(seen.now().names[99..], ["job-99", "other", "other", "job-0", "default"]);
}
