//! Arbitrary records of Rowlock's own operations.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rowlock_proto::lock::{
    Acquire, Ask, Attempt, Claim, Mode, Notice, NoticeEvent, Owner, Party, QuestionNotice, QueuePosition,
    SessionOptions,
};
use rowlock_proto::{FencingToken, SessionId};

use super::{acl, data, text};

pub fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), any::<u32>().prop_map(Mode::Permits)]
}

fn owner() -> impl Strategy<Value = Owner> {
    prop_oneof![
        Just(Owner::Unnamed),
        Just(Owner::Session),
        any::<u64>().prop_map(Owner::Named),
        any::<u64>().prop_map(Owner::Under)
    ]
}

/// Any acquire of one lock.
pub fn acquire() -> impl Strategy<Value = Acquire> {
    let znode = (text(), text(), option::of(data()), option::of(acl()));
    let times = any::<(u32, u32, u32, bool)>();
    (znode, mode(), any::<u32>(), any::<bool>(), owner(), times).prop_map(
        |(
            (lock, prefix, data, acl),
            mode,
            limit,
            wait,
            owner,
            (max_hold_ms, lock_delay_ms, min_hold_ms, min_hold_lapses),
        )| Acquire {
            lock: lock.into(),
            prefix: prefix.into(),
            data,
            acl: acl.map(Into::into),
            mode,
            limit,
            wait,
            owner,
            max_hold_ms,
            lock_delay_ms,
            min_hold_ms,
            min_hold_lapses,
        },
    )
}

fn token() -> impl Strategy<Value = FencingToken> {
    any::<i64>().prop_map(FencingToken)
}

/// Any claim, by its queue znode.
pub fn claim() -> impl Strategy<Value = Claim> {
    (text(), token()).prop_map(|(path, token)| Claim { path: path.into(), token })
}

/// Any attempt, by its prefix.
pub fn attempt() -> impl Strategy<Value = Attempt> {
    (text(), text()).prop_map(|(lock, prefix)| Attempt { lock, prefix })
}

fn party() -> impl Strategy<Value = Party> {
    (text(), any::<i64>(), token(), data(), any::<i64>()).prop_map(
        |(path, session, token, label, since_ms)| Party {
            path: path.into(),
            session: SessionId(session),
            token,
            label,
            since_ms,
        },
    )
}

pub fn position() -> impl Strategy<Value = QueuePosition> {
    let place = || (any::<u32>(), option::of(party()));
    prop_oneof![
        claim().prop_map(QueuePosition::Held),
        (claim(), place()).prop_map(|(claim, (ahead, holder))| QueuePosition::Waiting {
            claim,
            ahead,
            holder
        }),
        place().prop_map(|(ahead, holder)| QueuePosition::Busy { ahead, holder }),
        vec(party(), 0..4).prop_map(QueuePosition::Deadlock),
        any::<u32>().prop_map(QueuePosition::LimitIs),
        Just(QueuePosition::Absent),
    ]
}

/// Any question to the holders of a lock.
pub fn ask() -> impl Strategy<Value = Ask> {
    (text(), text(), text(), any::<u32>()).prop_map(|(lock, reason, by, within_ms)| Ask {
        lock,
        reason,
        by,
        within_ms,
    })
}

fn question() -> impl Strategy<Value = QuestionNotice> {
    (text(), text(), any::<i64>(), option::of(any::<u32>()))
        .prop_map(|(reason, by, asked_ms, left_ms)| QuestionNotice { reason, by, asked_ms, left_ms })
}

pub fn notice() -> impl Strategy<Value = Notice> {
    let event = prop_oneof![
        Just(NoticeEvent::Granted),
        Just(NoticeEvent::Deleted),
        Just(NoticeEvent::Forced),
        Just(NoticeEvent::Revoked),
        question().prop_map(NoticeEvent::Asked)
    ];
    (claim(), event).prop_map(|(claim, event)| Notice { claim, event })
}

pub fn session_options() -> impl Strategy<Value = SessionOptions> {
    any::<u32>().prop_map(|disconnect_grace_ms| SessionOptions { disconnect_grace_ms })
}
