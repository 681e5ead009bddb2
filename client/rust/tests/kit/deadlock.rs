//! A wait that would never end is refused with the circle; a wait that ends is not.

use std::time::Duration;

use rowlock_client::{Client, Error, Guard, LockRequest, Owner};
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_testkit::Cluster;

use crate::support::within;

/// A person who does one thing at a time.
struct Person {
    client: Client,
    owner: Owner,
}

impl Person {
    async fn new(cluster: &Cluster, number: u64) -> Person {
        let client = cluster.client_with(|config| config.label(format!("person {number}"))).await;
        Person { client, owner: Owner::Named(number) }
    }

    fn ask(&self, lock: &str) -> LockRequest {
        self.client.mutex(lock).request().owner(self.owner)
    }

    async fn hold(&self, lock: &str) -> Guard {
        within("a free lock", self.ask(lock).lock()).await.unwrap()
    }

    async fn read(&self, lock: &str) -> Guard {
        within("a lock that readers hold", self.ask(lock).shared().lock()).await.unwrap()
    }

    /// Waits for a lock that others have, in the background. Returns when this wait shows in the queue.
    async fn wait_for(&self, request: LockRequest, lock: &str) -> Task<Result<Guard, Error>> {
        let path = format!("/locks/{lock}");
        let before = self.client.get_children(&path).await.unwrap().names.len();
        let waiting = task::spawn("person", async move { request.lock().await });
        let queued = async {
            while self.client.get_children(&path).await.unwrap().names.len() == before {
                time::sleep(Duration::from_millis(2)).await;
            }
        };
        within("a place in the queue", queued).await;
        waiting
    }
}

fn circle(refused: Result<Guard, Error>) -> Vec<String> {
    match refused {
        Err(Error::Deadlock { cycle }) => cycle.into_iter().map(|party| party.label).collect(),
        other => panic!("a circle was closed, and answered {other:?}"),
    }
}

#[tokio::test]
async fn two_owners_in_opposite_order_are_told_the_circle_and_go_on() {
    let cluster = Cluster::start(1).await;
    let (one, two) = (Person::new(&cluster, 1).await, Person::new(&cluster, 2).await);
    let (a, b) = (one.hold("a").await, two.hold("b").await);
    let waiting = one.wait_for(one.ask("b"), "b").await;
    let refused = within("an answer", two.ask("a").lock()).await;
    assert_eq!(circle(refused), ["person 1", "person 2"]);
    assert_eq!(
        two.client.get_children("/locks/a").await.unwrap().names.len(),
        1,
        "the queue was not entered"
    );
    // The refused one gives back what it has, and the other continues.
    b.release().await.unwrap();
    let b = within("the other", waiting).await.unwrap().unwrap();
    a.release().await.unwrap();
    b.release().await.unwrap();
    two.hold("a").await.release().await.unwrap();
}

#[tokio::test]
async fn a_circle_of_three_sessions_names_all_three() {
    let cluster = Cluster::start(3).await;
    let mut people = Vec::new();
    for number in 1..=3 {
        people.push(Person::new(&cluster, number).await);
    }
    let mut held = Vec::new();
    for (person, lock) in people.iter().zip(["a", "b", "c"]) {
        held.push(person.hold(lock).await);
    }
    let first = people[0].wait_for(people[0].ask("b"), "b").await;
    let second = people[1].wait_for(people[1].ask("c"), "c").await;
    let mut names = circle(within("an answer", people[2].ask("a").lock()).await);
    names.sort();
    assert_eq!(names, ["person 1", "person 2", "person 3"]);
    // The circle ends with one of them.
    held.pop().unwrap().release().await.unwrap();
    let mut last = within("the second", second).await.unwrap().unwrap();
    last.release().await.unwrap();
    held.pop().unwrap().release().await.unwrap();
    last = within("the first", first).await.unwrap().unwrap();
    last.release().await.unwrap();
}

#[tokio::test]
async fn a_diamond_is_no_circle() {
    let cluster = Cluster::start(1).await;
    let mut people = Vec::new();
    for number in 0..4 {
        people.push(Person::new(&cluster, number).await);
    }
    let [top, left, right, bottom] = &people[..] else { unreachable!("four were made") };
    // The one below waits for two, and both wait for the same one above.
    let above = top.hold("above").await;
    let (l, r) = (left.read("shared").await, right.read("shared").await);
    let lefts = left.wait_for(left.ask("above"), "above").await;
    let rights = right.wait_for(right.ask("above"), "above").await;
    let below = bottom.wait_for(bottom.ask("shared"), "shared").await;
    above.release().await.unwrap();
    for (waiting, reading) in [(lefts, l), (rights, r)] {
        within("a side", waiting).await.unwrap().unwrap().release().await.unwrap();
        reading.release().await.unwrap();
    }
    within("the one below", below).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn readers_of_one_lock_do_not_wait_for_each_other() {
    let cluster = Cluster::start(1).await;
    let (one, two) = (Person::new(&cluster, 1).await, Person::new(&cluster, 2).await);
    let (a1, b2) = (one.read("a").await, two.read("b").await);
    // Opposite orders, and no wait at all.
    let (b1, a2) = (one.read("b").await, two.read("a").await);
    // One of them waits for the other, which waits for none.
    let c = two.hold("c").await;
    let waiting = one.wait_for(one.ask("c"), "c").await;
    c.release().await.unwrap();
    within("the wait", waiting).await.unwrap().unwrap().release().await.unwrap();
    for guard in [a1, a2, b1, b2] {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn who_names_no_owner_waits_in_peace() {
    let cluster = Cluster::start(1).await;
    let (one, two) = (cluster.client().await, cluster.client().await);
    let (a, b) = (one.mutex("a").lock().await.unwrap(), two.mutex("b").lock().await.unwrap());
    let waiting = task::spawn("one", async move { one.mutex("b").lock().await });
    // Tasks of one session may give back what others of it wait for: no circle is seen where none was
    // declared.
    let patience = Duration::from_millis(300);
    assert!(matches!(two.mutex("a").lock_timeout(patience).await, Err(Error::Timeout { .. })));
    b.release().await.unwrap();
    within("the other", waiting).await.unwrap().unwrap().release().await.unwrap();
    a.release().await.unwrap();
}
