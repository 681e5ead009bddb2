//! Answers of the state to the node that runs it: who waits, who may read, what there is to sweep.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::{Acquire, Mode};
use rowlock_proto::request::{Create, Request};
use rowlock_proto::{CreateMode, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::{Machine, Proof};

struct World {
    machine: Machine,
    sessions: [SessionId; 2],
}

impl World {
    fn new() -> World {
        let mut world = World { machine: Machine::new(), sessions: [SessionId::NONE; 2] };
        world.sessions = [1, 2].map(|secret| {
            let open = Command::OpenSession { proof: Proof::of(&[secret; 16]), timeout_ms: 1_000 };
            let proposal = Proposal { command: open, ..World::proposal(SessionId::NONE) };
            world.machine.apply(1_000, &proposal, &mut ()).attached.unwrap().session
        });
        world
    }

    fn proposal(session: SessionId) -> Proposal {
        let attachment = Attachment(u64::from(session != SessionId::NONE));
        let (origin, identities) = (Origin::default(), [user()].into());
        Proposal { origin, session, attachment, identities, command: Command::Noop }
    }

    fn run(&mut self, session: usize, request: Request) {
        let proposal =
            Proposal { command: Command::Client(request), ..World::proposal(self.sessions[session]) };
        self.machine.apply(1_000, &proposal, &mut ()).result.unwrap();
    }

    fn create(&mut self, path: &str, data: &'static str, acl: Acl) {
        let (path, data) = (path.to_owned(), Some(Bytes::from_static(data.as_bytes())));
        let create = Create { path, data, acl: Some([acl].into()), flags: CreateMode::Persistent.flags() };
        self.run(0, Request::Create2(create));
    }

    fn acquire(&mut self, session: usize, lock: &str, mode: Mode) {
        self.run(session, Request::Acquire([Acquire { mode, ..Acquire::exclusive(lock, "p-") }].into()));
    }
}

fn user() -> Id {
    Id { scheme: "digest".to_owned(), id: "alice:hash".to_owned() }
}

#[test]
fn only_a_lock_with_others_in_front_makes_a_session_wait() {
    let mut world = World::new();
    world.acquire(0, "/held", Mode::Exclusive);
    world.acquire(0, "/read", Mode::Shared);
    let waits = |session: usize, lock: &str, mode| {
        let queue = world.machine.lock_queue(lock).unwrap();
        queue.makes_wait(world.sessions[session], mode)
    };
    // The holder may be about to release its own position.
    assert_eq!([0, 1].map(|session| waits(session, "/held", Mode::Exclusive)), [false, true]);
    assert_eq!([Mode::Shared, Mode::Exclusive].map(|mode| waits(1, "/read", mode)), [false, true]);
}

#[test]
fn a_znode_is_read_by_those_whom_its_list_names() {
    let mut world = World::new();
    let (all, own) = (Acl { perms: perms::ALL, id: Id::anyone() }, Acl { perms: perms::ALL, id: user() });
    world.create("/open", "", all);
    world.create("/own", "", own);
    let may_read = |who: &[Id]| ["/open", "/own", "/none"].map(|path| world.machine.may_read(path, who));
    assert_eq!(may_read(&[user()]), [true, true, true]);
    assert_eq!(may_read(&[]), [true, false, true]);
}

#[test]
fn quotas_exist_once_one_is_set() {
    let mut world = World::new();
    assert!(!world.machine.may_have_quotas());
    let open = || Acl { perms: perms::ALL, id: Id::anyone() };
    world.create("/zookeeper/quota/a", "", open());
    world.create("/zookeeper/quota/a/zookeeper_limits", "count=3,bytes=-1", open());
    assert!(world.machine.may_have_quotas());
    assert_eq!(world.machine.quotas().count(), 1);
}
