//! Locks of states: they outlive what makes them.

use bytes::Bytes;
use rowlock_types::limits::STATE_LOCK_MS;

use super::*;

fn info(id: &str) -> LockInfo {
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
    let (api, other) = (Api::new(node.context.clone()), Api::new(node.context.clone()));
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
    let api = Api::new(node.context.clone());
    let (name, secret) = (state_lock("a/b").unwrap(), open(&api).await);
    assert_eq!(name.path(), "/locks/@terraform/a%2Fb");
    let standing = api.acquire(&caller(), &name, wanted(&secret, "1", 0)).await.unwrap();
    let Place::Held(other) = standing.place else { panic!("{standing:?}") };
    let taken = api.lock_state(&caller(), &name, &info("one")).await.unwrap();
    let StateLock::Taken(by) = taken else { panic!("{taken:?}") };
    assert_eq!((&by["ID"], &by["Path"]), (&"".into(), &other.path.as_str().into()), "{by}");
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
    let api = Api::new(node.context.clone());
    let name = state_lock("prod").unwrap();
    let id = info("one");
    // As if the node had stopped behind the acquire.
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
