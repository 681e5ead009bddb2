//! The steps of a client:
//!
//! ```text
//! lock, lock-shared, try-lock, read, try-read, write, try-write, queue: LOCK
//! lock-within, read-within: LOCK MILLISECONDS
//! lock-all, try-lock-all: LOCK,LOCK; lock-all-within: LOCK,LOCK MILLISECONDS; `none` is no lock
//! acquire, try-acquire: SEMAPHORE LIMIT COUNT; available: SEMAPHORE LIMIT; resize: SEMAPHORE FROM TO
//! re-lock, re-try: LOCK OWNER                                        reentrant mutex
//! campaign, try-campaign: ELECTION VALUE; leader, candidates: ELECTION; observe: ELECTION (`sees`)
//! add, put, compare-and-set, number, remove-counter: COUNTER [NUMBERS]
//! count-down, count, wait, remove-latch: LATCH COUNT; wait-within: LATCH COUNT MILLISECONDS
//! raise, raised, pass, pass-within, lower: BARRIER                   barrier
//! enter: DOUBLE-BARRIER SIZE (`leave`)
//! delete, force, force-stale: GUARD                                  takes the lock of another one away
//! close
//! ```

use std::fmt::Debug;
use std::time::Duration;

use rowlock_client::{AtomicCounter, Barrier, Client, CountDownLatch, Error, Owner};

use super::Done;
use super::held::Held;

/// The folder of znodes that a step makes longer by one if it has to wait.
pub fn queue(base: &str, words: &[String]) -> Option<String> {
    match words[0].as_str() {
        "lock" | "read" | "write" | "acquire" | "re-lock" => Some(format!("{base}/{}", words[1])),
        "campaign" => Some(format!("{base}/@elections/{}", words[1])),
        "enter" => Some(format!("{base}/@double-barriers/{}", words[1])),
        _ => None,
    }
}

/// The text of a value: what it is worth without `Ok` and `Some`.
pub fn text<T: Debug, E: Debug>(result: Result<T, E>) -> String {
    match result {
        Ok(value) => match format!("{value:?}").as_str() {
            "()" => "ok".to_owned(),
            text => text.to_owned(),
        },
        Err(error) => format!("{error:?}"),
    }
}

pub fn done(outcome: &str, held: Held) -> Done {
    (outcome.to_owned(), Some(held))
}

/// The outcome of a step that waits for its grant.
fn granted<G>(result: Result<G, Error>, wrap: impl FnOnce(G) -> Held) -> Done {
    match result {
        Ok(guard) => done("granted", wrap(guard)),
        // The holder's znode has another name in each run.
        Err(Error::Timeout { position, .. }) => (format!("timeout at {position:?}"), None),
        Err(error) => (format!("{error:?}"), None),
    }
}

/// The outcome of a step that does not wait.
fn tried<G>(result: Result<Option<G>, Error>, wrap: impl FnOnce(G) -> Held) -> Done {
    match result {
        Ok(None) => ("busy".to_owned(), None),
        Ok(Some(guard)) => done("granted", wrap(guard)),
        Err(error) => (format!("{error:?}"), None),
    }
}

/// The arguments of a step.
struct Arguments(Vec<String>);

impl Arguments {
    fn number<T: std::str::FromStr<Err: Debug>>(&self, at: usize) -> T {
        self.0[at].parse().unwrap()
    }

    fn time(&self, at: usize) -> Duration {
        Duration::from_millis(self.number(at))
    }
}

