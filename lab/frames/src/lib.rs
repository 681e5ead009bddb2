//! Shared test code for the wire protocol; no shipped crate links this crate. Contains a client in raw
//! frames ([`raw`], over [`wire`]), requests and responses as text ([`script`], [`text`]), cases of the HTTP
//! API ([`rest`]), and the largest legal requests of every kind: tests apply them to the replicated state and
//! count steps and bytes, and send them to a cluster of real processes, which must keep its leader.
//!
//! [`LOGGED`] requests go through the log; the receiving node itself answers [`LOCAL`] requests. Must never
//! know the effect of a request: only its largest size, and the requests that must precede it.

mod local;
mod logged;
mod make;
pub mod raw;
pub mod rest;
pub mod script;
pub mod text;
pub mod wire;

pub use local::LOCAL;
pub use logged::LOGGED;

use bytes::BytesMut;
use rowlock_proto::acl::Id;
use rowlock_proto::request::Create;
use rowlock_proto::{Acl, CreateMode, ErrorCode, FencingToken, Request, Xid, encode, frame};

/// Locks of an acquire and claims of a release: the server's maximum.
pub const PLACES_MAX: usize = 1_024;
/// Ephemeral znodes of a large session, with short paths.
pub const EPHEMERALS: usize = 20_000;
/// Readers of one session that wait for one lock: a connection can queue this many notices at once.
pub const READERS: usize = 16_000;

/// Target of a request.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// An existing znode without children.
    pub root: &'a str,
    /// Fencing token of the first queue position taken by the prepared requests.
    pub token: FencingToken,
}

/// A kind of request that can be large.
pub struct Kind {
    pub name: &'static str,
    /// Preceding requests below the given znode. All of them succeed.
    pub prepare: fn(&str) -> Vec<Request>,
    /// The request with this number of items or bytes.
    pub request: fn(&At<'_>, usize) -> Request,
    /// Proven identities of the client.
    pub identities: Identities,
    /// Error of a request that fills a frame, if the server refuses the request before the log.
    pub refused: Option<ErrorCode>,
    /// Number of items still admitted by a server that refuses a full frame. The test of the state checks
    /// that the number is about the largest.
    pub admitted: usize,
    /// True if the largest admitted request succeeds.
    pub succeeds: bool,
}

impl Kind {
    /// Returns the number of items with which the request fills a frame.
    pub fn full(&self, at: &At<'_>) -> usize {
        let fits = |items| bytes(&(self.request)(at, items)) <= frame::DEFAULT_MAX_BYTES;
        largest(frame::DEFAULT_MAX_BYTES + 1, fits)
    }
}

/// Number and size of a client's proven identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identities {
    pub count: usize,
    /// Approximate bytes of each identity.
    pub bytes: usize,
}

impl Identities {
    pub const NONE: Identities = Identities { count: 0, bytes: 0 };

    /// Returns the user names of the identities, for `digest`.
    pub fn users(self) -> impl Iterator<Item = String> {
        (0..self.count).map(move |at| format!("{at:03}{}", "u".repeat(self.bytes.saturating_sub(32))))
    }

    /// Returns the identities as the server stores them after a digest login.
    pub fn ids(self) -> impl Iterator<Item = Id> {
        self.users().map(|user| Id { scheme: "digest".to_owned(), id: format!("{user}:{}", "h".repeat(28)) })
    }
}

/// Returns the largest number of items below `end` for which `fits` returns true.
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

/// Returns the size of a request's frame without its length.
pub fn bytes(request: &Request) -> usize {
    let mut out = BytesMut::new();
    encode::request_of(Xid(1), request, &mut out);
    out.len() - frame::LENGTH_BYTES
}

/// Returns a create without data and with an open ACL.
pub fn create(path: &str, mode: CreateMode) -> Create {
    Create { path: path.to_owned(), data: None, acl: Some(Acl::shared_open()), flags: mode.flags() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rowlock_proto::OpCode;

    use super::*;

    /// Opcodes with requests of constant size.
    const SMALL: [OpCode; 3] = [OpCode::Ping, OpCode::WhoAmI, OpCode::SessionOptions];

    #[test]
    fn every_opcode_has_a_kind_or_is_small() {
        let at = At { root: "/0000", token: FencingToken(1) };
        let opcode = |kind: &Kind| (kind.request)(&at, 1).opcode();
        let mut seen: BTreeSet<OpCode> = LOGGED.iter().copied().flatten().chain(LOCAL).map(opcode).collect();
        seen.extend(SMALL);
        assert_eq!(seen, OpCode::ALL.iter().copied().collect());
    }

    #[test]
    fn preparing_requests_fit_into_frames() {
        for kind in LOGGED.iter().copied().flatten().chain(LOCAL) {
            let fits = |request: &Request| bytes(request) <= frame::DEFAULT_MAX_BYTES;
            assert!((kind.prepare)("/0000").iter().all(fits), "{}", kind.name);
        }
    }
}
