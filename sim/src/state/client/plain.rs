//! Commands on plain znodes, legal and illegal: they make the replicas' states differ in every way that a bug
//! could. Some are on the locks' own znodes, which any client may delete, recreate and resize.

use bytes::Bytes;
use rowlock_proto::acl::Acl;
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::{CreateMode, Version};
use rowlock_state::command::Command;

use super::{LOCKS, lock_path};
use crate::history::Lock;
use rowlock_world::rng::Rng;

/// A random command. Never one on the places in the locks' queues.
pub(super) fn command(rng: &mut Rng) -> Command {
    if rng.chance(30) {
        return on_a_lock(rng);
    }
    match rng.below(10) {
        0..=2 => Command::Create { create: create(rng), ttl_ms: None },
        3 => {
            let flags = CreateMode::PersistentWithTtl.flags();
            Command::Create { create: Create { flags, ..create(rng) }, ttl_ms: Some(500) }
        }
        4 => Command::Delete { path: path(rng), version: version(rng) },
        5 | 6 => Command::SetData(set_data(rng)),
        7 => {
            Command::SetAcl(SetAcl { path: path(rng), acl: Some(Acl::shared_open()), version: version(rng) })
        }
        _ => Command::Multi((0..1 + rng.below(4)).map(|_| op(rng)).collect()),
    }
}

/// A path below /data, three levels at most, few enough to meet each other.
pub fn path(rng: &mut Rng) -> String {
    let name = |rng: &mut Rng| rng.pick(&["a", "b", "c", "d"]);
    match rng.below(3) {
        0 => format!("/data/{}", name(rng)),
        1 => format!("/data/{}/{}", name(rng), name(rng)),
        _ => format!("/data/{}/{}/{}", name(rng), name(rng), name(rng)),
    }
}

/// On the znode of a lock: its queue is empty if the delete succeeds, but a lock-delay may last.
fn on_a_lock(rng: &mut Rng) -> Command {
    let path = lock_path(Lock(rng.below(LOCKS + 1)));
    let data = rng.pick(&[None, Some("permits=1"), Some("permits=2"), Some("permits=5")]).map(Bytes::from);
    let flags = rng.pick(&[CreateMode::Persistent, CreateMode::Container]).flags();
    let create = Create { path: path.clone(), data: data.clone(), acl: Some(Acl::shared_open()), flags };
    let delete = Op::Delete { path: path.clone(), version: Version::ANY };
    match rng.below(6) {
        0 => Command::Delete { path, version: Version::ANY },
        1 => Command::Create { create, ttl_ms: None },
        2 => Command::SetData(SetData { path, data, version: Version::ANY }),
        _ => Command::Multi(vec![delete, Op::Create(create)]),
    }
}

fn op(rng: &mut Rng) -> Op {
    match rng.below(6) {
        0 => Op::Create(create(rng)),
        1 => Op::Create2(create(rng)),
        2 => Op::CreateContainer(Create { flags: CreateMode::Container.flags(), ..create(rng) }),
        3 => Op::Delete { path: path(rng), version: version(rng) },
        4 => Op::SetData(set_data(rng)),
        _ => Op::Check { path: path(rng), version: version(rng) },
    }
}

fn create(rng: &mut Rng) -> Create {
    use CreateMode::*;
    let mode =
        rng.pick(&[Persistent, Persistent, Ephemeral, PersistentSequential, EphemeralSequential, Container]);
    Create { path: path(rng), data: data(rng), acl: Some(Acl::shared_open()), flags: mode.flags() }
}

fn set_data(rng: &mut Rng) -> SetData {
    SetData { path: path(rng), data: data(rng), version: version(rng) }
}

fn data(rng: &mut Rng) -> Option<Bytes> {
    match rng.below(8) {
        0 => None,
        length => Some(Bytes::from(vec![length as u8; length * 7])),
    }
}

fn version(rng: &mut Rng) -> Version {
    rng.pick(&[Version::ANY, Version::ANY, Version(0), Version(1)])
}
