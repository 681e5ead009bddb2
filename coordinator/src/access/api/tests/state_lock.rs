//! Locks of states outlive the process that takes the lock.

use bytes::Bytes;
use rowlock_state::STATE_LOCK_MS;
use sha2::{Digest as _, Sha256};

use super::*;

fn info(id: &str) -> LockInfo {
    LockInfo::read(Bytes::from(format!("{{\"ID\":\"{id}\",\"Who\":\"ann@host\",\"Info\":\"\"}}"))).unwrap()
}

async fn take(api: &Api, id: &str) -> StateLock {
    api.lock_state(&caller(), &state_lock("prod").unwrap(), &info(id)).await.unwrap()
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
