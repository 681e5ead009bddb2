//! Watches on the plain znodes: set here, fired by whoever writes there, heard with every reply.

use crate::cluster::workload::chance::{chance, millis, pick};
use crate::cluster::workload::life::Place;
use crate::history::client::{DATA, Op, ReadKind};

use super::znodes::{any_path, read};

/// Leaves a watch, and mostly reads again after a while.
pub(super) async fn watch(place: &Place) {
    let caller = &place.caller;
    let path = if chance(20) { DATA.to_owned() } else { any_path(caller) };
    let kind = pick(&[ReadKind::Data, ReadKind::Exists, ReadKind::Children]);
    let Some(watch) = caller.next_watch() else { return };
    let ask = |_| Op::Read { kind, path: path.clone(), watch: Some(watch), synced: chance(20) };
    let answer = caller.ask(ask).await;
    place.rest(millis(0, 700)).await;
    if answer.is_ok() && chance(70) {
        let _ = caller.ask(read(kind, &path, chance(30))).await;
    }
}
