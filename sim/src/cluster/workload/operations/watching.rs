//! Watches on the plain znodes, fired by any writer, checked with every reply.

use rowlock_client::{CreateMode, Version};

use crate::cluster::workload::chance::{between, chance, millis, pick};
use crate::cluster::workload::life::Place;
use crate::history::client::{DATA, Op, ReadKind};

use super::znodes::{any_path, read, with_parent};

/// Watches, creates or deletes a znode that comes and goes.
async fn wait_for(place: &Place) {
    let caller = &place.caller;
    let path = format!("{DATA}/awaited{}", between(1, 2));
    match between(0, 9) {
        0..5 => {
            let Some(watch) = caller.next_watch() else { return };
            let ask = |_| Op::Read { kind: ReadKind::Exists, path, watch: Some(watch), synced: false };
            let _ = caller.call(ask).await;
        }
        5..8 => {
            let _ = with_parent(caller, CreateMode::Persistent, &path).await;
        }
        _ => {
            let _ = caller.call(|_| Op::Delete { path, version: Version::ANY }).await;
        }
    }
}

/// Leaves a watch, and mostly reads again after a while.
pub(super) async fn watch(place: &Place) {
    if chance(40) {
        return wait_for(place).await;
    }
    let caller = &place.caller;
    let path = if chance(20) { DATA.to_owned() } else { any_path(caller) };
    let kind = pick(&[ReadKind::Data, ReadKind::Exists, ReadKind::Children]);
    let Some(watch) = caller.next_watch() else { return };
    let ask = |_| Op::Read { kind, path: path.clone(), watch: Some(watch), synced: chance(20) };
    let answer = caller.call(ask).await;
    place.rest(millis(0, 700)).await;
    if answer.is_ok() && chance(70) {
        let _ = caller.call(read(kind, &path, chance(30))).await;
    }
}
