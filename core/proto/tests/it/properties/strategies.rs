//! Arbitrary records. One exhaustive match has the requests of all operations, and one the replies, so that
//! no new operation is left out.

pub mod lock;

use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use rowlock_proto::request::{Create, PathWatch, ReadOp, SetAcl, SetData, SetWatches};
use rowlock_proto::{
    Acl, ConnectRequest, ConnectResponse, ErrorCode, EventType, Id, Op, OpCode, OpResult, ReplyHeader,
    Request, RequestFrame, Response, SessionId, Stat, Version, WatchedEvent, Xid, Zxid,
};

/// Any text, possibly a path.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["(/[a-z]{1,5}){0,4}", "\\PC{0,12}"]
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..6)
}

fn data() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..64).prop_map(Bytes::from)
}

fn version() -> impl Strategy<Value = Version> {
    any::<i32>().prop_map(Version)
}

fn zxid() -> impl Strategy<Value = Zxid> {
    any::<i64>().prop_map(Zxid)
}

fn session_id() -> impl Strategy<Value = SessionId> {
    any::<i64>().prop_map(SessionId)
}

fn error() -> impl Strategy<Value = Option<ErrorCode>> {
    prop_oneof![-130..1_i32, any::<i32>()].prop_map(ErrorCode::from_code)
}

fn id() -> impl Strategy<Value = Id> {
    (text(), text()).prop_map(|(scheme, id)| Id { scheme, id })
}

fn acl() -> impl Strategy<Value = Vec<Acl>> {
    vec((any::<i32>(), id()).prop_map(|(perms, id)| Acl { perms, id }), 0..4)
}

/// Any ACL, sometimes the open one.
fn shared_acl() -> impl Strategy<Value = Arc<[Acl]>> {
    prop_oneof![3 => acl().prop_map(Arc::from), 1 => Just(Acl::shared_open())]
}

fn stat() -> impl Strategy<Value = Stat> {
    let zxids = (zxid(), zxid(), zxid());
    let times = (any::<i64>(), any::<i64>());
    let versions = (version(), version(), version());
    (zxids, times, versions, session_id(), any::<(i32, i32)>()).prop_map(
        |(zxids, times, versions, ephemeral_owner, (data_length, num_children))| Stat {
            czxid: zxids.0,
            mzxid: zxids.1,
            ctime_ms: times.0,
            mtime_ms: times.1,
            version: versions.0,
            cversion: versions.1,
            aversion: versions.2,
            ephemeral_owner,
            data_length,
            num_children,
            pzxid: zxids.2,
        },
    )
}

fn create() -> impl Strategy<Value = Create> {
    (text(), option::of(data()), option::of(shared_acl()), any::<i32>())
        .prop_map(|(path, data, acl, flags)| Create { path, data, acl, flags })
}

fn set_data() -> impl Strategy<Value = SetData> {
    (text(), option::of(data()), version()).prop_map(|(path, data, version)| SetData { path, data, version })
}

fn path_watch() -> impl Strategy<Value = PathWatch> {
    (text(), any::<bool>()).prop_map(|(path, watch)| PathWatch { path, watch })
}

