//! Locks of states outlive the process that takes the lock.

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::Acquire;
use rowlock_state::command::Command;
use rowlock_types::limits::STATE_LOCK_MS;
use sha2::{Digest as _, Sha256};

use super::super::call::Call;
use super::*;

pub(super) fn info(id: &str) -> LockInfo {
    LockInfo::read(Bytes::from(format!("{{\"ID\":\"{id}\",\"Who\":\"ann@host\",\"Info\":\"\"}}"))).unwrap()
}

async fn take(api: &Api, id: &str) -> StateLock {
    api.lock_state(&caller(), &state_lock("prod").unwrap(), &info(id)).await.unwrap()
}

async fn give_back(api: &Api, id: &str) -> Unlocked {
    api.unlock_state(&caller(), &state_lock("prod").unwrap(), &info(id)).await.unwrap()
}

#[tokio::test]
async fn one_id_holds_the_lock_of_a_state_and_others_are_told_which() {
    let node = Node::start().await;
    let (api, other) = (node.api(), node.api());
    let held = take(&api, "one").await;
    let StateLock::Held(first) = &held else { panic!("{held:?}") };
    assert_eq!(take(&other, "one").await, held, "asking again finds it, at whatever node");
    let taken = take(&other, "two").await;
    assert!(
        matches!(&taken, StateLock::Taken(by) if by["ID"] == "one" && by["Who"] == "ann@host"),
        "{taken:?}"
    );
    assert!(matches!(give_back(&api, "two").await, Unlocked::Taken(by) if by["ID"] == "one"));
    let sessions = || {
        let state = node.context.replica.state.read();
        state.sessions().map(|(_, session)| session.timeout_ms).collect::<Vec<_>>()
    };
    assert_eq!(sessions(), [STATE_LOCK_MS], "it is the only session, and may be silent for long");
    assert_eq!(give_back(&other, "one").await, Unlocked::Done(true));
    assert_eq!(give_back(&api, "one").await, Unlocked::Done(false), "again");
    assert!(sessions().is_empty(), "nothing is left behind");
    let held = take(&api, "two").await;
    assert!(matches!(held, StateLock::Held(second) if second.token > first.token));
    drop((api, other));
    node.stop().await;
}

