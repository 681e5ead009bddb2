//! Access control lists and identities in scripts.

use bytes::Bytes;
use rowlock_proto::{Acl, Id, Request};

use rowlock_world::rng::Rng;

/// Identities proven by auth packets of scripts: `u:p` and `v:p`.
const DIGESTS: &[&str] =
    &["u:Yl5fEv+CTU9xWZHnGmyYU4bHfbo=", "v:nobody-has-this", "super:D/InIHSb7yEEbrWz8b9l71RjZJU="];

/// Returns an ACL for a new or existing znode. Every ACL lets all clients read unless `restrictive`.
pub(super) fn list(rng: &mut Rng, restrictive: bool) -> Option<Vec<Acl>> {
    if rng.chance(if restrictive { 35 } else { 85 }) {
        return Some(Acl::open());
    }
    match rng.below(30) {
        0 => return None,
        1 => return Some(Vec::new()),
        _ => {}
    }
    let mut list: Vec<Acl> = (0..1 + rng.below(3)).map(|_| entry(rng)).collect();
    if !restrictive {
        list.push(Acl { perms: rng.pick(&[1, 3, 7, 15, 17, 31]), id: Id::anyone() });
    }
    if rng.chance(10) {
        list.push(list[0].clone());
    }
    Some(list)
}

fn entry(rng: &mut Rng) -> Acl {
    let perms = rng.pick_weighted(&[
        (4, 31),
        (2, 1),
        (1, 2),
        (1, 4),
        (1, 8),
        (1, 16),
        (2, 23),
        (1, 0),
        (1, -1),
        (1, 64),
    ]);
    let (scheme, id) = match rng.below(20) {
        0..=4 => ("world", rng.pick_weighted(&[(12, "anyone"), (1, "someone"), (1, "")])),
        5..=10 => (
            "digest",
            if rng.chance(85) { rng.pick(DIGESTS) } else { rng.pick(&["u", "a:b:c", ":", "", "u:"]) },
        ),
        11..=14 => ("auth", rng.pick(&["", "ignored"])),
        15..=17 => (
            "ip",
            rng.pick(&["127.0.0.1", "127.0.0.1/8", "10.0.0.0/8", "127.0.0.1/33", "bogus", "", "1.2.3"]),
        ),
        18 => ("sasl", "jaasuser"),
        _ => (rng.pick(&["super", "nosuch", ""]), "x"),
    };
    Acl { perms, id: Id { scheme: scheme.to_owned(), id: id.to_owned() } }
}

/// Returns an auth packet; some fail.
pub(super) fn auth(rng: &mut Rng) -> Request {
    let (scheme, auth) = rng.pick_weighted(&[
        (10, ("digest", "u:p")),
        (6, ("digest", "v:p")),
        (3, ("digest", "super:test")),
        (2, ("digest", "super:wrong")),
        (2, ("digest", "nopassword")),
        (1, ("digest", "")),
        (1, ("digest", "a:b:c")),
        (1, ("ip", "127.0.0.1")),
        (1, ("nosuch", "x")),
        (1, ("world", "anyone")),
    ]);
    Request::Auth { auth_type: 0, scheme: scheme.to_owned(), auth: Bytes::from_static(auth.as_bytes()) }
}
