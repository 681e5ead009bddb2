//! multi and multiRead in scripts.

use rowlock_proto::Request;
use rowlock_proto::request::{Create, Op, ReadOp};

use super::{Generator, Kind};

impl Generator {
    /// Returns few operations, since one failure fails the whole multi.
    pub(super) fn ops(&mut self) -> Vec<Op> {
        let count = self.rng.pick_weighted(&[(1, 0), (5, 1), (8, 2), (4, 3), (2, 5)]);
        (0..count).map(|_| self.op()).collect()
    }

    fn op(&mut self) -> Op {
        match self.rng.below(20) {
            0..=7 => match self.create_request() {
                Request::Create(create) => Op::Create(without_ttl(create)),
                Request::Create2(create) => Op::Create2(without_ttl(create)),
                Request::CreateContainer(create) => Op::CreateContainer(without_ttl(create)),
                other => unreachable!("not a create: {other:?}"),
            },
            8 => match self.request(Kind::CreateTtl) {
                Request::CreateTtl(create, ttl_ms) => Op::CreateTtl(create, ttl_ms),
                other => unreachable!("not a createTTL: {other:?}"),
            },
            9..=12 => Op::Delete { path: self.path(), version: self.version() },
            13..=16 => Op::SetData(self.set_data()),
            _ => Op::Check { path: self.path(), version: self.version() },
        }
    }

    /// Returns reads; each fails alone.
    pub(super) fn read_ops(&mut self) -> Vec<ReadOp> {
        let count = self.rng.below(5);
        let mut op = || {
            if self.rng.chance(50) { ReadOp::GetData(self.path()) } else { ReadOp::GetChildren(self.path()) }
        };
        (0..count).map(|_| op()).collect()
    }
}

fn without_ttl(create: Create) -> Create {
    match create.flags {
        5 | 6 => Create { flags: create.flags - 5, ..create },
        _ => create,
    }
}
