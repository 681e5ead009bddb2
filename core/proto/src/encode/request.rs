//! Requests: header, then the record of its opcode. Used by clients.

use bytes::BytesMut;

use super::{lock, multi, put_acl};
use crate::codec::{Writer, put_frame};
use crate::ids::{Version, Xid};
use crate::opcode::OpCode;
use crate::request::{Create, PathWatch, Request, RequestFrame, SetAcl, SetData, SetWatches};

/// Encodes any frame of a client after its connect request.
pub fn request(frame: &RequestFrame, out: &mut BytesMut) {
    request_of(frame.xid, &frame.request, out);
}

/// Encodes a borrowed request.
pub fn request_of(xid: Xid, request: &Request, out: &mut BytesMut) {
    put_frame(out, |out| {
        out.int(xid.0);
        out.int(request.opcode().as_i32());
        put_body(out, request);
    });
}

/// Encodes a [`Request::Tagged`] around a borrowed request.
pub fn tagged(xid: Xid, id: u64, acked: u64, request: &Request, out: &mut BytesMut) {
    put_frame(out, |out| {
        out.int(xid.0);
        out.int(OpCode::Tagged.as_i32());
        put_tagged(out, id, acked, request);
    });
}

fn put_tagged(out: &mut BytesMut, id: u64, acked: u64, request: &Request) {
    out.long(id as i64);
    out.long(acked as i64);
    out.int(request.opcode().as_i32());
    put_body(out, request);
}

fn put_body(out: &mut BytesMut, request: &Request) {
    match request {
        Request::Create(create) | Request::Create2(create) | Request::CreateContainer(create) => {
            put_create(out, create);
        }
        Request::CreateTtl(create, ttl_ms) => {
            put_create(out, create);
            out.long(*ttl_ms);
        }
        Request::Delete { path, version } | Request::Check { path, version } => {
            put_path_version(out, path, *version);
        }
        Request::Exists(of) | Request::GetData(of) | Request::GetChildren(of) | Request::GetChildren2(of) => {
            put_path_watch(out, of);
        }
        Request::SetData(set) => put_set_data(out, set),
        Request::SetAcl(set) => put_set_acl(out, set),
        Request::GetAcl(path)
        | Request::Sync(path)
        | Request::GetEphemerals(path)
        | Request::GetAllChildrenNumber(path) => out.string(path),
        Request::Multi(ops) => multi::put_ops(out, ops),
        Request::MultiRead(ops) => multi::put_read_ops(out, ops),
        Request::Reconfig { joining, leaving, new_members, config_id } => {
            out.nullable_string(joining.as_deref());
            out.nullable_string(leaving.as_deref());
            out.nullable_string(new_members.as_deref());
            out.long(*config_id);
        }
        Request::CheckWatches { path, kind: number }
        | Request::RemoveWatches { path, kind: number }
        | Request::AddWatch { path, mode: number } => {
            out.string(path);
            out.int(*number);
        }
        Request::Auth { auth_type, scheme, auth } => {
            out.int(*auth_type);
            out.string(scheme);
            out.buffer(Some(auth));
        }
        Request::SetWatches(watches) => put_set_watches(out, watches),
        Request::SetWatches2(watches) => {
            put_set_watches(out, watches);
            out.strings(&watches.persistent);
            out.strings(&watches.persistent_recursive);
        }
        Request::Sasl(token) => out.buffer(token.as_deref()),
        Request::Tagged { id, acked, request } => put_tagged(out, *id, *acked, request),
        Request::Acquire(all) => lock::put_acquires(out, all),
        Request::Release(claims) | Request::Verify(claims) => lock::put_claims(out, claims),
        Request::Abandon(attempts) => lock::put_attempts(out, attempts),
        Request::Convert { claim, mode, prefix } => {
            lock::put_claim(out, claim);
            lock::put_mode(out, *mode);
            out.string(prefix);
        }
        Request::ForceRelease(claim) => lock::put_claim(out, claim),
        Request::Ask(ask) => lock::put_ask(out, ask),
        Request::SessionOptions(options) => out.int(options.disconnect_grace_ms as i32),
        Request::Report(what) | Request::Operate(what) => out.string(what),
        Request::Ping | Request::WhoAmI | Request::CloseSession => {}
    }
}

pub(super) fn put_create(out: &mut BytesMut, create: &Create) {
    out.string(&create.path);
    out.buffer(create.data.as_deref());
    put_acl(out, create.acl.as_deref());
    out.int(create.flags);
}

pub(super) fn put_set_data(out: &mut BytesMut, set: &SetData) {
    out.string(&set.path);
    out.buffer(set.data.as_deref());
    out.int(set.version.0);
}

pub(super) fn put_path_version(out: &mut BytesMut, path: &str, version: Version) {
    out.string(path);
    out.int(version.0);
}

fn put_path_watch(out: &mut BytesMut, of: &PathWatch) {
    out.string(&of.path);
    out.boolean(of.watch);
}

fn put_set_acl(out: &mut BytesMut, set: &SetAcl) {
    out.string(&set.path);
    put_acl(out, set.acl.as_deref());
    out.int(set.version.0);
}

/// Encodes the fields that setWatches and setWatches2 share.
fn put_set_watches(out: &mut BytesMut, watches: &SetWatches) {
    out.long(watches.relative_zxid.0);
    out.strings(&watches.data);
    out.strings(&watches.exist);
    out.strings(&watches.child);
}
