//! Requests with Rowlock's own opcodes, for conversations to corrupt. Few locks and names, so that requests
//! collide, and numbers from both ends of the range.
//!
//! Must never reach the comparison with ZooKeeper, which closes the connection on these opcodes.

use bytes::Bytes;
use rowlock_proto::lock::{Acquire, Ask, Attempt, Claim, Mode, Owner, SessionOptions};
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::{Acl, FencingToken, Op, Request, Version};

use rowlock_world::rng::Rng;

const LOCKS: &[&str] =
    &["/fuzz/l/a", "/fuzz/l/b", "/fuzz/l/a/c", "/fuzz/l/10", "/fuzz/l/1", "/fuzz/l/\u{4e2d}", "/fuzz/r"];
/// Paths that are invalid for a lock or reserved by the server.
const ODD_LOCKS: &[&str] = &[
    "",
    "/",
    "a",
    "/fuzz/",
    "/fuzz//a",
    "/fuzz/..",
    "/zookeeper",
    "/zookeeper/rowlock",
    "/a\0b",
    "/fuzz/l/a/_c_1-lock-0000000000",
];
const PREFIXES: &[&str] =
    &["_c_1-lock-", "_c_2-lock-", "_c_1-__READ__", "_c_1-__WRIT__", "_c_1-permit-", "-lease-"];
const ODD_PREFIXES: &[&str] = &["", "/", "a/b", "..", "\u{1}"];
const NUMBERS: &[u32] = &[0, 1, 2, 3, 500, 60_000, i32::MAX as u32, u32::MAX];
const IDS: &[u64] = &[0, 1, 2, 3, 4, 5, 1_025, i64::MAX as u64, u64::MAX];
const REPORTS: &[&str] = &[
    "/v1/locks",
    "/v1/locks?limit=3",
    "/v1/locks?limit=-1",
    "/v1/queue?lock=/fuzz/l/a",
    "/v1/queue?lock=%2Ffuzz%2Fl%2F%E4%B8%AD",
    "/v1/queue?lock=%zz&lock=",
    "/v1/queue",
    "/v1/history?lock=/fuzz/l/a&limit=99999999999999999999",
    "/v1/history?session=0x1&since_ms=-9223372036854775808",
    "/v1/sessions?limit=2",
    "/v1/sessions?&&==%",
    "/v1/sessions?limit=4294967296",
    "/v1/queue?lock=/fuzz/l/a&limit=0",
    "/v1/history?lock=/fuzz/l/a&session=0x7fffffffffffffff&since_ms=9223372036854775807&limit=1",
    "/v1/history?before=x&after=x",
    "/metrics",
    "/nothing",
    "",
];

/// Returns a request with one of Rowlock's opcodes, mostly with plausible content.
pub fn request(rng: &mut Rng) -> Request {
    if rng.chance(35) {
        let (id, acked) = (rng.pick(IDS), rng.pick(IDS));
        let request = if rng.chance(30) { write(rng) } else { lock_write(rng) };
        return Request::Tagged { id, acked, request: Box::new(request) };
    }
    match rng.below(12) {
        0 => Request::Verify(some(rng, claim).into()),
        1 => Request::SessionOptions(SessionOptions { disconnect_grace_ms: rng.pick(NUMBERS) }),
        2 => Request::Report(rng.pick(REPORTS).to_owned()),
        3 => Request::Operate(rng.pick(REPORTS).to_owned()),
        4 => Request::Ask(question(rng)),
        _ => lock_write(rng),
    }
}

fn lock_write(rng: &mut Rng) -> Request {
    match rng.below(10) {
        0..=4 => Request::Acquire(some(rng, acquire).into()),
        5..=6 => Request::Release(some(rng, claim).into()),
        7 => Request::Abandon(some(rng, |rng| Attempt { lock: lock(rng), prefix: prefix(rng) })),
        8 => Request::Convert { claim: claim(rng), mode: mode(rng), prefix: prefix(rng) },
        _ => Request::ForceRelease(claim(rng)),
    }
}