/// Any create in a multi: only createTTL accepts a mode with a time to live.
fn create_in_multi() -> impl Strategy<Value = Create> {
    create().prop_map(|create| match create.flags {
        5 | 6 => Create { flags: 0, ..create },
        _ => create,
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        create_in_multi().prop_map(Op::Create),
        create_in_multi().prop_map(Op::Create2),
        create_in_multi().prop_map(Op::CreateContainer),
        (create(), 5..=6_i32, any::<i64>())
            .prop_map(|(create, flags, ttl_ms)| Op::CreateTtl(Create { flags, ..create }, ttl_ms)),
        (text(), version()).prop_map(|(path, version)| Op::Delete { path, version }),
        set_data().prop_map(Op::SetData),
        (text(), version()).prop_map(|(path, version)| Op::Check { path, version }),
    ]
}

fn op_result() -> impl Strategy<Value = OpResult> {
    prop_oneof![
        text().prop_map(OpResult::Create),
        (text(), stat()).prop_map(|(path, stat)| OpResult::Create2(path, stat)),
        (text(), stat()).prop_map(|(path, stat)| OpResult::CreateContainer(path, stat)),
        (text(), stat()).prop_map(|(path, stat)| OpResult::CreateTtl(path, stat)),
        Just(OpResult::Delete),
        stat().prop_map(OpResult::SetData),
        Just(OpResult::Check),
        error().prop_map(OpResult::Error),
        (option::of(data()), stat()).prop_map(|(data, stat)| OpResult::GetData(data, stat)),
        texts().prop_map(OpResult::GetChildren),
    ]
}

/// Lists of setWatches; the lists of setWatches2 stay empty.
fn set_watches() -> impl Strategy<Value = SetWatches> {
    (zxid(), texts(), texts(), texts()).prop_map(|(relative_zxid, data, exist, child)| SetWatches {
        relative_zxid,
        data,
        exist,
        child,
        ..SetWatches::default()
    })
}

fn set_watches2() -> impl Strategy<Value = SetWatches> {
    (set_watches(), texts(), texts()).prop_map(|(watches, persistent, persistent_recursive)| SetWatches {
        persistent,
        persistent_recursive,
        ..watches
    })
}

/// Any request of an operation.
pub fn request_of(opcode: OpCode) -> BoxedStrategy<Request> {
    let path_version = (text(), version());
    let path_number = (text(), any::<i32>());
    match opcode {
        OpCode::Create => create().prop_map(Request::Create).boxed(),
        OpCode::Delete => path_version.prop_map(|(path, version)| Request::Delete { path, version }).boxed(),
        OpCode::Exists => path_watch().prop_map(Request::Exists).boxed(),
        OpCode::GetData => path_watch().prop_map(Request::GetData).boxed(),
        OpCode::SetData => set_data().prop_map(Request::SetData).boxed(),
        OpCode::GetAcl => text().prop_map(Request::GetAcl).boxed(),
        OpCode::SetAcl => (text(), option::of(shared_acl()), version())
            .prop_map(|(path, acl, version)| Request::SetAcl(SetAcl { path, acl, version }))
            .boxed(),
        OpCode::GetChildren => path_watch().prop_map(Request::GetChildren).boxed(),
        OpCode::Sync => text().prop_map(Request::Sync).boxed(),
        OpCode::Ping => Just(Request::Ping).boxed(),
        OpCode::GetChildren2 => path_watch().prop_map(Request::GetChildren2).boxed(),
        OpCode::Check => path_version.prop_map(|(path, version)| Request::Check { path, version }).boxed(),
        OpCode::Multi => vec(op(), 0..6).prop_map(Request::Multi).boxed(),
        OpCode::Create2 => create().prop_map(Request::Create2).boxed(),
        OpCode::Reconfig => (option::of(text()), option::of(text()), option::of(text()), any::<i64>())
            .prop_map(|(joining, leaving, new_members, config_id)| Request::Reconfig {
                joining,
                leaving,
                new_members,
                config_id,
            })
            .boxed(),
        OpCode::CheckWatches => {
            path_number.prop_map(|(path, kind)| Request::CheckWatches { path, kind }).boxed()
        }
        OpCode::RemoveWatches => {
            path_number.prop_map(|(path, kind)| Request::RemoveWatches { path, kind }).boxed()
        }
        OpCode::CreateContainer => create().prop_map(Request::CreateContainer).boxed(),
        OpCode::CreateTtl => {
            (create(), any::<i64>()).prop_map(|(create, ttl_ms)| Request::CreateTtl(create, ttl_ms)).boxed()
        }
        OpCode::MultiRead => {
            let read = prop_oneof![text().prop_map(ReadOp::GetData), text().prop_map(ReadOp::GetChildren)];
            vec(read, 0..6).prop_map(Request::MultiRead).boxed()
        }
        OpCode::Auth => (any::<i32>(), text(), data())
            .prop_map(|(auth_type, scheme, auth)| Request::Auth { auth_type, scheme, auth })
            .boxed(),
        OpCode::SetWatches => set_watches().prop_map(Request::SetWatches).boxed(),
        OpCode::Sasl => option::of(data()).prop_map(Request::Sasl).boxed(),
        OpCode::GetEphemerals => text().prop_map(Request::GetEphemerals).boxed(),
        OpCode::GetAllChildrenNumber => text().prop_map(Request::GetAllChildrenNumber).boxed(),
        OpCode::SetWatches2 => set_watches2().prop_map(Request::SetWatches2).boxed(),
        OpCode::AddWatch => path_number.prop_map(|(path, mode)| Request::AddWatch { path, mode }).boxed(),
        OpCode::WhoAmI => Just(Request::WhoAmI).boxed(),
        OpCode::CloseSession => Just(Request::CloseSession).boxed(),
        OpCode::Tagged => (any::<(u64, u64)>(), tagged_opcode().prop_flat_map(request_of))
            .prop_map(|((id, acked), request)| Request::Tagged { id, acked, request: Box::new(request) })
            .boxed(),
        OpCode::Acquire => vec(lock::acquire(), 0..4).prop_map(|all| Request::Acquire(all.into())).boxed(),
        OpCode::Release => vec(lock::claim(), 0..4).prop_map(|all| Request::Release(all.into())).boxed(),
        OpCode::Abandon => vec(lock::attempt(), 0..4).prop_map(Request::Abandon).boxed(),
        OpCode::Verify => vec(lock::claim(), 0..4).prop_map(|all| Request::Verify(all.into())).boxed(),
        OpCode::Convert => (lock::claim(), lock::mode(), text())
            .prop_map(|(claim, mode, prefix)| Request::Convert { claim, mode, prefix })
            .boxed(),
        OpCode::ForceRelease => lock::claim().prop_map(Request::ForceRelease).boxed(),
        OpCode::SessionOptions => lock::session_options().prop_map(Request::SessionOptions).boxed(),
        OpCode::Report => text().prop_map(Request::Report).boxed(),
        OpCode::Operate => text().prop_map(Request::Operate).boxed(),
        OpCode::Ask => lock::ask().prop_map(Request::Ask).boxed(),
    }
}

/// Any body of a successful reply to an operation.
pub fn response_of(opcode: OpCode) -> BoxedStrategy<Response> {
    match opcode {
        OpCode::Create | OpCode::Sync => text().prop_map(Response::Path).boxed(),
        OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
            (text(), stat()).prop_map(|(path, stat)| Response::PathStat(path, stat)).boxed()
        }
        OpCode::Exists | OpCode::SetData | OpCode::SetAcl => stat().prop_map(Response::Stat).boxed(),
        OpCode::GetData | OpCode::Reconfig => {
            (option::of(data()), stat()).prop_map(|(data, stat)| Response::Data(data, stat)).boxed()
        }
        OpCode::GetAcl => (acl(), stat()).prop_map(|(acl, stat)| Response::Acl(acl, stat)).boxed(),
        OpCode::GetChildren | OpCode::GetEphemerals => texts().prop_map(Response::Children).boxed(),
        OpCode::GetChildren2 => {
            (texts(), stat()).prop_map(|(names, stat)| Response::Children2(names, stat)).boxed()
        }
        OpCode::Multi | OpCode::MultiRead => vec(op_result(), 0..6).prop_map(Response::Multi).boxed(),
        OpCode::GetAllChildrenNumber | OpCode::AddWatch | OpCode::Ask => {
            any::<i32>().prop_map(Response::Number).boxed()
        }
        OpCode::Sasl => option::of(data()).prop_map(Response::Sasl).boxed(),
        OpCode::WhoAmI => vec(id(), 0..4).prop_map(Response::WhoAmI).boxed(),
        OpCode::Delete
        | OpCode::Ping
        | OpCode::Check
        | OpCode::CheckWatches
        | OpCode::RemoveWatches
        | OpCode::Auth
        | OpCode::SetWatches
        | OpCode::SetWatches2
        | OpCode::CloseSession
        | OpCode::Abandon
        | OpCode::SessionOptions => Just(Response::Empty).boxed(),
        OpCode::Tagged => Just(Response::Empty).boxed(),
        OpCode::Acquire | OpCode::Convert => {
            vec(lock::position(), 0..4).prop_map(|all| Response::QueuePositions(all.into())).boxed()
        }
        OpCode::Release | OpCode::Verify | OpCode::ForceRelease => {
            vec(any::<bool>(), 0..6).prop_map(|held| Response::Held(held.into())).boxed()
        }
        OpCode::Report | OpCode::Operate => text().prop_map(Response::Report).boxed(),
    }
}

