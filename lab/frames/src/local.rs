//! Requests that the receiving node answers without the log.

use bytes::Bytes;
use rowlock_proto::request::{PathWatch, ReadOp, SetWatches};
use rowlock_proto::{CreateMode, ErrorCode, Request, Version};

use crate::Kind;
use crate::make::{BAD, KIND, many, with_data};

const NO_NODE: Option<ErrorCode> = Some(ErrorCode::NoNode);

/// Reads, watches, and queries of the node itself. `refused` is the reply to a request that fills a frame.
pub const LOCAL: &[Kind] = &[
    Kind {
        name: "multiRead of large data",
        prepare: |root| {
            vec![Request::Create2(with_data(&format!("{root}/z"), 1_000_000, CreateMode::Persistent))]
        },
        request: |at, n| Request::MultiRead(vec![ReadOp::GetData(format!("{}/z", at.root)); n]),
        ..KIND
    },
    Kind {
        name: "multiRead of many children",
        prepare: |root| many(root, "c", 10_000, CreateMode::Persistent),
        request: |at, n| Request::MultiRead(vec![ReadOp::GetChildren(at.root.to_owned()); n]),
        ..KIND
    },
    Kind {
        name: "setWatches2 of many paths",
        request: |at, n| {
            let exist = (0..n).map(|number| format!("{}/w{number:06}", at.root)).collect();
            Request::SetWatches2(SetWatches { exist, ..SetWatches::default() })
        },
        ..KIND
    },
    Kind {
        name: "setWatches2 of missed events",
        request: |at, n| {
            let exist = vec![at.root.to_owned(); n];
            Request::SetWatches2(SetWatches { exist, ..SetWatches::default() })
        },
        ..KIND
    },
    Kind {
        name: "addWatch with a long path",
        request: |at, n| Request::AddWatch { path: long(at.root, n), mode: 1 },
        ..KIND
    },
    Kind {
        name: "removeWatches with a long path",
        request: |at, n| Request::RemoveWatches { path: long(at.root, n), kind: 3 },
        refused: Some(ErrorCode::NoWatcher),
        ..KIND
    },
    Kind {
        name: "checkWatches with a long path",
        request: |at, n| Request::CheckWatches { path: long(at.root, n), kind: 3 },
        refused: Some(ErrorCode::NoWatcher),
        ..KIND
    },
    Kind {
        name: "exists with a watch on a long path",
        request: |at, n| Request::Exists(PathWatch { path: long(at.root, n), watch: true }),
        refused: NO_NODE,
        ..KIND
    },
    Kind {
        name: "getData of a long path",
        request: |at, n| Request::GetData(PathWatch { path: long(at.root, n), watch: true }),
        refused: NO_NODE,
        ..KIND
    },
    Kind {
        name: "getChildren of a long path",
        request: |at, n| Request::GetChildren(PathWatch { path: long(at.root, n), watch: true }),
        refused: NO_NODE,
        ..KIND
    },
    Kind {
        name: "getChildren2 of many children",
        prepare: |root| many(root, "c", 10_000, CreateMode::Persistent),
        request: |at, _| Request::GetChildren2(PathWatch { path: at.root.to_owned(), watch: true }),
        ..KIND
    },
    Kind {
        name: "check outside of a multi",
        request: |at, n| Request::Check { path: long(at.root, n), version: Version::ANY },
        refused: Some(ErrorCode::Unimplemented),
        ..KIND
    },
    Kind {
        name: "sasl with a long token",
        request: |_, n| Request::Sasl(Some(Bytes::from(vec![b't'; n]))),
        refused: Some(ErrorCode::AuthFailed),
        ..KIND
    },
    Kind {
        name: "setWatches of many paths",
        request: |at, n| {
            let child = (0..n).map(|number| format!("{}/w{number:06}", at.root)).collect();
            Request::SetWatches(SetWatches { child, ..SetWatches::default() })
        },
        ..KIND
    },
    Kind {
        name: "getACL of a long path",
        request: |at, n| Request::GetAcl(long(at.root, n)),
        refused: NO_NODE,
        ..KIND
    },
    Kind {
        name: "getAllChildrenNumber of a long path",
        request: |at, n| Request::GetAllChildrenNumber(long(at.root, n)),
        refused: NO_NODE,
        ..KIND
    },
    Kind {
        name: "getEphemerals with a long prefix",
        request: |at, n| Request::GetEphemerals(long(at.root, n)),
        ..KIND
    },
    Kind { name: "sync of a long path", request: |at, n| Request::Sync(long(at.root, n)), ..KIND },
    Kind {
        name: "report with a long query",
        request: |at, n| Request::Report(format!("/v1/queue?lock={}", long(at.root, n))),
        refused: BAD,
        ..KIND
    },
    Kind {
        name: "operate with a long query",
        request: |at, n| Request::Operate(format!("/v1/drain?node={}", long(at.root, n))),
        refused: Some(ErrorCode::NoAuth),
        ..KIND
    },
    Kind {
        name: "reconfig with long lists",
        request: |_, n| Request::Reconfig {
            joining: Some("server.9=h:1:2;3,".repeat(n)),
            leaving: None,
            new_members: None,
            config_id: -1,
        },
        refused: Some(ErrorCode::NoAuth),
        ..KIND
    },
    Kind {
        name: "auth with a long secret",
        request: |_, n| Request::Auth {
            auth_type: 0,
            scheme: "digest".to_owned(),
            auth: Bytes::from(vec![b'u'; n]),
        },
        refused: Some(ErrorCode::AuthFailed),
        ..KIND
    },
];

fn long(root: &str, bytes: usize) -> String {
    format!("{root}/{}", "n".repeat(bytes))
}
