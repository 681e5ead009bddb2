//! The shared counter: nothing is lost or counted twice among many clients, and doubts are told.

use bytes::Bytes;
use rowlock_client::{Acl, CreateMode, Error};
use rowlock_env::task;
use rowlock_proto::Request;

use crate::fake::{Cut, Fake};

const COUNTER: &str = "/locks/@counters/n";

fn is_set(request: &Request) -> bool {
    matches!(request, Request::SetData(_))
}

#[tokio::test]
async fn additions_of_many_clients_at_once_are_all_counted_and_each_sees_its_own_sum() {
    let fake = Fake::start().await;
    let mut adders = Vec::new();
    for _ in 0..8 {
        let counter = fake.client().await.counter("n");
        adders.push(task::spawn("adder", async move {
            let mut sums = Vec::new();
            for _ in 0..10 {
                sums.push(counter.add(1).await.unwrap());
            }
            sums
        }));
    }
    let mut sums = Vec::new();
    for adder in adders {
        sums.extend(adder.await.unwrap());
    }
    sums.sort_unstable();
    assert_eq!(sums, (1..=80).collect::<Vec<i64>>());
}

#[tokio::test]
async fn of_many_clients_that_swap_the_same_number_one_wins() {
    let fake = Fake::start().await;
    let mut swappers = Vec::new();
    for new in 1..=8 {
        let counter = fake.client().await.counter("n");
        swappers.push(task::spawn("swapper", async move { counter.compare_and_set(0, new).await.unwrap() }));
    }
    let mut winners = 0;
    for swapper in swappers {
        winners += usize::from(swapper.await.unwrap());
    }
    assert_eq!(winners, 1);
}

#[tokio::test]
async fn an_addition_whose_reply_was_lost_says_that_it_may_have_happened_and_is_not_repeated() {
    let fake = Fake::start().await;
    let counter = fake.client().await.counter("n");
    counter.set(10).await.unwrap();
    for (fault, after) in [(Cut::AfterDone, 11), (Cut::Before, 11)] {
        fake.fault(fault, is_set);
        let error = counter.add(1).await.unwrap_err();
        assert!(error.may_have_happened(), "{error}");
        assert_eq!(counter.get().await, Ok(after), "{fault:?}");
    }
}

#[tokio::test]
async fn a_lost_reply_before_the_first_number_is_no_doubt() {
    let fake = Fake::start().await;
    let counter = fake.client().await.counter("n");
    for fault in [Cut::Before, Cut::AfterDone] {
        fake.fault(fault, |request| matches!(request, Request::Create2(create) if create.path == COUNTER));
        counter.add(1).await.unwrap();
        assert_eq!(counter.get().await, Ok(1), "{fault:?}");
        counter.remove().await.unwrap();
    }
}

#[tokio::test]
async fn a_znode_that_is_no_counter_is_left_alone() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let data = Some(Bytes::from_static(b"not a number"));
    client.create("/mine", data.clone(), CreateMode::Persistent, Acl::open()).await.unwrap();
    let counter = client.counter_at("/mine");
    assert_eq!(counter.add(1).await, Err(Error::UnexpectedData("/mine".into())));
    assert_eq!(client.get("/mine").await.unwrap().data, data);
}

#[tokio::test]
async fn counting_on_a_closed_client_or_without_a_name_errors_at_once() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    assert!(matches!(client.counter("").add(1).await, Err(Error::InvalidName(_))));
    assert!(matches!(client.counter_at("/").set(1).await, Err(Error::InvalidName(_))));
    let other = client.clone();
    client.close().await.unwrap();
    assert_eq!(other.counter("n").add(1).await, Err(Error::Closed));
    assert_eq!(other.counter("n").get().await, Err(Error::Closed));
}
