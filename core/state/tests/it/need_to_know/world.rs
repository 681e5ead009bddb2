//! A private lock with a queue of others, and a stranger with the rights that a test gives him.

use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id, perms};
pub use rowlock_proto::lock::Acquire;
use rowlock_proto::lock::{Claim, Owner, QueuePosition};
use rowlock_proto::request::{Create, SetAcl};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, SessionId, Version};
use rowlock_state::command::{Attachment, Command, Origin, Proposal, Stamp};
use rowlock_state::outcome::Applied;
use rowlock_state::{Machine, Proof};

pub const LOCK: &str = "/private";

/// What the queue of the lock is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Its queue is empty.
    Free,
    /// The first of two places holds.
    HeldFirst,
    /// The first place has gone, one of another token has its name's beginning; two more are there.
    HeldSecond,
    /// Its holder's session has expired, and it is not granted for a while.
    Delayed,
}

pub struct World {
    pub machine: Machine,
    pub victim: SessionId,
    stranger: SessionId,
    /// Path and token of the first place that the victim had, or would have.
    pub first: String,
    pub first_token: i64,
    time_ms: i64,
}

fn user(name: &str) -> Vec<Id> {
    vec![Id { scheme: "digest".to_owned(), id: format!("{name}:hash") }]
}

pub fn stranger() -> Vec<Id> {
    user("stranger")
}

fn victim() -> Vec<Id> {
    user("victim")
}

pub fn acquire(lock: &str, prefix: &str) -> Acquire {
    Acquire { data: Some("secret".into()), ..Acquire::exclusive(lock, prefix) }
}

pub fn claim(path: &str, token: i64) -> Claim {
    Claim { path: path.into(), token: FencingToken(token) }
}

impl World {
    /// The stranger has these rights on the lock, and the same on the places in its queue.
    pub fn new(queue: Queue, rights: i32) -> World {
        let mut world = World {
            machine: Machine::new(),
            victim: SessionId::NONE,
            stranger: SessionId::NONE,
            first: format!("{LOCK}/a-0000000000"),
            first_token: 0,
            time_ms: 1_000,
        };
        world.stranger = world.open();
        world.victim = world.open();
        let acl = world.acl(rights);
        for (path, data) in [(LOCK, ""), ("/semaphore", "permits=3")] {
            let (path, data) = (path.to_owned(), Some(data.into()));
            let create = Create { path, data, acl: Some(acl.clone().into()), flags: 0 };
            world.run(world.victim, &victim(), Command::Client(Request::Create2(create))).unwrap();
        }
        world.fill(queue, &acl);
        world
    }

    fn acl(&self, rights: i32) -> Vec<Acl> {
        let entry = |perms, who: Vec<Id>| Acl { perms, id: who[0].clone() };
        let all = entry(perms::ALL, victim());
        if rights == 0 { vec![all] } else { vec![all, entry(rights, stranger())] }
    }

    fn fill(&mut self, queue: Queue, acl: &[Acl]) {
        let place = |prefix: &str| Acquire {
            acl: Some(acl.into()),
            owner: Owner::Session,
            lock_delay_ms: 10_000,
            ..acquire(LOCK, prefix)
        };
        let enter = |world: &mut World, session: SessionId, prefix: &str| {
            let gave = world
                .run(session, &victim(), Command::Client(Request::Acquire([place(prefix)].into())))
                .unwrap();
            let Response::QueuePositions(positions) = gave else { panic!("{gave:?}") };
            match &positions[0] {
                QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. } => claim.clone(),
                other => panic!("{other:?}"),
            }
        };
        if queue == Queue::Delayed {
            let expired = self.open();
            enter(self, expired, "a-");
            let attachment = Attachment(1);
            self.run(SessionId::NONE, &[], Command::ExpireSession { session: expired, attachment }).unwrap();
        }
        if matches!(queue, Queue::HeldFirst | Queue::HeldSecond) {
            if queue == Queue::HeldSecond {
                let other = self.open();
                enter(self, other, "b-");
            }
            let first = enter(self, self.victim, "a-");
            let behind = self.open();
            enter(self, behind, "c-");
            (self.first, self.first_token) = (first.path.to_string(), first.token.0);
        }
    }

    /// The victim waits for another lock, too.
    pub fn wait_as_victim(&mut self, lock: &str) {
        let waits = Acquire { owner: Owner::Session, ..acquire(lock, "v-") };
        self.run(self.victim, &victim(), Command::Client(Request::Acquire([waits].into()))).unwrap();
    }

    pub fn hide_places(&mut self) {
        let acl = Some(self.acl(0).into());
        for path in self.machine.ephemerals(self.victim, LOCK) {
            let set = SetAcl { path, acl: acl.clone(), version: Version::ANY };
            self.run(self.victim, &victim(), Command::Client(Request::SetAcl(set))).unwrap();
        }
    }

    pub fn open(&mut self) -> SessionId {
        let command = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 4_000 };
        self.apply(SessionId::NONE, &[], command).attached.expect("a session opens").session
    }

    /// What the stranger is answered.
    pub fn ask(&mut self, command: Command) -> Result<Response, ErrorCode> {
        self.run(self.stranger, &stranger(), command)
    }

    pub fn run(&mut self, session: SessionId, who: &[Id], command: Command) -> Result<Response, ErrorCode> {
        self.apply(session, who, command).result
    }

    fn apply(&mut self, session: SessionId, who: &[Id], command: Command) -> Applied {
        self.time_ms += 1;
        let attachment = Attachment(1);
        let proposal =
            Proposal { origin: Origin::default(), session, attachment, identities: who.into(), command };
        let stamp = Stamp { time_ms: self.time_ms, ..Stamp::default() };
        let applied = self.machine.apply_stamped(stamp, &proposal, &mut ());
        self.machine.check().unwrap();
        applied
    }
}