/// Returns a znode write for an envelope.
fn write(rng: &mut Rng) -> Request {
    let create = Create {
        path: format!("{}/{}", lock(rng), prefix(rng)),
        data: None,
        acl: Some(Acl::shared_open()),
        flags: rng.pick(&[0, 1, 2, 3, 4]),
    };
    let data = rng.pick(&["permits=1", "permits=3", "permits=4294967295", "permits=", "permits=-1", ""]);
    let set =
        SetData { path: lock(rng), data: Some(Bytes::from_static(data.as_bytes())), version: Version::ANY };
    match rng.below(4) {
        0 => Request::Create(create),
        1 => Request::SetData(set),
        2 => Request::Delete { path: claim(rng).path.to_string(), version: Version::ANY },
        _ => Request::Multi(vec![Op::Create(create), Op::SetData(set)]),
    }
}

fn some<T>(rng: &mut Rng, mut one: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    let count = rng.pick_weighted(&[(1, 0), (8, 1), (3, 2), (2, 5), (1, 40)]);
    (0..count).map(|_| one(rng)).collect()
}

fn acquire(rng: &mut Rng) -> Acquire {
    Acquire {
        lock: lock(rng).into(),
        prefix: prefix(rng).into(),
        data: rng.pick(&[None, Some("fuzz")]).map(Bytes::from),
        acl: if rng.chance(80) { Some(Acl::shared_open()) } else { None },
        mode: mode(rng),
        limit: rng.pick(NUMBERS),
        wait: rng.chance(60),
        owner: match rng.below(3) {
            0 => Owner::Unnamed,
            1 => Owner::Session,
            _ => Owner::Named(rng.pick(IDS)),
        },
        max_hold_ms: rng.pick(NUMBERS),
        lock_delay_ms: rng.pick(&[0, 0, 0, 1, 100]),
        min_hold_ms: rng.pick(&[0, 0, 0, 1, 100]),
        min_hold_lapses: rng.chance(30),
    }
}

fn question(rng: &mut Rng) -> Ask {
    let text = |rng: &mut Rng| "\u{e9}".repeat(rng.pick(&[0, 1, 20, 64, 128, 129, 5_000]));
    Ask { lock: lock(rng), reason: text(rng), by: text(rng), within_ms: rng.pick(NUMBERS) }
}

fn mode(rng: &mut Rng) -> Mode {
    match rng.below(3) {
        0 => Mode::Exclusive,
        1 => Mode::Shared,
        _ => Mode::Permits(rng.pick(NUMBERS)),
    }
}

fn lock(rng: &mut Rng) -> String {
    let names = if rng.chance(4) { ODD_LOCKS } else { LOCKS };
    rng.pick(names).to_owned()
}

fn prefix(rng: &mut Rng) -> String {
    let names = if rng.chance(4) { ODD_PREFIXES } else { PREFIXES };
    rng.pick(names).to_owned()
}

/// Returns a claim that rarely names an existing position.
fn claim(rng: &mut Rng) -> Claim {
    let path = format!("{}/{}{:010}", lock(rng), prefix(rng), rng.below(8));
    Claim {
        path: path.into(),
        token: FencingToken(rng.pick(&[0, 1, -1, i64::MAX]).wrapping_add(rng.below(200) as i64)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rowlock_proto::{OpCode, RequestFrame, Xid, decode, encode};

    use super::*;

    #[test]
    fn every_own_opcode_is_generated_and_decodes() {
        let mut rng = Rng::new(11);
        let mut sent = BTreeSet::new();
        for _ in 0..2_000 {
            let frame = RequestFrame { xid: Xid(1), request: request(&mut rng) };
            let mut out = bytes::BytesMut::new();
            encode::request(&frame, &mut out);
            assert_eq!(decode::request(out.freeze().slice(4..)), Ok(frame.clone()));
            sent.insert(frame.request.opcode());
        }
        let own = OpCode::ALL.iter().copied().filter(|opcode| opcode.as_i32() >= 1_000);
        assert_eq!(sent, own.collect());
    }
}