#[tokio::test]
async fn the_lock_of_a_state_stands_in_one_queue_with_all_others_and_an_operator_may_force_it() {
    let node = Node::start().await;
    let api = node.api();
    let (name, secret) = (state_lock("a/b").unwrap(), open(&api).await);
    assert_eq!(name.path(), "/locks/@terraform/a/b");
    let acquired = api.acquire(&caller(), &[Part::exclusive(&name)], wanted(&secret, "1", 0)).await.unwrap();
    let QueuePosition::Held(other) = only(acquired) else { panic!("not held") };
    let taken = api.lock_state(&caller(), &name, &info("one")).await.unwrap();
    let StateLock::Taken(by) = taken else { panic!("{taken:?}") };
    assert_eq!((&by["ID"], &by["Path"]), (&"".into(), &(&*other.path).into()), "{by}");
    let label = format!("token {}: job", other.token.0);
    assert_eq!(by["Info"], label.as_str(), "{by}");
    assert_eq!(api.force_state(&caller(), &name).await, Ok(Some(other.token)));
    let held = api.lock_state(&caller(), &name, &info("one")).await.unwrap();
    let StateLock::Held(own) = held else { panic!("{held:?}") };
    assert_eq!(api.force_state(&caller(), &name).await, Ok(Some(own.token)));
    assert_eq!(api.force_state(&caller(), &name).await, Ok(None));
    let state = node.context.replica.state.read().counts();
    assert_eq!((state.sessions, state.lock_holders), (1, 0), "its session has gone with the lock");
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn an_attempt_whose_answer_is_lost_holds_nothing_for_long_and_is_found_by_its_id() {
    let node = Node::start().await;
    let api = node.api();
    let name = state_lock("prod").unwrap();
    let id = info("one");
    // Simulates a stop of the node after the acquire.
    api.take_state_lock(&caller(), &name, &id).await.unwrap();
    let timeout = || {
        let state = node.context.replica.state.read();
        state.sessions().map(|(_, session)| session.timeout_ms).next().unwrap()
    };
    assert!(timeout() <= 40_000, "{}", timeout());
    assert!(matches!(take(&api, "two").await, StateLock::Taken(by) if by["ID"] == "one"));
    assert!(matches!(take(&api, "one").await, StateLock::Held(_)));
    assert_eq!(timeout(), STATE_LOCK_MS);
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn the_end_of_the_lease_by_which_a_node_acts_for_somebody_is_no_end_of_theirs() {
    let node = Node::start().await;
    let api = node.api();
    let name = state_lock("prod").unwrap();
    let StateLock::Held(claim) = take(&api, "one").await else { panic!("it was free") };
    node.log(Log::Expires);
    assert_eq!(api.force(&caller(), &name, claim.token).await, Err(Refusal::Unknown));
    let free = state_lock("test").unwrap();
    assert_eq!(api.lock_state(&caller(), &free, &info("two")).await, Err(Refusal::Unknown));
    node.log(Log::Runs);
    assert_eq!(api.force(&caller(), &name, claim.token).await, Ok(true));
    assert!(matches!(api.lock_state(&caller(), &free, &info("two")).await, Ok(StateLock::Held(_))));
    drop(api);
    node.stop().await;
}

#[test]
fn lock_info_is_an_object_with_an_id_of_visible_characters() {
    for wrong in ["", "{}", "[]", "null", "{\"ID\":7}", "{\"ID\":\"\"}", "{\"ID\":\"a b\"}", "{\"ID\":\"a\""]
    {
        assert!(matches!(LockInfo::read(Bytes::from(wrong)), Err(Refusal::Bad(_))), "{wrong}");
    }
    let long = format!("{{\"ID\":\"{}\"}}", "x".repeat(65));
    assert!(LockInfo::read(Bytes::from(long)).is_err());
    assert!(state_lock("").is_err() && state_lock(&"x".repeat(513)).is_err());
}

#[tokio::test]
async fn what_is_known_of_a_state_lock_does_not_open_its_lease() {
    let node = Node::start().await;
    let api = node.api();
    let StateLock::Held(claim) = take(&api, "one").await else { panic!("it was free") };
    let session = node.context.replica.state.read().sessions().map(|(id, _)| id).next().unwrap();
    let hash =
        |text: &str| -> String { Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect() };
    // Secret derived by an older release, and the hash computed from the same input now.
    let hash = hash("/locks/@terraform/prod\0one");
    for half in [&hash[..32], &hash[32..]] {
        let secret: Secret = format!("{:016x}{half}", session.0).parse().unwrap();
        assert_eq!(api.close(&caller(), &secret).await, Err(Refusal::WrongSecret), "{half}");
        assert_eq!(api.keep_alive(&caller(), &secret).await, Err(Refusal::WrongSecret), "{half}");
    }
    assert_eq!(api.verify(&caller(), &state_lock("prod").unwrap(), claim.token).await, Ok(true));
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn a_place_that_its_acl_hides_is_not_shown_to_who_locks_or_unlocks_a_state() {
    let node = Node::start().await;
    let api = node.api();
    let (name, secret) = (state_lock("prod").unwrap(), open(&api).await);
    let owner = Id { scheme: "digest".to_owned(), id: "u:x".to_owned() };
    let acquire = Acquire {
        lock: name.path().into(),
        prefix: "lock-".into(),
        data: Some(Bytes::from_static(b"secret label")),
        acl: Some(vec![Acl { perms: perms::ALL, id: owner }].into()),
        mode: Mode::Exclusive,
        limit: 0,
        wait: false,
        owner: Owner::Unnamed,
        max_hold_ms: 0,
        lock_delay_ms: 0,
        min_hold_ms: 0,
        min_hold_lapses: false,
    };
    let command = Command::Client(Request::Acquire([acquire].into()));
    Call::new(&api, &caller()).act(&secret, command).await.unwrap();
    for told in [
        match take(&api, "one").await {
            StateLock::Taken(by) => by,
            held => panic!("{held:?}"),
        },
        match give_back(&api, "one").await {
            Unlocked::Taken(by) => by,
            done => panic!("{done:?}"),
        },
    ] {
        assert_eq!(told["Path"], name.path(), "{told}");
        let session = secret.session.to_string();
        assert!(
            !["label", "lock-", &session].iter().any(|hidden| told.to_string().contains(hidden)),
            "{told}"
        );
    }
    let (lock, reason) = (name.path().to_owned(), "a release".to_owned());
    let ask = rowlock_proto::lock::Ask { lock, reason, by: "ops".to_owned(), within_ms: 0 };
    assert_eq!(api.ask(&caller(), ask).await, Ok((1, Vec::new())), "nor to who asks for the lock");
    drop(api);
    node.stop().await;
}
