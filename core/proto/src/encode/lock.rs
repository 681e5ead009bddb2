//! Encodes the records of Rowlock's own opcodes: see [`crate::lock`].

use bytes::BytesMut;

use super::response::HEADER_BYTES;
use super::{last_frame, write_acl};
use crate::codec::{Writer, write_frame};
use crate::decode;
use crate::ids::{Xid, Zxid};
use crate::lock::{Acquire, Ask, Attempt, Claim, Mode, Notice, NoticeEvent, Owner, Party, QueuePosition};
use crate::response::ReplyHeader;

/// Appends a notice as a frame.
pub fn notice(zxid: Zxid, notice: &Notice, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| {
        super::response::write_header(out, ReplyHeader { xid: Xid::NOTICE, zxid, err: None });
        write_claim(out, &notice.claim);
        out.int(match notice.event {
            NoticeEvent::Granted => 0,
            NoticeEvent::Deleted => 1,
            NoticeEvent::Forced => 2,
            NoticeEvent::Revoked => 3,
            NoticeEvent::Asked(_) => 4,
        });
        if let NoticeEvent::Asked(question) = &notice.event {
            out.string(&question.reason);
            out.string(&question.by);
            out.long(question.asked_ms);
            out.boolean(question.left_ms.is_some());
            question.left_ms.iter().for_each(|left_ms| out.int(*left_ms as i32));
        }
    });
    debug_assert_eq!(
        decode::notice(&mut last_frame(out, start).slice(HEADER_BYTES..)).as_ref(),
        Ok(notice),
        "the frame decodes to another notice"
    );
}

pub(super) fn write_acquires(out: &mut BytesMut, all: &[Acquire]) {
    out.count(all.len());
    for acquire in all {
        out.string(&acquire.lock);
        out.string(&acquire.prefix);
        out.buffer(acquire.data.as_deref());
        write_acl(out, acquire.acl.as_deref());
        write_mode(out, acquire.mode);
        out.int(acquire.limit as i32);
        out.boolean(acquire.wait);
        let (kind, number) = match acquire.owner {
            Owner::Unnamed => (0, 0),
            Owner::Session => (1, 0),
            Owner::Named(number) => (2, number),
            Owner::Under(number) => (3, number),
        };
        out.int(kind);
        out.long(number as i64);
        out.int(acquire.max_hold_ms as i32);
        out.int(acquire.lock_delay_ms as i32);
        out.int(acquire.min_hold_ms as i32);
        out.boolean(acquire.min_hold_lapses);
    }
}

pub(super) fn write_mode(out: &mut BytesMut, mode: Mode) {
    let (kind, permits) = match mode {
        Mode::Exclusive => (0, 0),
        Mode::Shared => (1, 0),
        Mode::Permits(permits) => (2, permits),
    };
    out.int(kind);
    out.int(permits as i32);
}

pub(super) fn write_claim(out: &mut BytesMut, claim: &Claim) {
    out.string(&claim.path);
    out.long(claim.token.0);
}

pub(super) fn write_claims(out: &mut BytesMut, claims: &[Claim]) {
    out.count(claims.len());
    for claim in claims {
        write_claim(out, claim);
    }
}

pub(super) fn write_ask(out: &mut BytesMut, ask: &Ask) {
    out.string(&ask.lock);
    out.string(&ask.reason);
    out.string(&ask.by);
    out.int(ask.within_ms as i32);
}

pub(super) fn write_attempts(out: &mut BytesMut, attempts: &[Attempt]) {
    out.count(attempts.len());
    for attempt in attempts {
        out.string(&attempt.lock);
        out.string(&attempt.prefix);
    }
}

pub(super) fn write_positions(out: &mut BytesMut, positions: &[QueuePosition]) {
    out.count(positions.len());
    for position in positions {
        match position {
            QueuePosition::Held(claim) => {
                out.int(0);
                write_claim(out, claim);
            }
            QueuePosition::Waiting { claim, ahead, holder } => {
                out.int(1);
                write_claim(out, claim);
                out.int(*ahead as i32);
                write_holder(out, holder.as_ref());
            }
            QueuePosition::Busy { ahead, holder } => {
                out.int(2);
                out.int(*ahead as i32);
                write_holder(out, holder.as_ref());
            }
            QueuePosition::Deadlock(circle) => {
                out.int(3);
                out.count(circle.len());
                for party in circle {
                    write_party(out, party);
                }
            }
            QueuePosition::LimitIs(limit) => {
                out.int(4);
                out.int(*limit as i32);
            }
            QueuePosition::Absent => out.int(5),
        }
    }
}

fn write_holder(out: &mut BytesMut, holder: Option<&Party>) {
    out.boolean(holder.is_some());
    if let Some(holder) = holder {
        write_party(out, holder);
    }
}

fn write_party(out: &mut BytesMut, party: &Party) {
    out.string(&party.path);
    out.long(party.session.0);
    out.long(party.token.0);
    out.buffer(Some(&party.label));
    out.long(party.since_ms);
}
