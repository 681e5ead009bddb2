//! Decodes the records of Rowlock's own opcodes: see [`crate::lock`].
//!
//! The constants are the minimum sizes of vector elements. Invariant: no constant exceeds the size of the
//! shortest element, or decoding would refuse vectors of short elements. A tight constant limits the memory
//! that a forged count can reserve.

use bytes::Bytes;

use super::shared_acl;
use crate::codec::{DecodeError, Decoded, Reader};
use crate::ids::{FencingToken, SessionId};
use crate::lock::{
    Acquire, Ask, Attempt, Claim, Few, Mode, Notice, NoticeEvent, Owner, Party, QuestionNotice, QueuePosition,
};

/// Decodes the body of a frame with [`crate::Xid::NOTICE`].
pub fn notice(frame: &mut Bytes) -> Result<Notice, DecodeError> {
    Reader::front(frame, |r| {
        let claim = claim(r)?;
        let event = match r.int()? {
            0 => NoticeEvent::Granted,
            1 => NoticeEvent::Deleted,
            2 => NoticeEvent::Forced,
            3 => NoticeEvent::Revoked,
            4 => NoticeEvent::Asked(question(r)?),
            number => return Err(DecodeError::UnknownVariant { number }),
        };
        Ok(Notice { claim, event })
    })
}

/// Lengths of two strings, data and ACL; mode, limit, wait, owner; three times, and the flag of the minimum
/// hold.
const ACQUIRE_BYTES: usize = 4 * 4 + 8 + 4 + 1 + 12 + 3 * 4 + 1;
/// Length of a path; the token.
const CLAIM_BYTES: usize = 4 + 8;
/// Lengths of two strings.
const ATTEMPT_BYTES: usize = 2 * 4;
/// A kind without further fields.
const STANDING_BYTES: usize = 4;
/// Length of a path, session, token, length of the label, time.
const PARTY_BYTES: usize = 4 + 8 + 8 + 4 + 8;

pub(super) fn acquires(r: &mut Reader<'_>) -> Decoded<Few<Acquire>> {
    r.few(ACQUIRE_BYTES, |r| {
        Ok(Acquire {
            lock: r.slice()?,
            prefix: r.slice()?,
            data: r.buffer()?,
            acl: shared_acl(r)?,
            mode: mode(r)?,
            limit: number(r)?,
            wait: r.boolean()?,
            owner: owner(r)?,
            max_hold_ms: number(r)?,
            lock_delay_ms: number(r)?,
            min_hold_ms: number(r)?,
            min_hold_lapses: r.boolean()?,
        })
    })
}

/// Reads an unsigned number from the four bytes of an int.
pub(super) fn number(r: &mut Reader<'_>) -> Decoded<u32> {
    Ok(r.int()? as u32)
}

pub(super) fn mode(r: &mut Reader<'_>) -> Decoded<Mode> {
    let (kind, permits) = (r.int()?, number(r)?);
    match kind {
        0 => Ok(Mode::Exclusive),
        1 => Ok(Mode::Shared),
        2 => Ok(Mode::Permits(permits)),
        number => Err(DecodeError::UnknownVariant { number }),
    }
}

fn owner(r: &mut Reader<'_>) -> Decoded<Owner> {
    let (kind, number) = (r.int()?, r.long()?);
    match kind {
        0 => Ok(Owner::Unnamed),
        1 => Ok(Owner::Session),
        2 => Ok(Owner::Named(number as u64)),
        3 => Ok(Owner::Under(number as u64)),
        number => Err(DecodeError::UnknownVariant { number }),
    }
}

pub(super) fn claim(r: &mut Reader<'_>) -> Decoded<Claim> {
    Ok(Claim { path: r.shared_string()?, token: FencingToken(r.long()?) })
}

pub(super) fn claims(r: &mut Reader<'_>) -> Decoded<Few<Claim>> {
    r.few(CLAIM_BYTES, claim)
}

pub(super) fn ask(r: &mut Reader<'_>) -> Decoded<Ask> {
    Ok(Ask { lock: r.string()?, reason: r.string()?, by: r.string()?, within_ms: number(r)? })
}

fn question(r: &mut Reader<'_>) -> Decoded<QuestionNotice> {
    Ok(QuestionNotice {
        reason: r.string()?,
        by: r.string()?,
        asked_ms: r.long()?,
        left_ms: if r.boolean()? { Some(number(r)?) } else { None },
    })
}

pub(super) fn attempts(r: &mut Reader<'_>) -> Decoded<Vec<Attempt>> {
    r.vector(ATTEMPT_BYTES, |r| Ok(Attempt { lock: r.string()?, prefix: r.string()? }))
}

pub(super) fn positions(r: &mut Reader<'_>) -> Decoded<Vec<QueuePosition>> {
    r.vector(STANDING_BYTES, |r| {
        Ok(match r.int()? {
            0 => QueuePosition::Held(claim(r)?),
            1 => QueuePosition::Waiting { claim: claim(r)?, ahead: number(r)?, holder: holder(r)? },
            2 => QueuePosition::Busy { ahead: number(r)?, holder: holder(r)? },
            3 => QueuePosition::Deadlock(r.vector(PARTY_BYTES, party)?),
            4 => QueuePosition::LimitIs(number(r)?),
            5 => QueuePosition::Absent,
            number => return Err(DecodeError::UnknownVariant { number }),
        })
    })
}

