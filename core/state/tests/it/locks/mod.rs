//! Random histories of lock commands, against a queue that anybody can check by eye ([`naive`]).
//!
//! Compared after every command: what it was answered, who was granted and who left, and the whole queue of
//! every lock. Besides: the machine's own invariants, a snapshot that is read back, and that nothing depends
//! on how often it is.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod naive;

use naive::{Naive, Seen};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Acquire, Attempt, Claim, Mode};
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, FencingToken, SessionId, Version};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::{
    Applied, Change, EventContext, EventSink, LockEvent, LockEventKind, SessionEnd,
};
use rowlock_state::{Machine, Proof};

const LOCKS: usize = 3;
const SESSIONS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// Several places, each by lock and mode, in one command.
    Acquire {
        session: usize,
        places: Vec<(usize, Mode)>,
        wait: bool,
    },
    /// A create of a plain client.
    Create {
        session: usize,
        lock: usize,
    },
    /// The n-th contender of the lock, released, abandoned, deleted by its own session or by another, forced,
    /// or held in another mode.
    Leave {
        lock: usize,
        at: usize,
        how: How,
    },
    Resize {
        lock: usize,
        limit: u32,
    },
    End {
        session: usize,
        expires: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum How {
    Release,
    Abandon,
    Delete { by: usize },
    Force,
    Convert(Mode),
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![4 => Just(Mode::Exclusive), 3 => Just(Mode::Shared)]
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0..LOCKS - 1, mode());
    // The last lock is a semaphore.
    let permits = (1..4_u32).prop_map(|n| vec![(LOCKS - 1, Mode::Permits(n))]);
    let places = prop_oneof![
        5 => place.prop_map(|place| vec![place]),
        1 => Just(vec![(0, Mode::Exclusive), (1, Mode::Exclusive)]),
        1 => Just(vec![(1, Mode::Shared), (0, Mode::Exclusive)]),
        3 => permits,
    ];
    let how = prop_oneof![
        6 => Just(How::Release),
        3 => Just(How::Abandon),
        2 => (0..SESSIONS).prop_map(|by| How::Delete { by }),
        1 => Just(How::Force),
        2 => mode().prop_map(How::Convert),
        1 => (1..3_u32).prop_map(|n| How::Convert(Mode::Permits(n))),
    ];
    prop_oneof![
        8 => (0..SESSIONS, places, any::<bool>()).prop_map(|(session, places, wait)| Step::Acquire { session, places, wait }),
        2 => (0..SESSIONS, 0..LOCKS - 1).prop_map(|(session, lock)| Step::Create { session, lock }),
        8 => (0..LOCKS, 0..5_usize, how).prop_map(|(lock, at, how)| Step::Leave { lock, at, how }),
        1 => (1..6_u32).prop_map(|limit| Step::Resize { lock: LOCKS - 1, limit }),
        1 => (0..SESSIONS, any::<bool>()).prop_map(|(session, expires)| Step::End { session, expires }),
    ]
}

fn lock_path(lock: usize) -> String {
    format!("/locks/{lock}")
}

/// Grants and departures, as the sink is told.
#[derive(Default)]
struct Told(Vec<Seen>);

impl EventSink for Told {
    fn changed(&mut self, _: &Change<'_>) {}
    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}
    fn lock(&mut self, event: &LockEvent<&str>, _: &EventContext<'_>) {
        if let LockEventKind::Granted { .. } = event.kind {
            self.0.push(Seen::Granted(event.path.to_owned()));
        }
        if let Some(end) = event.kind.end() {
            self.0.push(Seen::Gone(event.path.to_owned(), end.held_ms.is_some()));
        }
    }
}

struct World {
    machine: Machine,
    naive: Naive,
    sessions: Vec<SessionId>,
    attempts: u64,
}

impl World {
    fn new() -> Self {
        let mut world =
            World { machine: Machine::new(), naive: Naive::new(LOCKS), sessions: Vec::new(), attempts: 0 };
        for _ in 0..SESSIONS {
            let session = world.open();
            world.sessions.push(session);
        }
        for path in ["/locks".to_owned(), lock_path(0), lock_path(1), lock_path(2)] {
            let data = (path == lock_path(2)).then(|| "permits=3".into());
            let flags = CreateMode::Persistent.flags();
            let create = Create { path, data, acl: Some(Acl::shared_open()), flags };
            world.apply(world.sessions[0], Command::Client(Request::Create2(create))).0.result.unwrap();
        }
        world
    }

