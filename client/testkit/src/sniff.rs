//! Identity of a connection's dialer, read from the first bytes without taking part. Pure.

use rowlock_proto::{NodeId, SessionId};
use rowlock_transport::Identity;
use rowlock_transport::frame::FrameReader;
use rowlock_transport::handshake::check_hello;
use rowlock_transport::limits::PEER_HELLO_MAX_BYTES;

/// Offset of the session in a `ConnectRequest` with the length in front: protocol, last zxid, timeout,
/// session.
const SESSION_ASKED: usize = 4 + 4 + 8 + 4;
/// Offset of the session in a `ConnectResponse`: protocol, timeout, session.
const SESSION_GIVEN: usize = 4 + 4 + 4;

/// Result of looking at the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen<T> {
    Incomplete,
    Found(T),
    Garbage,
}

/// Returns the node that dials `us`, counted from 0.
pub(super) fn dialer(bytes: &[u8], us: &Identity) -> Seen<usize> {
    let mut reader = FrameReader::new(PEER_HELLO_MAX_BYTES);
    reader.room().extend_from_slice(bytes);
    match reader.next_frame() {
        Ok(None) => Seen::Incomplete,
        Ok(Some(frame)) => match check_hello(&frame.body, us) {
            Ok(hello) => index_of(hello.from.node).map_or(Seen::Garbage, Seen::Found),
            Err(_) => Seen::Garbage,
        },
        Err(_) => Seen::Garbage,
    }
}

/// Nodes are numbered from 1, and counted from 0 by the test kit.
fn index_of(node: NodeId) -> Option<usize> {
    usize::try_from(node.0).ok()?.checked_sub(1)
}

/// Session that a client resumes; [`SessionId::NONE`] for a new session, or for a four-letter word instead of
/// a request.
pub(super) fn session_asked(bytes: &[u8]) -> Seen<SessionId> {
    match bytes.first_chunk::<4>() {
        None => Seen::Incomplete,
        Some(word) if word.iter().all(u8::is_ascii_lowercase) => Seen::Found(SessionId::NONE),
        Some(_) => session_at(bytes, SESSION_ASKED),
    }
}

pub(super) fn session_given(bytes: &[u8]) -> Seen<SessionId> {
    session_at(bytes, SESSION_GIVEN)
}

fn session_at(bytes: &[u8], at: usize) -> Seen<SessionId> {
    let session = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
    session.map_or(Seen::Incomplete, |id| Seen::Found(SessionId(i64::from_be_bytes(*id))))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use rowlock_proto::Incarnation;
    use rowlock_state::version::Versions;
    use rowlock_transport::Lane;
    use rowlock_transport::frame::{self, RequestId};
    use rowlock_transport::handshake::{Hello, encode_hello};

    use super::*;

    fn us() -> Identity {
        Identity { cluster: "test".to_owned(), node: NodeId(1) }
    }

    #[test]
    fn a_node_is_known_by_its_whole_first_frame() {
        let from = Identity { cluster: "test".to_owned(), node: NodeId(3) };
        let mut out = BytesMut::new();
        let hello = Hello {
            from,
            to: NodeId(1),
            lane: Lane::Control,
            incarnation: Incarnation(3),
            cluster: None,
            versions: Versions::of_this_release(),
        };
        frame::push(&mut out, RequestId::NONE, &encode_hello(&hello));
        assert_eq!(dialer(&out[..out.len() - 1], &us()), Seen::Incomplete);
        assert_eq!(dialer(&out, &us()), Seen::Found(2));
        out[20] ^= 1;
        assert_eq!(dialer(&out, &us()), Seen::Garbage);
    }

    #[test]
    fn a_session_is_read_where_it_stands_and_words_have_none() {
        let mut request = vec![0, 0, 0, 45];
        request.resize(SESSION_ASKED, 0);
        request.extend(0x0100_0000_0000_0007_i64.to_be_bytes());
        assert_eq!(session_asked(&request[..SESSION_ASKED + 7]), Seen::Incomplete);
        assert_eq!(session_asked(&request), Seen::Found(SessionId(0x0100_0000_0000_0007)));
        assert_eq!(session_asked(b"ruok"), Seen::Found(SessionId::NONE));
        assert_eq!(
            session_given(&request[SESSION_ASKED - SESSION_GIVEN..]),
            Seen::Found(SessionId(0x0100_0000_0000_0007))
        );
    }
}
