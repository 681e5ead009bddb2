//! Plain znodes below [`DATA`]: few paths, so that clients collide.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use rowlock_client::{CreateMode, ErrorCode, Version};
use rowlock_env::time;

use crate::cluster::workload::caller::{Caller, data};
use crate::cluster::workload::chance::{between, chance, millis, pick};
use crate::cluster::workload::life::Place;
use crate::history::client::{Answer, CallId, DATA, Failure, Op, ReadKind};

/// Returns a random znode of the run.
pub(super) fn any_path(caller: &Caller) -> String {
    format!("{DATA}/znode{}", between(1, caller.profile().znodes))
}

fn create(path: &str, mode: CreateMode) -> impl FnOnce(CallId) -> Op {
    let path = path.to_owned();
    move |call| Op::Create { path, data: data(call, 0), mode }
}

fn set(path: &str, version: Version) -> impl FnOnce(CallId) -> Op {
    let path = path.to_owned();
    move |call| Op::Set { path, data: data(call, 0), version }
}

/// Builds the request of a read.
pub(super) fn read(kind: ReadKind, path: &str, synced: bool) -> impl FnOnce(CallId) -> Op {
    let path = path.to_owned();
    move |_| Op::Read { kind, path, watch: None, synced }
}

/// Returns the znode's version in an answer.
fn version(answer: &Result<Answer, Failure>) -> Option<Version> {
    match answer {
        Ok(Answer::Data(_, stat) | Answer::Exists(Some(stat)) | Answer::Set(stat)) => Some(stat.version),
        _ => None,
    }
}

/// Creates a znode, after its parent if the parent is missing.
pub(super) async fn with_parent(caller: &Caller, mode: CreateMode, path: &str) -> Result<Answer, Failure> {
    let answer = caller.call(create(path, mode)).await;
    if let Err(Failure::Refused(ErrorCode::NoNode)) = answer {
        // A refusal means that another client has created the parent.
        let _ = caller.call(create(DATA, CreateMode::Persistent)).await;
        return caller.call(create(path, mode)).await;
    }
    answer
}

/// Share of writes to a znode that lives only for a while.
const BRIEF_PERCENT: u64 = 10;

/// Creates a TTL znode, or postpones the end of the TTL znode by a write.
async fn prolong(caller: &Caller) {
    let path = format!("{DATA}/brief{}", between(1, 2));
    let answer = caller.call(set(&path, Version::ANY)).await;
    if let Err(Failure::Refused(ErrorCode::NoNode)) = answer {
        let _ = with_parent(caller, CreateMode::PersistentWithTtl, &path).await;
    }
}

/// Writes a znode that mostly exists.
pub(super) async fn change(place: &Place) {
    let (caller, path) = (&place.caller, any_path(&place.caller));
    if chance(BRIEF_PERCENT) {
        return prolong(caller).await;
    }
    let answer = match between(0, 9) {
        0..4 => caller.call(set(&path, Version::ANY)).await,
        4..8 => {
            let seen = caller.call(read(ReadKind::Data, &path, chance(30))).await;
            let version = version(&seen).unwrap_or(Version(0));
            caller.call(set(&path, version)).await
        }
        8 => {
            let version = Version(i32::try_from(between(0, 3)).unwrap_or(0));
            let version = if chance(50) { version } else { Version::ANY };
            caller.call(|_| Op::Delete { path: path.clone(), version }).await
        }
        _ => with_parent(caller, CreateMode::Persistent, &path).await,
    };
    if let Err(Failure::Refused(ErrorCode::NoNode)) = answer {
        let _ = with_parent(caller, CreateMode::Persistent, &path).await;
    }
}

/// Reads znodes, with and without a sync.
pub(super) async fn read_some(place: &Place) {
    for _ in 0..between(1, 4) {
        let path = if chance(20) { DATA.to_owned() } else { any_path(&place.caller) };
        let kind = pick(&[ReadKind::Data, ReadKind::Data, ReadKind::Exists, ReadKind::Children]);
        let answer = place.caller.call(read(kind, &path, chance(40))).await;
        if answer.is_err() {
            return;
        }
        if chance(10) {
            let _ = place.caller.call(|_| Op::Sync).await;
        }
    }
}