fn holder(r: &mut Reader<'_>) -> Decoded<Option<Party>> {
    if r.boolean()? { party(r).map(Some) } else { Ok(None) }
}

fn party(r: &mut Reader<'_>) -> Decoded<Party> {
    Ok(Party {
        path: r.shared_string()?,
        session: SessionId(r.long()?),
        token: FencingToken(r.long()?),
        label: r.buffer()?.unwrap_or_default(),
        since_ms: r.long()?,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::BytesMut;

    use super::*;
    use crate::acl::Acl;
    use crate::encode;
    use crate::ids::{Xid, Zxid};
    use crate::opcode::OpCode;
    use crate::request::{Request, RequestFrame};
    use crate::response::{ReplyHeader, Response};

    /// Length, xid, opcode, and the count of the vector.
    const REQUEST_BYTES: usize = 12 + 4;
    /// Length, header, and the count of the vector.
    const REPLY_BYTES: usize = 20 + 4;

    fn request_bytes(request: Request) -> usize {
        let mut out = BytesMut::new();
        encode::request(&RequestFrame { xid: Xid(1), request }, &mut out);
        out.len() - REQUEST_BYTES
    }

    fn reply_bytes(position: QueuePosition) -> usize {
        let mut out = BytesMut::new();
        let header = ReplyHeader { xid: Xid(1), zxid: Zxid(2), err: None };
        encode::reply(header, Some(&Response::QueuePositions(vec![position].into())), &mut out);
        out.len() - REPLY_BYTES
    }

    fn shortest_acquire() -> Acquire {
        Acquire { acl: None, wait: false, ..Acquire::exclusive("", "") }
    }

    #[test]
    fn the_least_that_an_element_takes_is_what_its_shortest_takes() {
        assert_eq!(request_bytes(Request::Acquire([shortest_acquire()].into())), ACQUIRE_BYTES);
        let claim = Claim { path: "".into(), token: FencingToken(0) };
        assert_eq!(request_bytes(Request::Release([claim].into())), CLAIM_BYTES);
        let attempt = Attempt { lock: String::new(), prefix: String::new() };
        assert_eq!(request_bytes(Request::Abandon(vec![attempt])), ATTEMPT_BYTES);
        assert_eq!(reply_bytes(QueuePosition::Absent), STANDING_BYTES);
        let party = Party {
            path: "".into(),
            session: SessionId(0),
            token: FencingToken(0),
            label: Bytes::new(),
            since_ms: 0,
        };
        let empty = reply_bytes(QueuePosition::Deadlock(Vec::new()));
        assert_eq!(reply_bytes(QueuePosition::Deadlock(vec![party])) - empty, PARTY_BYTES);
    }

    #[test]
    fn a_frame_full_of_the_shortest_places_is_read_whole() {
        let request = Request::Acquire(vec![shortest_acquire(); 1_000].into());
        let frame = RequestFrame { xid: Xid(1), request };
        let mut out = BytesMut::new();
        encode::request(&frame, &mut out);
        assert_eq!(crate::decode::request(out.freeze().slice(4..)), Ok(frame));
    }

    #[test]
    fn the_acl_of_an_open_znode_is_one_list_for_all() {
        let acls = [
            Some(Acl::open().into()),
            None,
            Some([].into()),
            Some([Acl::open(), Acl::open()].concat().into()),
        ];
        let all = acls.into_iter().map(|acl| Acquire { acl, ..shortest_acquire() }).collect();
        let mut out = BytesMut::new();
        let frame = RequestFrame { xid: Xid(1), request: Request::Acquire(all) };
        encode::request(&frame, &mut out);
        let read = crate::decode::request(out.freeze().slice(4..)).unwrap();
        assert_eq!(read, frame);
        let Request::Acquire(all) = read.request else { unreachable!("that was sent") };
        assert!(Arc::ptr_eq(all[0].acl.as_ref().unwrap(), &Acl::shared_open()));
    }

    #[test]
    fn a_count_beyond_the_frame_is_refused_before_anything_is_reserved() {
        for opcode in [OpCode::Acquire, OpCode::Release, OpCode::Abandon, OpCode::Verify] {
            let mut out = BytesMut::new();
            out.extend_from_slice(&1_i32.to_be_bytes());
            out.extend_from_slice(&opcode.as_i32().to_be_bytes());
            out.extend_from_slice(&i32::MAX.to_be_bytes());
            let refused = crate::decode::request(out.freeze());
            let beyond = DecodeError::CountBeyondFrame { count: i32::MAX as usize, left: 0 };
            assert_eq!(refused, Err(crate::BadRequest::Body { xid: Xid(1), opcode, source: beyond }));
        }
    }
}
