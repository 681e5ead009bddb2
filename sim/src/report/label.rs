//! Labels of messages between two hosts, for the diagram: `acquire /locks/a`, `reply`, `append`.
//!
//! The label depends on the bytes only: an unreadable message has a label that admits this. Only worlds with
//! a trace call this module.

use bytes::{Bytes, BytesMut};
use rowlock_proto::lock::NoticeEvent;
use rowlock_proto::{Request, Xid, decode, frame};

/// Ports of client connections and of HTTP; all remaining ports are for peers.
const CLIENTS_PORT: u16 = 2181;
const REST_PORT: u16 = crate::cluster::REST_PORT;
/// Header length before the body of a frame between nodes.
const PEER_HEADER_BYTES: usize = 16;
/// Largest number of frames named in one label; the label counts any further frames.
const NAMED_MAX: usize = 2;

/// Returns the label of the frames written by one call. A `rowlock_world::network::Labeler`.
pub fn label(port: u16, to_server: bool, bytes: &[u8]) -> Option<String> {
    let mut buf = BytesMut::from(bytes);
    let mut names = Vec::new();
    let mut more = 0;
    loop {
        let name = match port {
            CLIENTS_PORT => {
                let Ok(Some(frame)) = frame::split(&mut buf, bytes.len()) else { break };
                if to_server { of_request(frame) } else { of_reply(frame) }
            }
            REST_PORT => {
                let Ok(Some(frame)) = frame::split(&mut buf, bytes.len()) else { break };
                let text = String::from_utf8_lossy(&frame);
                text.lines().next().unwrap_or_default().to_owned()
            }
            _ => match split_peer(&mut buf) {
                Some((id, body)) => of_peer(id, &body, to_server),
                None => break,
            },
        };
        if names.len() < NAMED_MAX { names.push(name) } else { more += 1 }
    }
    if names.is_empty() {
        return Some(format!("part of a message, {} bytes", bytes.len()));
    }
    names.dedup();
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Some(format!("{}{more}", names.join(", ")))
}

fn of_request(frame: Bytes) -> String {
    // The first frame of a connection has no xid; its first four bytes are the version of the protocol, 0.
    if frame.starts_with(&[0, 0, 0, 0]) {
        return "connect".to_owned();
    }
    match decode::request(frame) {
        Ok(frame) => of_request_body(&frame.request),
        Err(_) => "request".to_owned(),
    }
}

fn of_request_body(request: &Request) -> String {
    let path = match request {
        // The label ignores the envelope.
        Request::Tagged { request, .. } => return of_request_body(request),
        Request::Create(create) | Request::Create2(create) | Request::CreateContainer(create) => &create.path,
        Request::Delete { path, .. } => path,
        Request::Exists(watch)
        | Request::GetData(watch)
        | Request::GetChildren(watch)
        | Request::GetChildren2(watch) => &watch.path,
        Request::SetData(set) => &set.path,
        Request::Sync(path) => path,
        Request::Acquire(all) => return of_locks("acquire", all.iter().map(|acquire| &*acquire.lock)),
        Request::Release(all) => return of_locks("release", all.iter().map(|claim| parent(&claim.path))),
        Request::Abandon(all) => return of_locks("abandon", all.iter().map(|attempt| attempt.lock.as_str())),
        Request::Verify(all) => return of_locks("verify", all.iter().map(|claim| parent(&claim.path))),
        other => return other.opcode().as_str().to_owned(),
    };
    format!("{} {path}", request.opcode().as_str())
}

fn of_locks<'a>(what: &str, locks: impl Iterator<Item = &'a str>) -> String {
    format!("{what} {}", locks.collect::<Vec<_>>().join(" "))
}

/// Returns the lock of a queue position.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(lock, _)| lock)
}

fn of_reply(mut frame: Bytes) -> String {
    let Ok(header) = decode::reply_header(&mut frame) else { return "reply".to_owned() };
    match (header.xid, header.err) {
        (Xid(0), _) => "connected".to_owned(),
        (Xid::PING, _) => "pong".to_owned(),
        (Xid::EVENT, _) => match decode::event(&mut frame) {
            Ok(event) => format!("event {:?} {}", event.event_type, event.path),
            Err(_) => "event".to_owned(),
        },
        (Xid::NOTICE, _) => match decode::notice(&mut frame) {
            Ok(notice) if notice.event == NoticeEvent::Granted => {
                format!("granted {}", parent(&notice.claim.path))
            }
            Ok(notice) => format!("lost {}: {:?}", parent(&notice.claim.path), notice.event),
            Err(_) => "notice".to_owned(),
        },
        (_, Some(error)) => format!("refused: {error}"),
        (_, None) => "reply".to_owned(),
    }
}

