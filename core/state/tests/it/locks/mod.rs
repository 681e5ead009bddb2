//! Random histories of lock commands on few locks, against the oracle: after every command the answer, the
//! events and the queues. Besides: the machine's own invariants, a snapshot that is read back, and that
//! nothing depends on how often it is.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rowlock_oracle::{Event, Heard, Oracle};
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Acquire, Attempt, Claim, Mode};
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, SessionId, Version};
use rowlock_state::command::{Attachment, Command, Origin, Proposal, Stamp};
use rowlock_state::outcome::{Applied, LockEventKind};
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

struct World {
    machine: Machine,
    oracle: Oracle,
    sessions: Vec<SessionId>,
    attempts: u64,
}

impl World {
    fn new() -> Self {
        let (machine, oracle) = (Machine::new(), Oracle::default());
        let mut world = World { machine, oracle, sessions: Vec::new(), attempts: 0 };
        for _ in 0..SESSIONS {
            let session = world.open();
            world.sessions.push(session);
        }
        for path in ["/locks".to_owned(), lock_path(0), lock_path(1), lock_path(2)] {
            let data = (path == lock_path(2)).then(|| "permits=3".into());
            let flags = CreateMode::Persistent.flags();
            let create = Create { path, data, acl: Some(Acl::shared_open()), flags };
            world.send(0, Request::Create2(create)).0.result.unwrap();
        }
        world
    }

    fn open(&mut self) -> SessionId {
        let command = Command::OpenSession { proof: Proof::of(&[1; 16]), timeout_ms: 1_000 };
        self.apply(SessionId::NONE, command).0.attached.expect("a session opens").session
    }

    fn send(&mut self, session: usize, request: Request) -> (Applied, Vec<Event>) {
        self.apply(self.sessions[session], Command::Client(request))
    }

    fn apply(&mut self, session: SessionId, command: Command) -> (Applied, Vec<Event>) {
        let proposal = Proposal {
            origin: Origin::default(),
            session,
            attachment: Attachment(1),
            identities: Default::default(),
            command,
        };
        let stamp = Stamp { time_ms: 1_000, ..Stamp::default() };
        let mut heard = Heard::default();
        let applied = self.machine.apply_stamped(stamp, &proposal, &mut heard);
        let events = heard.0;
        assert_eq!(self.oracle.check((stamp, &proposal), &self.machine, (&applied, &events)), Ok(()));
        (applied, events)
    }

    fn run(&mut self, step: &Step) {
        self.attempts += 1;
        match step {
            Step::Acquire { session, places, wait } => {
                let prefix = format!("a{}-", self.attempts);
                let acquire = |(lock, mode): &(usize, Mode)| Acquire {
                    mode: *mode,
                    wait: *wait,
                    ..Acquire::exclusive(lock_path(*lock), prefix.clone())
                };
                let all: Vec<Acquire> = places.iter().map(acquire).collect();
                self.send(*session, Request::Acquire(all.clone().into()));
                // The same once more finds the same.
                self.send(*session, Request::Acquire(all.into()));
            }
            Step::Create { session, lock } => {
                let path = format!("{}/p{}-", lock_path(*lock), self.attempts);
                let flags = CreateMode::EphemeralSequential.flags();
                let create = Create { path, data: None, acl: Some(Acl::shared_open()), flags };
                self.send(*session, Request::Create2(create));
            }
            Step::Leave { lock, at, how } => self.leave(*lock, *at, *how),
            Step::Resize { lock, limit } => {
                let data = Some(format!("permits={limit}").into());
                self.send(
                    0,
                    Request::SetData(SetData { path: lock_path(*lock), data, version: Version::ANY }),
                );
            }
            Step::End { session, expires } => {
                let id = self.sessions[*session];
                let expire = Command::ExpireSession { session: id, attachment: Attachment(1) };
                match expires {
                    true => self.apply(SessionId::NONE, expire),
                    false => self.send(*session, Request::CloseSession),
                };
                self.sessions[*session] = self.open();
            }
        }
    }

    /// Ends the n-th position of a lock, counted round.
    fn leave(&mut self, lock: usize, at: usize, how: How) {
        let view = self.machine.lock_queue(&lock_path(lock));
        let mut queue: Vec<_> = view.iter().flat_map(|view| view.holders().chain(view.waiters())).collect();
        if queue.is_empty() {
            return;
        }
        let position = queue.swap_remove(at % queue.len());
        let session = self.sessions.iter().position(|session| *session == position.session).unwrap();
        let claim = Claim { path: position.path.as_str().into(), token: position.token };
        match how {
            How::Release => self.send(session, Request::Release([claim].into())),
            How::Abandon => {
                let name = position.path.rsplit_once('/').unwrap().1;
                let prefix = name.split_once('-').unwrap().0.to_owned() + "-";
                self.send(session, Request::Abandon(vec![Attempt { lock: lock_path(lock), prefix }]))
            }
            How::Delete { by } => {
                self.send(by, Request::Delete { path: position.path, version: Version::ANY })
            }
            How::Force => self.send(0, Request::ForceRelease(claim)),
            How::Convert(mode) => {
                let prefix = format!("c{}-", self.attempts);
                self.send(session, Request::Convert { claim, mode, prefix })
            }
        };
    }

    fn compare(&self) {
        self.machine.check().unwrap();
        assert_eq!(self.oracle.check_all(&self.machine), Ok(()));
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

/// Returns the paths of positions in events about locks that satisfy `is_wanted`.
fn paths(events: &[Event], is_wanted: impl Fn(&LockEventKind) -> bool) -> Vec<&str> {
    let of_locks = events.iter().filter_map(Event::of_lock);
    of_locks.filter(|(_, kind)| is_wanted(kind)).map(|(path, _)| path).collect()
}

#[test]
fn a_release_among_2_000_waiters_grants_to_one() {
    let mut world = World::new();
    let is_granted = |kind: &LockEventKind| matches!(kind, LockEventKind::Granted { .. });
    let mut held = None;
    for at in 0..2_001 {
        let acquire = Acquire::exclusive(lock_path(0), format!("a{at}-"));
        let (applied, events) = world.send(at % SESSIONS, Request::Acquire([acquire].into()));
        let Ok(Response::QueuePositions(positions)) = applied.result else { panic!("{applied:?}") };
        let granted = paths(&events, is_granted).len();
        assert_eq!(granted, usize::from(at == 0), "only the first is granted the lock");
        held = held.or(positions[0].claim().cloned());
    }
    for at in 1..1_000 {
        let attempt = Attempt { lock: lock_path(0), prefix: format!("a{at}-") };
        let (_, events) = world.send(at % SESSIONS, Request::Abandon(vec![attempt]));
        assert_eq!(paths(&events, is_granted).len(), 0, "{events:?}");
    }
    let (_, events) = world.send(0, Request::Release([held.unwrap()].into()));
    assert!(matches!(paths(&events, is_granted)[..], [path] if path.contains("/a1000-")), "{events:?}");
    world.compare();
}
