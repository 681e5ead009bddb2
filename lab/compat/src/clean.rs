//! Removes the znodes of finished scripts, as superuser: a cluster can serve any number of scripts.
//!
//! No verdict depends on the cleaning: without a superuser, a side keeps the znodes.

use bytes::Bytes;
use rowlock_proto::request::PathWatch;
use rowlock_proto::response::Response;
use rowlock_proto::{OpCode, Request, Version, Xid, Zxid, decode};

use crate::connection::{Connection, Incoming, Session};
use crate::script::{body, frame};

/// Credential of the superuser on the reference and on the compared cluster.
const SUPERUSER: &[u8] = b"super:test";

/// Number of requests sent before reading replies: small enough for both sides' buffers.
const REQUESTS_AT_ONCE: usize = 256;

pub struct Cleaner {
    connection: Connection,
}

impl Cleaner {
    pub async fn connect(host: &str) -> anyhow::Result<Self> {
        let (mut connection, _) = Connection::open(host, &Session::default(), Zxid(0)).await?;
        let (auth_type, scheme, auth) = (0, "digest".to_owned(), Bytes::from_static(SUPERUSER));
        let request = body(&Request::Auth { auth_type, scheme, auth });
        connection.queue(&frame(Xid::AUTH, OpCode::Auth.as_i32(), &request));
        connection.flush().await?;
        connection.receive().await;
        Ok(Cleaner { connection })
    }

    /// Removes the tree at `root`, level by level from the bottom. Returns `None` if the connection broke.
    pub async fn remove(&mut self, root: &str) -> Option<()> {
        let mut found = vec![root.to_owned()];
        let mut level = 0..1;
        while !level.is_empty() {
            let children =
                |path: &String| Request::GetChildren(PathWatch { path: path.clone(), watch: false });
            let requests: Vec<Request> = found[level.clone()].iter().map(children).collect();
            let answers = self.call(&requests).await?;
            let mut below = Vec::new();
            for (parent, answer) in found[level.clone()].iter().zip(answers) {
                if let Some(Response::Children(names)) = answer {
                    below.extend(names.into_iter().map(|name| format!("{parent}/{name}")));
                }
            }
            level = found.len()..found.len() + below.len();
            found.extend(below);
        }
        let delete = |path: &String| Request::Delete { path: path.clone(), version: Version::ANY };
        let requests: Vec<Request> = found.iter().rev().map(delete).collect();
        self.call(&requests).await.map(drop)
    }

    /// Removes all znodes in the root except those named in `keep`. Returns `None` if the connection broke.
    pub async fn sweep(&mut self, keep: &[&str]) -> Option<()> {
        let root = PathWatch { path: "/".to_owned(), watch: false };
        let Some(Response::Children(names)) = self.call(&[Request::GetChildren(root)]).await?.pop()? else {
            return Some(());
        };
        for name in names.iter().filter(|name| !keep.contains(&name.as_str())) {
            self.remove(&format!("/{name}")).await?;
        }
        Some(())
    }

    /// Sends requests and returns their replies, `None` for an error. Returns `None` if the connection broke.
    pub async fn call(&mut self, requests: &[Request]) -> Option<Vec<Option<Response>>> {
        let mut answers = Vec::with_capacity(requests.len());
        for some in requests.chunks(REQUESTS_AT_ONCE) {
            for request in some {
                self.connection.queue(&frame(Xid(1), request.opcode().as_i32(), &body(request)));
            }
            self.connection.flush().await.ok()?;
            for request in some {
                let Incoming::Frame(mut reply) = self.connection.receive().await else { return None };
                let header = decode::reply_header(&mut reply).ok()?;
                let ok = header.err.is_none();
                answers.push(ok.then(|| decode::response(&mut reply, request.opcode()).ok()).flatten());
            }
        }
        Some(answers)
    }
}