pub async fn step(client: Client, words: Vec<String>) -> Done {
    let name = words.get(1).cloned().unwrap_or_default();
    let verb = words[0].clone();
    let with = Arguments(words);
    match verb.as_str() {
        "close" => (text(client.close().await), None),
        "queue" => {
            let path = client.mutex(&name).path().to_owned();
            (client.get_children(&path).await.map_or(0, |children| children.names.len()).to_string(), None)
        }
        "lock" => granted(client.mutex(&name).lock().await, Held::Mutex),
        "try-lock" => tried(client.mutex(&name).try_lock().await, Held::Mutex),
        "lock-shared" => granted(client.mutex(&name).request().shared().lock().await, Held::Mutex),
        "lock-within" => granted(client.mutex(&name).lock_timeout(with.time(2)).await, Held::Mutex),
        "read" => granted(client.rwlock(&name).read().await, Held::Reader),
        "write" => granted(client.rwlock(&name).write().await, Held::Writer),
        "try-read" => tried(client.rwlock(&name).try_read().await, Held::Reader),
        "try-write" => tried(client.rwlock(&name).try_write().await, Held::Writer),
        "read-within" => granted(client.rwlock(&name).read_timeout(with.time(2)).await, Held::Reader),
        "lock-all" => granted(client.multi(names(&name)).lock().await, Held::All),
        "try-lock-all" => tried(client.multi(names(&name)).try_lock().await, Held::All),
        "lock-all-within" => granted(client.multi(names(&name)).lock_timeout(with.time(2)).await, Held::All),
        "re-lock" => granted(client.reentrant_mutex(&name).lock(owner(&with.0[2])).await, Held::Reentrant),
        "re-try" => tried(client.reentrant_mutex(&name).try_lock(owner(&with.0[2])).await, Held::Reentrant),
        "acquire" | "try-acquire" | "available" | "resize" => semaphore(&client, &name, &verb, &with).await,
        "campaign" | "try-campaign" | "leader" | "candidates" => {
            election(&client, &name, &verb, with.0.get(2).cloned().unwrap_or_default()).await
        }
        "enter" => granted(client.double_barrier(&name, with.number(2)).enter().await, Held::Member),
        "raise" | "raised" | "pass" | "pass-within" | "lower" => {
            (barrier(&client.barrier(&name), &verb, &with).await, None)
        }
        "count-down" | "count" | "wait" | "wait-within" | "remove-latch" => {
            (latch(&client.latch(&name, with.number(2)), &verb, &with).await, None)
        }
        _ => (counter(&client.counter(&name), &verb, &with).await, None),
    }
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|name| *name != "none")
}

fn owner(name: &str) -> Owner {
    match name {
        "unnamed" => Owner::Unnamed,
        "session" => Owner::Session,
        "A" => Owner::named("a"),
        _ => Owner::named("b"),
    }
}

async fn semaphore(client: &Client, name: &str, verb: &str, with: &Arguments) -> Done {
    let mut semaphore = client.semaphore(name, with.number(2));
    match verb {
        "acquire" => granted(semaphore.acquire_many(with.number(3)).await, Held::Permits),
        "try-acquire" => tried(semaphore.try_acquire_many(with.number(3)).await, Held::Permits),
        "available" => (text(semaphore.available().await), None),
        _ => (text(semaphore.resize(with.number(3)).await), None),
    }
}

async fn election(client: &Client, name: &str, verb: &str, value: String) -> Done {
    let election = client.election(name);
    let lead = |lead| Held::Lead(lead, client.clone());
    match verb {
        "campaign" => granted(election.campaign(value).await, lead),
        "try-campaign" => tried(election.try_campaign(value).await, lead),
        "leader" => {
            let leader = election.leader().await.map(|leader| leader.map(|leader| leader.value));
            (
                leader
                    .map_or_else(|error| format!("{error:?}"), |leader| leader.unwrap_or("none".to_owned())),
                None,
            )
        }
        _ => {
            let candidates = election.candidates().await;
            let values =
                candidates.map(|all| all.into_iter().map(|candidate| candidate.value).collect::<Vec<_>>());
            (values.map_or_else(|error| format!("{error:?}"), |values| values.join(",")), None)
        }
    }
}

async fn counter(counter: &AtomicCounter, verb: &str, with: &Arguments) -> String {
    match verb {
        "add" => text(counter.add(with.number(2)).await),
        "put" => text(counter.set(with.number(2)).await),
        "compare-and-set" => text(counter.compare_and_set(with.number(2), with.number(3)).await),
        "number" => text(counter.get().await),
        "remove-counter" => text(counter.remove().await),
        _ => panic!("no step of a client: {verb}"),
    }
}

async fn latch(latch: &CountDownLatch, verb: &str, with: &Arguments) -> String {
    match verb {
        "count-down" => text(latch.count_down().await),
        "count" => text(latch.count().await),
        "wait" => text(latch.wait().await),
        "wait-within" => text(latch.wait_timeout(with.time(3)).await),
        _ => text(latch.remove().await),
    }
}

async fn barrier(barrier: &Barrier, verb: &str, with: &Arguments) -> String {
    match verb {
        "raise" => text(barrier.raise().await),
        "raised" => text(barrier.is_raised().await),
        "pass" => text(barrier.wait().await),
        "pass-within" => text(barrier.wait_timeout(with.time(2)).await),
        _ => text(barrier.remove().await),
    }
}
