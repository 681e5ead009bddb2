//! The largest allowed requests, a few in a run: each must be answered, and no other client may suffer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_proto::lock::{Acquire, Claim, Mode, QueuePosition};
use rowlock_proto::request::{Create, Op, SetAcl, SetData, SetWatches};
use rowlock_proto::response::Response;
use rowlock_proto::{
    Acl, CreateMode, ErrorCode, Id, Request, SessionId, Version, Xid, encode, frame, path as paths, perms,
};

use super::super::chance::{between, millis, pick};
use super::super::life::Place as Life;
use super::session::{Fate, Session};
use crate::history::client::{ClientFact, Large};

/// Parent of the client's znodes.
const PARENT: &str = "/frames";
/// Number of frames, and the longest pause between two frames, in milliseconds.
const FRAMES: (u64, u64) = (2, 6);
const PAUSE_MS: u64 = 3_000;
/// Positions in one acquire, and claims in one release.
const PLACES_MAX: u64 = 1_024;
/// Missing znodes above the locks of one acquire, as in core/state/src/cost.rs. (The leader's estimate may be
/// older than the last reply, so one znode is left for the parent.)
const ANCESTORS_MAX: usize = 32;
const SESSION: Duration = Duration::from_secs(8);
/// Size of one ACL, as counted in core/state/src/acl.rs.
const ACL_MAX_BYTES: usize = 256 << 10;

/// Sends large frames, and deletes the created znodes.
pub(in super::super) async fn live(life: Life) {
    let (journal, membership) = (life.caller.journal(), &life.caller.profile().membership);
    let Some(mut session) = Session::open(journal, membership, SESSION).await else { return };
    for _ in 0..between(FRAMES.0, FRAMES.1) {
        session.idle(millis(0, PAUSE_MS)).await;
        if life.is_over() || session.is_over() {
            break;
        }
        // Errors need no handling: the next round opens a lost connection again.
        if session.is_attached() || session.attach().await.is_ok() {
            let kind = pick(&Large::ALL);
            let _ = one(&mut session, kind).await;
            if kind == Large::Creates {
                // The znodes end with the session, and one session may not own a second set.
                session.close().await;
                let Some(next) = Session::open(journal, membership, SESSION).await else { return };
                session = next;
            }
        }
    }
    session.close().await;
}

/// Sends one large request, with its preparation and cleanup.
async fn one(session: &mut Session, kind: Large) -> Result<(), Fate> {
    let path = format!("{PARENT}/{:x}-{}", session.id().0, between(0, u64::MAX / 2));
    // The parent may exist.
    session.attempt(Request::Create2(create(PARENT, None))).await?;
    if matches!(kind, Large::Set | Large::Acl) {
        session.attempt(Request::Create2(create(&path, None))).await?;
    }
    let request = largest(kind, &path, session.id());
    let made = made_by(&request);
    let outcome = session.ask(request).await;
    let reported = match &outcome {
        // The outcome is unknown.
        Err(_) | Ok((_, Err(ErrorCode::OperationTimeout | ErrorCode::ConnectionLoss))) => Err(()),
        Ok((_, result)) => Ok(result.as_ref().err().copied()),
    };
    session.journal().record(ClientFact::Asked { kind, outcome: reported });
    let (_, result) = outcome?;
    if let Ok(Response::QueuePositions(positions)) = result {
        let claims = positions.into_iter().filter_map(claim).collect();
        session.attempt(Request::Release(claims)).await?;
    }
    if kind == Large::Watches {
        // The watches end with the connection.
        session.hang_up();
        session.attach().await?;
    }
    for path in made.into_iter().chain([path]) {
        session.attempt(Request::Delete { path, version: Version::ANY }).await?;
    }
    Ok(())
}

fn claim(position: QueuePosition) -> Option<Claim> {
    match position {
        QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. } => Some(claim),
        _ => None,
    }
}

/// Returns the znodes created by a create of one znode or by an acquire of one lock, the lowest first.
fn made_by(request: &Request) -> Vec<String> {
    match request {
        Request::Create2(create) => vec![create.path.clone()],
        Request::Acquire(all) if all.len() == 1 => {
            let path = &*all[0].lock;
            let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > PARENT.len());
            [path.len()]
                .into_iter()
                .chain(ends.collect::<Vec<_>>().into_iter().rev())
                .map(|end| path[..end].to_owned())
                .collect()
        }
        _ => Vec::new(),
    }
}

fn create(path: &str, data: Option<Bytes>) -> Create {
    let (acl, flags) = (Some(Acl::shared_open()), CreateMode::Persistent.flags());
    Create { path: path.to_owned(), data, acl, flags }
}

/// Returns the size of a request's frame in bytes.
fn bytes(request: &Request) -> usize {
    let mut out = BytesMut::new();
    encode::request_of(Xid(1), request, &mut out);
    out.len() - frame::LENGTH_BYTES
}