    fn open(&mut self) -> SessionId {
        let command = Command::OpenSession { proof: Proof::of(&[1; 16]), timeout_ms: 1_000 };
        self.apply(SessionId::NONE, command).0.attached.expect("a session opens").session
    }

    fn apply(&mut self, session: SessionId, command: Command) -> (Applied, Vec<Seen>) {
        let proposal = Proposal {
            origin: Origin::default(),
            session,
            attachment: Attachment(1),
            identities: Default::default(),
            command,
        };
        let mut told = Told::default();
        (self.machine.apply(1_000, &proposal, &mut told), told.0)
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Acquire { session, places, wait } => self.acquire(*session, places, *wait),
            Step::Create { session, lock } => {
                self.attempts += 1;
                let path = format!("{}/p{}-", lock_path(*lock), self.attempts);
                let flags = CreateMode::EphemeralSequential.flags();
                let create = Create { path, data: None, acl: Some(Acl::shared_open()), flags };
                let session = self.sessions[*session];
                let (applied, told) = self.apply(session, Command::Client(Request::Create2(create)));
                let Ok(Response::PathStat(path, _)) = applied.result else { panic!("{applied:?}") };
                let expected = self.naive.enter(&[(*lock, path, Mode::Exclusive, session)]);
                assert_eq!(told, expected);
            }
            Step::Leave { lock, at, how } => self.leave(*lock, *at, *how),
            Step::Resize { lock, limit } => {
                let data = Some(format!("permits={limit}").into());
                let set = SetData { path: lock_path(*lock), data, version: Version::ANY };
                let (_, told) = self.apply(self.sessions[0], Command::Client(Request::SetData(set)));
                assert_eq!(told, self.naive.resize(*lock, *limit));
            }
            Step::End { session, expires } => {
                let id = self.sessions[*session];
                let (_, mut told) = if *expires {
                    let command = Command::ExpireSession { session: id, attachment: Attachment(1) };
                    self.apply(SessionId::NONE, command)
                } else {
                    self.apply(id, Command::Client(Request::CloseSession))
                };
                let mut expected = self.naive.end(id);
                // Sessions that leave are notified in the order of their paths, which no promise depends on.
                told.sort();
                expected.sort();
                assert_eq!(told, expected);
                self.sessions[*session] = self.open();
            }
        }
    }

    fn acquire(&mut self, session: usize, places: &[(usize, Mode)], wait: bool) {
        let session = self.sessions[session];
        self.attempts += 1;
        let prefix = format!("a{}-", self.attempts);
        let acquire = |(lock, mode): &(usize, Mode)| Acquire {
            mode: *mode,
            wait,
            ..Acquire::exclusive(lock_path(*lock), prefix.clone())
        };
        let all: Vec<Acquire> = places.iter().map(acquire).collect();
        let (applied, told) = self.apply(session, Command::Client(Request::Acquire(all.clone().into())));
        let Ok(Response::QueuePositions(positions)) = applied.result else { panic!("{applied:?}") };
        let may = places.iter().all(|(lock, mode)| self.naive.may_enter(*lock, *mode, wait));
        let claims: Vec<Option<Claim>> = positions.iter().map(naive::claim).collect();
        assert_eq!(may, claims.iter().all(Option::is_some), "{positions:?}");
        if !may {
            assert!(claims.iter().all(Option::is_none) && told.is_empty(), "something was left behind");
            return;
        }
        let entered: Vec<_> = places
            .iter()
            .zip(&claims)
            .map(|((lock, mode), claim)| (*lock, claim.clone().unwrap().path.to_string(), *mode, session))
            .collect();
        assert_eq!(told, self.naive.enter(&entered));
        for ((lock, path, ..), position) in entered.iter().zip(&positions) {
            assert_eq!(naive::position(position), self.naive.position(*lock, path));
        }
        // The same once more finds the same.
        let (again, told) = self.apply(session, Command::Client(Request::Acquire(all.into())));
        assert_eq!((again.result, told), (Ok(Response::QueuePositions(positions)), Vec::new()));
    }

    fn leave(&mut self, lock: usize, at: usize, how: How) {
        let Some((path, session, holds)) = self.naive.at(lock, at) else { return };
        let czxid = self.machine.stat(&path).unwrap().czxid;
        let claim = Claim { path: path.as_str().into(), token: FencingToken(czxid.0) };
        match how {
            How::Release => {
                let (applied, told) = self.apply(session, Command::Client(Request::Release([claim].into())));
                assert_eq!(applied.result, Ok(Response::Held(vec![holds].into())));
                let expected = if holds { self.naive.leave(lock, &path) } else { Vec::new() };
                assert_eq!(told, expected);
            }
            How::Abandon => {
                let name = path.rsplit_once('/').unwrap().1;
                let prefix = name.split_once('-').unwrap().0.to_owned() + "-";
                let attempt = Attempt { lock: lock_path(lock), prefix };
                let (_, told) = self.apply(session, Command::Client(Request::Abandon(vec![attempt])));
                assert_eq!(told, self.naive.leave(lock, &path));
            }
            How::Delete { by } => {
                let by = self.sessions[by];
                let command = Command::Client(Request::Delete { path: path.clone(), version: Version::ANY });
                let (_, told) = self.apply(by, command);
                assert_eq!(told, self.naive.leave(lock, &path));
            }
            How::Force => {
                let (applied, told) =
                    self.apply(self.sessions[0], Command::Client(Request::ForceRelease(claim)));
                assert_eq!(applied.result, Ok(Response::Held(vec![holds].into())));
                let expected = if holds { self.naive.leave(lock, &path) } else { Vec::new() };
                assert_eq!(told, expected);
            }
            How::Convert(mode) => {
                self.attempts += 1;
                let prefix = format!("c{}-", self.attempts);
                let (applied, told) =
                    self.apply(session, Command::Client(Request::Convert { claim, mode, prefix }));
                let new = match &applied.result {
                    Ok(Response::QueuePositions(positions)) => {
                        naive::claim(&positions[0]).map(|claim| claim.path)
                    }
                    _ => None,
                };
                assert_eq!(told, self.naive.convert(lock, &path, mode, new.as_deref()), "{applied:?}");
            }
        }
    }

    fn compare(&self) {
        self.machine.check().unwrap();
        for lock in 0..LOCKS {
            let view = self.machine.lock_queue(&lock_path(lock));
            let holders: Vec<_> =
                view.iter().flat_map(|view| view.holders()).map(|it| (it.path, it.mode, true)).collect();
            let waiters = view.iter().flat_map(|view| view.waiters()).map(|it| (it.path, it.mode, false));
            let queue: Vec<_> = holders.into_iter().chain(waiters).collect();
            assert_eq!(queue, self.naive.queue(lock));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(4),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn queues_behave_as_lists_that_are_gone_through_from_the_front(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
            world.compare();
        }
        let mut bytes = Vec::new();
        world.machine.freeze().encode(&mut bytes).unwrap();
        let copy = Machine::decode(&mut bytes.as_slice()).unwrap();
        copy.check().unwrap();
        prop_assert_eq!(copy.digest(), world.machine.digest());
        world.machine = copy;
        world.compare();
        for step in &steps {
            world.run(step);
            world.compare();
        }
    }
}

