//! What an answer holds of others is bounded, however long names are and however many locks are asked for at
//! once.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Acquire, Owner, Party, QueuePosition};
use rowlock_proto::request::{Create, Op};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, SessionId};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::Applied;
use rowlock_state::{Machine, OUTCOMES_MAX_BYTES, PARTIES_MAX_BYTES, PARTY_PATH_MAX, PLACES_MAX};

fn apply(machine: &mut Machine, session: SessionId, command: Command) -> Response {
    applied(machine, session, command).result.unwrap()
}

fn applied(machine: &mut Machine, session: SessionId, command: Command) -> Applied {
    let attachment = Attachment(u64::from(session != SessionId::NONE));
    let origin = Origin::default();
    let proposal = Proposal { origin, session, attachment, identities: Default::default(), command };
    machine.apply(1_000, &proposal, &mut ())
}

fn open(machine: &mut Machine) -> SessionId {
    let command = Command::OpenSession { proof: Proof::of(&[1; 16]), timeout_ms: 1_000 };
    applied(machine, SessionId::NONE, command).attached.expect("a session opens").session
}

fn create(path: String, mode: CreateMode) -> Command {
    let create = Create { path, data: None, acl: Some(Acl::shared_open()), flags: mode.flags() };
    Command::Client(Request::Create2(create))
}

fn acquire(lock: String, owner: Owner) -> Acquire {
    Acquire { owner, ..Acquire::exclusive(lock, "a-") }
}

fn named(parties: &[&Party]) -> usize {
    assert!(parties.iter().all(|party| party.path.len() <= PARTY_PATH_MAX));
    parties.iter().map(|party| party.path.len() + party.label.len()).sum()
}

#[test]
fn long_names_of_a_thousand_holders_fit_a_snapshot() {
    let mut machine = Machine::new();
    let (holder, waiter) = (open(&mut machine), open(&mut machine));
    // Of two bytes each: a path is cut between characters.
    let name = "é".repeat(70_000);
    let mut all = Vec::new();
    for at in 0..PLACES_MAX {
        let lock = format!("/k{at}");
        apply(&mut machine, holder, create(lock.clone(), CreateMode::Persistent));
        apply(&mut machine, holder, create(format!("{lock}/{name}"), CreateMode::EphemeralSequential));
        all.push(acquire(lock, Owner::Unnamed));
    }
    let command = Box::new(Command::Client(Request::Acquire(all.into())));
    let outcome = apply(&mut machine, waiter, Command::Tagged { id: 1, acked: 0, command });
    let Response::QueuePositions(positions) = &outcome else { panic!("{outcome:?}") };
    let mut holders = Vec::new();
    for position in positions {
        let QueuePosition::Waiting { ahead: 1, holder, .. } = position else { panic!("{position:?}") };
        holders.extend(holder);
    }
    assert!(!holders.is_empty() && holders.len() < PLACES_MAX, "{}", holders.len());
    assert!(named(&holders) <= PARTIES_MAX_BYTES);
    assert!(machine.session(waiter).unwrap().outcome_bytes() < OUTCOMES_MAX_BYTES);
    let mut bytes = Vec::new();
    machine.freeze().encode(&mut bytes).unwrap();
    assert_eq!(Machine::decode(&mut bytes.as_slice()).unwrap().digest(), machine.digest());
}

#[test]
fn a_long_circle_is_cut_off_at_the_end() {
    const OWNERS: u64 = 400;
    let mut machine = Machine::new();
    let session = open(&mut machine);
    let lock = |at: u64| format!("/{}{at}", "l".repeat(2_000));
    for at in 0..OWNERS {
        apply(
            &mut machine,
            session,
            Command::Client(Request::Acquire([acquire(lock(at), Owner::Named(at))].into())),
        );
    }
    let wait = |machine: &mut Machine, at: u64| {
        let lock = lock((at + 1) % OWNERS);
        let wanted = Acquire { prefix: "w-".into(), ..acquire(lock, Owner::Named(at)) };
        apply(machine, session, Command::Client(Request::Acquire([wanted].into())))
    };
    for at in 0..OWNERS - 1 {
        assert!(
            matches!(wait(&mut machine, at), Response::QueuePositions(it) if matches!(it[0], QueuePosition::Waiting { .. }))
        );
    }
    let Response::QueuePositions(positions) = wait(&mut machine, OWNERS - 1) else {
        panic!("acquire gives queue positions")
    };
    let [QueuePosition::Deadlock(circle)] = &positions[..] else { panic!("{positions:?}") };
    let circle: Vec<&Party> = circle.iter().collect();
    assert!(!circle.is_empty() && circle.len() < OWNERS as usize, "{}", circle.len());
    assert!(named(&circle) <= PARTIES_MAX_BYTES);
    // The first is the one whose lock is asked for.
    let first = machine.lock_queue(&lock(0)).unwrap().holders().next().unwrap();
    assert_eq!(circle[0].token, first.token);
}

/// Writes that were sent again after the later ones: no outcome of a session is acknowledged before them.
#[test]
fn the_oldest_unanswered_write_is_run_beside_outcomes_at_their_bound() {
    let mut machine = Machine::new();
    let session = open(&mut machine);
    let mut write = |id: u64, acked: u64| {
        let op = |_| match create(format!("/{}", "n".repeat(3_900)), CreateMode::EphemeralSequential) {
            Command::Client(Request::Create2(create)) => Op::Create2(create),
            other => panic!("{other:?}"),
        };
        let request = Request::Multi((0..60).map(op).collect());
        let command = Command::Tagged { id, acked, command: Box::new(Command::Client(request)) };
        let applied = applied(&mut machine, session, command);
        machine.check().unwrap();
        applied.result.err()
    };
    let refused = (4..).find(|id| write(*id, 0).is_some()).unwrap();
    let throttled = Some(ErrorCode::ThrottledOp);
    assert_eq!([write(2, 0), write(3, 0), write(refused, 0)], [throttled; 3]);
    // Each acknowledgement admits the next write, and none of the others.
    assert_eq!(
        [write(1, 0), write(2, 0), write(2, 1), write(3, 1), write(3, 2)],
        [None, throttled, None, throttled, None]
    );
    assert_eq!([write(refused, 3), write(refused, refused - 1)], [throttled, None]);
}
