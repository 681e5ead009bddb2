//! `rowlock import --from` a server that answers what no honest one does: the import ends, and says why.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rowlock_env::net::Listener;
use rowlock_frames::wire::Wire;
use rowlock_proto::acl::Acl;
use rowlock_proto::response::{ConnectResponse, ReplyHeader};
use rowlock_proto::{ErrorCode, Request, Response, SessionId, Stat, Zxid, decode, encode};

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{finish_within, rowlock};
use crate::support::secs;

const DATA: i32 = 65;
/// In the place of these bytes the server sends one that is not UTF-8.
const NOT_UTF8: &[u8] = b"not-utf-8";

/// Serves a tree in which every znode has one child of this name.
async fn serve(listener: Listener, child: &'static str) {
    loop {
        let mut wire = Wire::over(listener.accept().await);
        tokio::spawn(async move {
            let Ok(hello) = wire.frame().await else { return };
            decode::connect_request(hello).unwrap();
            let (session_id, password) = (SessionId(7), Bytes::from_static(&[7; 16]));
            let hello = ConnectResponse {
                protocol_version: 0,
                timeout_ms: 10_000,
                session_id,
                password,
                read_only: Some(false),
            };
            let mut out = BytesMut::new();
            encode::connect_response(&hello, &mut out);
            while wire.send(&out).await.is_ok()
                && let Ok(frame) = wire.frame().await
            {
                out = answer(frame, child);
            }
        });
    }
}

fn answer(frame: Bytes, child: &str) -> BytesMut {
    let asked = decode::request(frame).unwrap();
    let stat = Stat { num_children: 1, ..Stat::default() };
    let answer = match asked.request {
        Request::GetData(read) if read.path.starts_with("/zookeeper") => Err(ErrorCode::NoNode),
        Request::GetData(_) => Ok(Response::Data(None, stat)),
        Request::GetAcl(_) => Ok(Response::Acl(Acl::open(), stat)),
        Request::GetChildren(_) => Ok(Response::Children(vec![child.to_owned()])),
        Request::GetChildren2(_) => Ok(Response::Children2(vec![child.to_owned()], stat)),
        Request::Sync(path) => Ok(Response::Path(path)),
        _ => Ok(Response::Empty),
    };
    let mut out = BytesMut::new();
    let header = ReplyHeader { xid: asked.xid, zxid: Zxid(1), err: answer.as_ref().err().copied() };
    encode::reply(header, answer.as_ref().ok(), &mut out);
    if let Some(at) = out.windows(NOT_UTF8.len()).position(|bytes| bytes == NOT_UTF8) {
        out[at] = 0xff;
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_with_names_that_no_tree_has_or_without_end_is_refused_with_the_reason() {
    let cluster = Cluster::start(1, FAST).await;
    for (child, why) in [
        ("..", "relative"),
        (".", "relative"),
        ("a/b", "no slash"),
        ("", "no slash"),
        ("not-utf-8", "not UTF-8"),
        ("x", "more than 255 levels"),
    ] {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        let server = tokio::spawn(serve(listener, child));
        let begun = Instant::now();
        let import = rowlock(&cluster.folder, &["import", "--from", &address, "--dry-run"]).spawn().unwrap();
        let said = tokio::task::spawn_blocking(move || finish_within(import, secs(30))).await.unwrap();
        server.abort();
        assert_eq!(said.code, DATA, "{child:?}: {}", said.err);
        assert!(said.err.contains(why), "{child:?}: {}", said.err);
        assert!(begun.elapsed() < Duration::from_secs(20), "{child:?}: {:?}", begun.elapsed());
    }
}