#[test]
fn a_release_among_10_000_waiters_grants_to_one() {
    let mut world = World::new();
    let mut held = None;
    for at in 0..10_001 {
        let session = world.sessions[at % SESSIONS];
        let acquire = Acquire::exclusive(lock_path(0), format!("a{at}-"));
        let (applied, told) = world.apply(session, Command::Client(Request::Acquire([acquire].into())));
        let Ok(Response::QueuePositions(positions)) = applied.result else { panic!("{applied:?}") };
        assert_eq!(told.len(), usize::from(at == 0), "only the first is granted the lock");
        held = held.or(naive::claim(&positions[0]).map(|claim| (session, claim)));
    }
    for at in 1..5_000 {
        let attempt = Attempt { lock: lock_path(0), prefix: format!("a{at}-") };
        let session = world.sessions[at % SESSIONS];
        let (_, told) = world.apply(session, Command::Client(Request::Abandon(vec![attempt])));
        assert!(matches!(told[..], [Seen::Gone(_, false)]), "{told:?}");
    }
    let (session, claim) = held.unwrap();
    let (_, told) = world.apply(session, Command::Client(Request::Release([claim].into())));
    assert_eq!(told.len(), 2, "the one that went and the one that came: {told:?}");
    assert!(matches!(&told[1], Seen::Granted(path) if path.contains("/a5000-")), "{told:?}");
    world.machine.check().unwrap();
}
