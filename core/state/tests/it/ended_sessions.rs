//! A session that a superuser ends, beside one that expires.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

use rowlock_proto::Request;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::Acquire;
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::{Attached, Change, EndReason, EventContext, EventSink, LockEvent, SessionEnd};
use rowlock_state::{Machine, Proof};

/// Why places were lost and sessions ended.
#[derive(Default)]
struct Told(Vec<EndReason>, Vec<SessionEnd>);

impl EventSink for Told {
    fn changed(&mut self, _: &Change<'_>) {}

    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}

    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}

    fn session_ended(&mut self, _: SessionId, end: SessionEnd) {
        self.1.push(end);
    }

    fn lock(&mut self, event: &LockEvent<&str>, _: &EventContext<'_>) {
        self.0.extend(event.kind.end().map(|end| end.reason));
    }
}

/// A holder with a lock-delay ends on behalf of `who`; the state behind it, and what was told.
fn ended_by(who: &[Id]) -> (Machine, Told) {
    let (mut machine, mut told, mut request) = (Machine::new(), Told::default(), 0);
    let mut run = |session, attachment, who: &[Id], command, told: &mut Told| {
        request += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, request };
        let proposal = Proposal { origin, session, attachment, identities: who.into(), command };
        let applied = machine.apply(1_000, &proposal, told);
        applied.result.map(|_| applied.attached).unwrap()
    };
    let open = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 10_000 };
    let opened = run(SessionId::NONE, Attachment::default(), &[], open, &mut told);
    let Attached { session, attachment, .. } = opened.expect("a session opens");
    let acquire = Acquire { lock_delay_ms: 5_000, ..Acquire::exclusive("/l".to_owned(), "a-".to_owned()) };
    run(session, attachment, &[], Command::Client(Request::Acquire([acquire].into())), &mut told);
    let end = Command::ExpireSession { session, attachment };
    run(SessionId::NONE, Attachment::default(), who, end, &mut told);
    (machine, told)
}

#[test]
fn an_end_by_a_superuser_differs_from_expiry_in_its_reason() {
    let superuser = [Id { scheme: "super".to_owned(), id: String::new() }];
    let (expired, why_expired) = ended_by(&[]);
    let (ended, why_ended) = ended_by(&superuser);
    // An older release knows no such end, and must come to the same state.
    assert_eq!(expired.digest(), ended.digest());
    assert_eq!((why_expired.0, why_expired.1), (vec![EndReason::SessionExpired], vec![SessionEnd::Expired]));
    assert_eq!((why_ended.0, why_ended.1), (vec![EndReason::SessionEnded], vec![SessionEnd::Ended]));
    let delayed = ended.lock_queue("/l").and_then(|lock| lock.delayed_until_ms());
    assert_eq!(delayed, Some(6_000), "its client may believe in the lock for a while");
}