/// Splits off `(id, body)` of the next frame between nodes: length, checksum, id, body.
fn split_peer(buf: &mut BytesMut) -> Option<(u64, Bytes)> {
    let length = u32::from_be_bytes(*buf.first_chunk()?) as usize;
    let whole = length.checked_add(8)?;
    if whole < PEER_HEADER_BYTES || buf.len() < whole {
        return None;
    }
    let frame = buf.split_to(whole).freeze();
    let id = u64::from_be_bytes(*frame[8..].first_chunk()?);
    Some((id, frame.slice(PEER_HEADER_BYTES..)))
}

/// Returns the label of a frame between nodes. The first bytes of a body are variant indices of
/// `coordinator::peer::message`, which never change.
fn of_peer(id: u64, body: &[u8], question: bool) -> String {
    if id == 0 {
        return "hello".to_owned();
    }
    let kind = (body.first().copied(), body.get(1).copied());
    let name = match (question, kind) {
        (true, (Some(0), Some(0))) => "append",
        (true, (Some(0), Some(1))) => "vote?",
        (true, (Some(0), Some(2))) => "pre-vote?",
        (true, (Some(0), Some(3))) => "lead!",
        (true, (Some(0), Some(4))) => "snapshot",
        (true, (Some(1), _)) => "forward",
        (true, (Some(2), _)) => "touches",
        (true, (Some(3), _)) => "read-index?",
        (true, (Some(4), _)) => "status?",
        (true, (Some(5..=7), _)) => "members",
        (true, (Some(8), _)) => "disconnects",
        (false, (Some(0), Some(0))) => "appended",
        (false, (Some(0), Some(1))) => "vote",
        (false, (Some(0), Some(2))) => "leading",
        (false, (Some(0), Some(3..=4))) => "snapshot-received",
        (false, (Some(1), _)) => "forwarded",
        (false, (Some(2), _)) => "touched",
        (false, (Some(3), _)) => "read-index",
        (false, (Some(6), _)) => "refused",
        _ if question => "question",
        _ => "answer",
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a client's frame: length, xid, opcode, body.
    fn request(xid: i32, opcode: i32, body: &[u8]) -> Vec<u8> {
        let length = 8 + body.len() as i32;
        [&length.to_be_bytes()[..], &xid.to_be_bytes(), &opcode.to_be_bytes(), body].concat()
    }

    fn path(path: &str) -> Vec<u8> {
        [&(path.len() as i32).to_be_bytes()[..], path.as_bytes()].concat()
    }

    fn peer(id: u64, body: &[u8]) -> Vec<u8> {
        let length = 8 + body.len() as u32;
        [&length.to_be_bytes()[..], &[0; 4], &id.to_be_bytes(), body].concat()
    }

    fn named(port: u16, to_server: bool, bytes: &[u8]) -> String {
        label(port, to_server, bytes).unwrap()
    }

    #[test]
    fn requests_have_their_path_and_batches_their_first_requests() {
        let ping = request(-2, 11, &[]);
        let sync = request(5, 9, &path("/a"));
        assert_eq!(named(2181, true, &ping), "ping");
        assert_eq!(named(2181, true, &sync), "sync /a");
        assert_eq!(
            named(2181, true, &[sync.clone(), ping.clone(), ping, sync].concat()),
            "sync /a, ping, and 2 more"
        );
    }

    #[test]
    fn replies_events_and_refusals_have_distinct_labels() {
        let reply = |xid: i32, err: i32, body: &[u8]| {
            let length = 16 + body.len() as i32;
            [&length.to_be_bytes()[..], &xid.to_be_bytes(), &7i64.to_be_bytes(), &err.to_be_bytes(), body]
                .concat()
        };
        assert_eq!(named(2181, false, &reply(3, 0, b"what it says")), "reply");
        assert_eq!(named(2181, false, &reply(-2, 0, &[])), "pong");
        assert!(named(2181, false, &reply(4, -101, &[])).starts_with("refused: "));
        let event = [&2i32.to_be_bytes()[..], &3i32.to_be_bytes(), &path("/a")].concat();
        assert_eq!(named(2181, false, &reply(-1, 0, &event)), "event NodeDeleted /a");
    }

    #[test]
    fn frames_between_nodes_are_named_by_their_first_bytes() {
        assert_eq!(named(2281, true, &peer(4, &[0, 0, 9, 9])), "append");
        assert_eq!(named(2281, false, &peer(4, &[0, 0])), "appended");
        assert_eq!(named(2281, true, &peer(0, &[1])), "hello");
        assert_eq!(named(2281, true, &peer(1, &[3])), "read-index?");
    }

    #[test]
    fn any_bytes_have_a_name() {
        let mut rng = rowlock_world::rng::Rng::new(5);
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..rng.below(80)).map(|_| (rng.u64() >> rng.below(64)) as u8).collect();
            for port in [2181, 2281] {
                for to_server in [true, false] {
                    assert!(!named(port, to_server, &bytes).is_empty());
                }
            }
        }
    }
}