/// Returns the bytes left in the largest frame after this request.
fn room(request: &Request) -> usize {
    frame::DEFAULT_MAX_BYTES.saturating_sub(bytes(request))
}

/// Fills the largest frame with items, each assumed to be as long as item number `sample`.
fn fill<T>(of: impl Fn(Vec<T>) -> Request, item: impl Fn(usize) -> T, sample: usize) -> Request {
    let base = bytes(&of(Vec::new()));
    let each = bytes(&of(vec![item(sample)])) - base;
    of((0..(frame::DEFAULT_MAX_BYTES - base) / each).map(item).collect())
}

fn largest(kind: Large, path: &str, session: SessionId) -> Request {
    match kind {
        Large::Data => {
            let of = |bytes| Request::Create2(create(path, Some(Bytes::from(vec![7; bytes]))));
            of(room(&of(0)))
        }
        Large::Set => {
            let of = |bytes| {
                let (path, version) = (path.to_owned(), Version::ANY);
                Request::SetData(SetData { path, data: Some(Bytes::from(vec![7; bytes])), version })
            };
            of(room(&of(0)))
        }
        Large::Name | Large::TooLong => {
            let of = |bytes| Request::Create2(create(&format!("{path}{}", "n".repeat(bytes)), None));
            of(if kind == Large::Name { paths::MAX_BYTES - path.len() } else { room(&of(0)) })
        }
        Large::Ancestors => {
            let lock = Acquire {
                lock: format!("{path}{}", "/a".repeat(ANCESTORS_MAX - 1)).into(),
                ..acquire(0, 0, session)
            };
            Request::Acquire([lock].into())
        }
        Large::Checks => {
            let check = |_| Op::Check { path: "/".to_owned(), version: Version::ANY };
            fill(Request::Multi, check, 0)
        }
        Large::Creates => {
            let flags = CreateMode::EphemeralSequential.flags();
            let made = |_| Op::Create(Create { flags, ..create(&format!("{PARENT}/e"), None) });
            fill(Request::Multi, made, 0)
        }
        Large::Places => {
            let of = |bytes: usize| {
                let place = |number| acquire(number, bytes, session);
                Request::Acquire((0..PLACES_MAX).map(place).collect())
            };
            let each = room(&of(0)) / usize::try_from(PLACES_MAX).unwrap_or(1);
            of(each)
        }
        Large::Watches => {
            let of = |exist| Request::SetWatches2(SetWatches { exist, ..SetWatches::default() });
            fill(of, |number| format!("{PARENT}/w{number:06}"), 0)
        }
        Large::Acl => {
            let entry = |number: usize| Acl {
                perms: perms::READ,
                id: Id { scheme: "digest".to_owned(), id: format!("user{number:06}:{}", "h".repeat(28)) },
            };
            let length = |acl: &Acl| 12 + acl.id.scheme.len() + acl.id.id.len();
            let open = Acl::open();
            let left = ACL_MAX_BYTES - open.iter().map(length).sum::<usize>();
            let all = (0..left / length(&entry(0))).map(entry);
            let acl = open.into_iter().chain(all).collect();
            Request::SetAcl(SetAcl { path: path.to_owned(), acl: Some(acl), version: Version::ANY })
        }
    }
}

/// Returns one of many positions, whose lock's name has `bytes` additional bytes.
fn acquire(number: u64, bytes: usize, session: SessionId) -> Acquire {
    Acquire {
        mode: Mode::Shared,
        ..Acquire::exclusive(
            format!("{PARENT}/l{number:04}{}", "l".repeat(bytes)),
            format!("{:016x}-", session.0),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_fills_the_frame_or_its_list() {
        for kind in Large::ALL {
            let request = largest(kind, "/frames/1-1", SessionId(0x0102_0304_0506_0708));
            let bytes = bytes(&request);
            assert!(bytes <= frame::DEFAULT_MAX_BYTES, "{kind:?}: {bytes}");
            match &request {
                Request::SetAcl(set) => assert!(set.acl.as_ref().is_some_and(|acl| acl.len() > 2_000)),
                Request::Create2(create) if kind == Large::Name => {
                    assert_eq!(create.path.len(), paths::MAX_BYTES)
                }
                Request::Acquire(all) if kind == Large::Ancestors => {
                    assert_eq!(paths::levels(&all[0].lock), paths::levels("/frames/1-1") + ANCESTORS_MAX - 1);
                }
                Request::Acquire(all) => {
                    assert_eq!(all.len() as u64, PLACES_MAX);
                    assert!(bytes > frame::DEFAULT_MAX_BYTES - 1_024, "{bytes}");
                }
                _ => assert!(bytes > frame::DEFAULT_MAX_BYTES - 128, "{kind:?}: {bytes}"),
            }
        }
    }
}