/// Makes several calls at once, and drops some before their replies.
pub(super) async fn pipeline(place: &Place) {
    let path = any_path(&place.caller);
    let mut calls: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
    for _ in 0..between(2, 8) {
        let path = if chance(70) { path.clone() } else { any_path(&place.caller) };
        calls.push(Box::pin(one_of_many(&place.caller, path)));
    }
    if chance(20) {
        // Drops the futures wherever they are.
        let _ = time::timeout(millis(0, 20), all(calls)).await;
    } else {
        all(calls).await;
    }
}

async fn one_of_many(caller: &Caller, path: String) {
    let answer = match between(0, 9) {
        0..6 => caller.call(set(&path, Version::ANY)).await,
        6..9 => caller.call(read(ReadKind::Data, &path, false)).await,
        _ => caller.call(create(&path, CreateMode::Persistent)).await,
    };
    drop(answer);
}

/// Waits for all calls; polls each call first in its turn.
async fn all(mut calls: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>>) {
    poll_fn(|cx| {
        calls.retain_mut(|call| call.as_mut().poll(cx).is_pending());
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Creates sequential children, and mostly deletes the children again.
pub(super) async fn sequential(place: &Place) {
    let (caller, parent) = (&place.caller, any_path(&place.caller));
    let mode = pick(&[CreateMode::PersistentSequential, CreateMode::EphemeralSequential]);
    let mut made = Vec::new();
    for _ in 0..between(1, 3) {
        match caller.call(create(&format!("{parent}/n-"), mode)).await {
            Ok(Answer::Created { path, .. }) => made.push(path),
            Err(Failure::Refused(ErrorCode::NoNode)) => {
                let _ = with_parent(caller, CreateMode::Persistent, &parent).await;
            }
            _ => return,
        }
    }
    let _ = caller.call(read(ReadKind::Children, &parent, chance(30))).await;
    place.rest(millis(0, 300)).await;
    for path in made {
        let _ = caller.call(|_| Op::Delete { path, version: Version::ANY }).await;
    }
}

/// Creates an ephemeral znode, and mostly deletes the znode before the session ends.
pub(super) async fn ephemeral(place: &Place) {
    let caller = &place.caller;
    let path = format!("{DATA}/ephemeral{}", between(1, 3));
    if let Ok(Answer::Created { path, .. }) = with_parent(caller, CreateMode::Ephemeral, &path).await {
        place.rest(millis(0, 800)).await;
        let _ = caller.call(set(&path, Version::ANY)).await;
        if chance(70) {
            let _ = caller.call(|_| Op::Delete { path, version: Version::ANY }).await;
        }
    } else {
        let _ = caller.call(read(ReadKind::Exists, &path, chance(50))).await;
    }
}

/// Writes several znodes in one transaction; some of the transactions are refused.
pub(super) async fn multi(place: &Place) {
    let caller = &place.caller;
    let (first, second) = (any_path(caller), any_path(caller));
    let seen = caller.call(read(ReadKind::Data, &first, chance(50))).await;
    let version = version(&seen).unwrap_or(Version(0));
    let child = format!("{second}/both-");
    let make = |call: CallId| {
        let written = |place| data(call, place);
        let mut ops = vec![Op::Set { path: first.clone(), data: written(0), version }];
        if chance(50) {
            ops.insert(0, Op::Check { path: second.clone(), version: Version::ANY });
        }
        ops.push(match between(0, 3) {
            0 => Op::Set { path: second.clone(), data: written(1), version: Version::ANY },
            1 => Op::Check { path: second.clone(), version: Version(i32::MAX) },
            2 => Op::Delete { path: format!("{DATA}/nothing"), version: Version::ANY },
            _ => {
                let mode = CreateMode::EphemeralSequential;
                Op::Create { path: child.clone(), data: written(1), mode }
            }
        });
        Op::Multi(ops)
    };
    let made = caller.call(make).await;
    let Ok(Answer::Multi(answers)) = made else { return };
    for answer in answers {
        if let Answer::Created { path, .. } = answer
            && chance(80)
        {
            let _ = caller.call(|_| Op::Delete { path, version: Version::ANY }).await;
        }
    }
}