fn tagged_opcode() -> impl Strategy<Value = OpCode> {
    select(OpCode::ALL.iter().copied().filter(|opcode| opcode.may_be_tagged()).collect::<Vec<_>>())
}

pub fn opcode() -> impl Strategy<Value = OpCode> {
    select(OpCode::ALL)
}

pub fn request_frame() -> impl Strategy<Value = RequestFrame> {
    let request = opcode().prop_flat_map(request_of);
    (any::<i32>(), request).prop_map(|(xid, request)| RequestFrame { xid: Xid(xid), request })
}

pub fn reply_header() -> impl Strategy<Value = ReplyHeader> {
    (any::<i32>(), zxid(), error()).prop_map(|(xid, zxid, err)| ReplyHeader { xid: Xid(xid), zxid, err })
}

/// Any event that a server may send.
pub fn event() -> impl Strategy<Value = WatchedEvent> {
    let event_type = select(vec![
        EventType::None,
        EventType::NodeCreated,
        EventType::NodeDeleted,
        EventType::NodeDataChanged,
        EventType::NodeChildrenChanged,
    ]);
    (zxid(), event_type, any::<i32>(), text()).prop_map(|(zxid, event_type, state, path)| WatchedEvent {
        zxid,
        event_type,
        state,
        path,
    })
}

/// Any first frame of a client.
pub fn connect_request() -> impl Strategy<Value = ConnectRequest> {
    (any::<(i32, i32)>(), zxid(), session_id(), data(), any::<Option<bool>>()).prop_map(
        |((protocol_version, timeout_ms), last_zxid_seen, session_id, password, read_only)| ConnectRequest {
            protocol_version,
            last_zxid_seen,
            timeout_ms,
            session_id,
            password,
            read_only,
        },
    )
}

/// Any first frame of a server.
pub fn connect_response() -> impl Strategy<Value = ConnectResponse> {
    (any::<(i32, i32)>(), session_id(), data(), any::<Option<bool>>()).prop_map(
        |((protocol_version, timeout_ms), session_id, password, read_only)| ConnectResponse {
            protocol_version,
            timeout_ms,
            session_id,
            password,
            read_only,
        },
    )
}
