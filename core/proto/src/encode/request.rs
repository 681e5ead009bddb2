//! Encodes requests: header, then the record of the opcode. Used by clients.

use bytes::BytesMut;

use super::{lock, multi, write_acl};
use crate::codec::{Writer, write_frame};
use crate::ids::{Version, Xid};
use crate::opcode::OpCode;
use crate::request::{Create, PathWatch, Request, RequestFrame, SetAcl, SetData, SetWatches};

/// Encodes any frame of a client after its connect request.
pub fn request(frame: &RequestFrame, out: &mut BytesMut) {
    request_of(frame.xid, &frame.request, out);
}

/// Encodes a borrowed request.
pub fn request_of(xid: Xid, request: &Request, out: &mut BytesMut) {
    write_frame(out, |out| {
        out.int(xid.0);
        out.int(request.opcode().as_i32());
        write_body(out, request);
    });
}

/// Encodes a [`Request::Tagged`] around a borrowed request.
pub fn tagged(xid: Xid, id: u64, acked: u64, request: &Request, out: &mut BytesMut) {
    write_frame(out, |out| {
        out.int(xid.0);
        out.int(OpCode::Tagged.as_i32());
        write_tagged(out, id, acked, request);
    });
}

fn write_tagged(out: &mut BytesMut, id: u64, acked: u64, request: &Request) {
    out.long(id as i64);
    out.long(acked as i64);
    out.int(request.opcode().as_i32());
    write_body(out, request);
}

fn write_body(out: &mut BytesMut, request: &Request) {
    match request {
        Request::Create(create) | Request::Create2(create) | Request::CreateContainer(create) => {
            write_create(out, create);
        }
        Request::CreateTtl(create, ttl_ms) => {
            write_create(out, create);
            out.long(*ttl_ms);
        }
        Request::Delete { path, version } | Request::Check { path, version } => {
            write_path_version(out, path, *version);
        }
        Request::Exists(of) | Request::GetData(of) | Request::GetChildren(of) | Request::GetChildren2(of) => {
            write_path_watch(out, of);
        }
        Request::SetData(set) => write_set_data(out, set),
        Request::SetAcl(set) => write_set_acl(out, set),
        Request::GetAcl(path)
        | Request::Sync(path)
        | Request::GetEphemerals(path)
        | Request::GetAllChildrenNumber(path) => out.string(path),
        Request::Multi(ops) => multi::write_ops(out, ops),
        Request::MultiRead(ops) => multi::write_read_ops(out, ops),
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
        Request::SetWatches(watches) => write_set_watches(out, watches),
        Request::SetWatches2(watches) => {
            write_set_watches(out, watches);
            out.strings(&watches.persistent);
            out.strings(&watches.persistent_recursive);
        }
        Request::Sasl(token) => out.buffer(token.as_deref()),
        Request::Tagged { id, acked, request } => write_tagged(out, *id, *acked, request),
        Request::Acquire(all) => lock::write_acquires(out, all),
        Request::Release(claims) | Request::Verify(claims) => lock::write_claims(out, claims),
        Request::Abandon(attempts) => lock::write_attempts(out, attempts),
        Request::Convert { claim, mode, prefix } => {
            lock::write_claim(out, claim);
            lock::write_mode(out, *mode);
            out.string(prefix);
        }
        Request::ForceRelease(claim) => lock::write_claim(out, claim),
        Request::Ask(ask) => lock::write_ask(out, ask),
        Request::SessionOptions(options) => out.int(options.disconnect_grace_ms as i32),
        Request::Report(query) | Request::Operate(query) => out.string(query),
        Request::Ping | Request::WhoAmI | Request::CloseSession => {}
    }
}

pub(super) fn write_create(out: &mut BytesMut, create: &Create) {
    out.string(&create.path);
    out.buffer(create.data.as_deref());
    write_acl(out, create.acl.as_deref());
    out.int(create.flags);
}

pub(super) fn write_set_data(out: &mut BytesMut, set: &SetData) {
    out.string(&set.path);
    out.buffer(set.data.as_deref());
    out.int(set.version.0);
}

pub(super) fn write_path_version(out: &mut BytesMut, path: &str, version: Version) {
    out.string(path);
    out.int(version.0);
}

fn write_path_watch(out: &mut BytesMut, path_watch: &PathWatch) {
    out.string(&path_watch.path);
    out.boolean(path_watch.watch);
}

fn write_set_acl(out: &mut BytesMut, set: &SetAcl) {
    out.string(&set.path);
    write_acl(out, set.acl.as_deref());
    out.int(set.version.0);
}

/// Encodes the fields common to setWatches and setWatches2.
fn write_set_watches(out: &mut BytesMut, watches: &SetWatches) {
    out.long(watches.relative_zxid.0);
    out.strings(&watches.data);
    out.strings(&watches.exist);
    out.strings(&watches.child);
}
