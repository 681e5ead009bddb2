//! What tests of the wire protocol share; nothing that ships links it. A client in raw frames ([`raw`], over
//! [`wire`]), and the largest legal requests of every kind: tests send them to the replicated state, where
//! they count steps and bytes, and to a cluster of real processes, which must keep its leader.
//!
//! [`LOGGED`] go through the log; [`LOCAL`] are answered by the node that receives them. Must never know what
//! the server does with a request: only how large it may be, and what must be requested before it.

mod local;
mod logged;
mod make;
pub mod raw;
pub mod wire;

pub use local::LOCAL;
pub use logged::LOGGED;

use bytes::BytesMut;
use rowlock_proto::acl::Id;
use rowlock_proto::request::Create;
use rowlock_proto::{Acl, CreateMode, ErrorCode, FencingToken, Request, Xid, encode, frame};

/// Locks in one acquire, claims in one release: as many as the server takes.
pub const PLACES_MAX: usize = 1_024;
/// Ephemeral znodes that a session of ours has, with short paths.
pub const EPHEMERALS: usize = 20_000;
/// Readers that wait for one lock, all of one session: a connection takes as many notices at once.
pub const READERS: usize = 16_000;

/// Where a request works.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// A znode that is there and has no children before.
    pub root: &'a str,
    /// Of the first place that what comes before has taken.
    pub token: FencingToken,
}

/// One kind of request that may be large.
pub struct Kind {
    pub name: &'static str,
    /// What comes before it, below this znode. All of it succeeds.
    pub prepare: fn(&str) -> Vec<Request>,
    /// The request with this many items, or bytes.
    pub request: fn(&At<'_>, usize) -> Request,
    /// Proven identities of its author.
    pub identities: Identities,
    /// How one that fills a frame is refused before the log.
    pub refused: Option<ErrorCode>,
    /// If it is refused: the number of items with which it is admitted. The test of the state asserts that it
    /// is about the largest one.
    pub admitted: usize,
    /// Whether the largest that is let in is carried out.
    pub succeeds: bool,
}

impl Kind {
    /// With which number of items the request fills a frame.
    pub fn full(&self, at: &At<'_>) -> usize {
        let fits = |items| bytes(&(self.request)(at, items)) <= frame::DEFAULT_MAX_BYTES;
        largest(frame::DEFAULT_MAX_BYTES + 1, fits)
    }
}

/// Identities that a client has proven: their number, and the bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identities {
    pub count: usize,
    /// Bytes of each, about.
    pub bytes: usize,
}

impl Identities {
    pub const NONE: Identities = Identities { count: 0, bytes: 0 };

    /// Users, as many as these, which `digest` stands for.
    pub fn users(self) -> impl Iterator<Item = String> {
        (0..self.count).map(move |at| format!("{at:03}{}", "u".repeat(self.bytes.saturating_sub(32))))
    }

    /// Identities as the server would make them of a user and a password.
    pub fn ids(self) -> impl Iterator<Item = Id> {
        self.users().map(|user| Id { scheme: "digest".to_owned(), id: format!("{user}:{}", "h".repeat(28)) })
    }
}

/// The largest number of items for which `fits` says yes, below `end`.
pub fn largest(end: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut least, mut beyond) = (0, 1);
    while beyond < end && fits(beyond) {
        (least, beyond) = (beyond, 2 * beyond);
    }
    beyond = beyond.min(end);
    while least + 1 < beyond {
        let middle = least.midpoint(beyond);
        if fits(middle) { least = middle } else { beyond = middle }
    }
    least
}

/// Bytes of a request's frame.
pub fn bytes(request: &Request) -> usize {
    let mut out = BytesMut::new();
    encode::request_of(Xid(1), request, &mut out);
    out.len() - frame::LENGTH_BYTES
}

/// A create without data that every client may change.
pub fn create(path: &str, mode: CreateMode) -> Create {
    Create { path: path.to_owned(), data: None, acl: Some(Acl::shared_open()), flags: mode.flags() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rowlock_proto::OpCode;

    use super::*;

    /// As large as they are, always.
    const SMALL: [OpCode; 3] = [OpCode::Ping, OpCode::WhoAmI, OpCode::SessionOptions];

    #[test]
    fn every_opcode_has_a_kind_or_is_small() {
        let at = At { root: "/0000", token: FencingToken(1) };
        let of = |kind: &Kind| (kind.request)(&at, 1).opcode();
        let mut seen: BTreeSet<OpCode> = LOGGED.iter().copied().flatten().chain(LOCAL).map(of).collect();
        seen.extend(SMALL);
        assert_eq!(seen, OpCode::ALL.iter().copied().collect());
    }

    #[test]
    fn what_comes_before_fits_frames() {
        for kind in LOGGED.iter().copied().flatten().chain(LOCAL) {
            let fits = |request: &Request| bytes(request) <= frame::DEFAULT_MAX_BYTES;
            assert!((kind.prepare)("/0000").iter().all(fits), "{}", kind.name);
        }
    }
}
