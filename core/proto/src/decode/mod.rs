//! Decodes frames: between `frame::split` and the server's or client's logic.
//!
//! Must never panic on any input, and never validates content: decoding accepts a bad path or flag.

mod handshake;
mod lock;
mod multi;
mod request;
mod response;

use std::sync::Arc;

pub use self::handshake::{connect_request, connect_response};
pub use self::lock::notice;
pub use self::request::{BadRequest, request};
pub use self::response::{event, reply_header, response};
pub use crate::codec::DecodeError;

use crate::acl::{Acl, Id};
use crate::codec::{Decoded, Reader};
use crate::ids::{SessionId, Version, Zxid};
use crate::stat::Stat;

fn version(r: &mut Reader<'_>) -> Decoded<Version> {
    r.int().map(Version)
}

fn zxid(r: &mut Reader<'_>) -> Decoded<Zxid> {
    r.long().map(Zxid)
}

/// Reads an identity. kazoo writes the empty id of `auth` as null.
fn id(r: &mut Reader<'_>) -> Decoded<Id> {
    Ok(Id { scheme: r.string()?, id: r.nullable_string()?.unwrap_or_default() })
}

fn ids(r: &mut Reader<'_>) -> Decoded<Vec<Id>> {
    r.vector(8, id)
}

fn acl(r: &mut Reader<'_>) -> Decoded<Option<Vec<Acl>>> {
    r.nullable_vector(12, |r| Ok(Acl { perms: r.int()?, id: id(r)? }))
}

/// Reads an ACL like `acl`, but returns the shared list for an open znode.
fn shared_acl(r: &mut Reader<'_>) -> Decoded<Option<Arc<[Acl]>>> {
    const OPEN: &[u8] = b"\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone";
    if r.skip(OPEN) {
        return Ok(Some(Acl::shared_open()));
    }
    let acl = acl(r)?;
    debug_assert!(!acl.as_deref().is_some_and(Acl::is_open), "an open ACL has other bytes than OPEN");
    Ok(acl.map(Arc::from))
}

fn stat(r: &mut Reader<'_>) -> Decoded<Stat> {
    Ok(Stat {
        czxid: zxid(r)?,
        mzxid: zxid(r)?,
        ctime_ms: r.long()?,
        mtime_ms: r.long()?,
        version: version(r)?,
        cversion: version(r)?,
        aversion: version(r)?,
        ephemeral_owner: r.long().map(SessionId)?,
        data_length: r.int()?,
        num_children: r.int()?,
        pzxid: zxid(r)?,
    })
}
