//! A state with sessions and znodes, and the commands that clients send to it, always the same ones.

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Claim, QueuePosition};
use rowlock_proto::request::Create;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, NodeId, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal, Stamp};
use rowlock_state::{Machine, Proof};

pub const DATA: Bytes = Bytes::from_static(b"host-17.example.org:41234");
/// Znodes with the others below them.
const FOLDERS: usize = 100;

/// A command on its way.
pub struct Sent {
    pub proposal: Proposal,
    stamp: Stamp,
}

/// The state, its clients and their counters.
pub struct World {
    pub machine: Machine,
    pub sessions: Vec<SessionId>,
    /// Numbered writes of each session so far.
    tags: Vec<u64>,
    requests: u64,
    random: u64,
}

/// The lock of a client's own.
pub fn own_lock(n: usize) -> String {
    format!("/locks/bench-own-{n}")
}

/// One of the other znodes, and a name beside it.
pub fn other(n: usize, more: &str) -> String {
    format!("/config/service-{:03}/entry-{:07}{more}", n % FOLDERS, n)
}

pub fn open_session() -> Command {
    Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 10_000 }
}

/// The place that was granted.
pub fn held(outcome: Response) -> Claim {
    match outcome {
        Response::QueuePositions(mut positions) => match positions.pop() {
            Some(QueuePosition::Held(claim)) => claim,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

impl World {
    /// With `sessions` clients, `others` znodes that they have nothing to do with, and a lock for each of 100
    /// clients.
    pub fn new(sessions: usize, others: usize) -> World {
        let (tags, sessions_open) = (vec![0; sessions], Vec::with_capacity(sessions));
        let mut world =
            World { machine: Machine::new(), sessions: sessions_open, tags, requests: 0, random: 1 };
        for _ in 0..sessions {
            let open = world.send_as(SessionId::NONE, open_session());
            let session = world.open(&open);
            world.sessions.push(session);
        }
        let folders = (0..FOLDERS).map(|n| format!("/config/service-{n:03}"));
        let fixed = ["/config", "/locks"].into_iter().map(str::to_owned).chain(folders);
        let others = (0..others).map(|n| other(n, ""));
        let locks = (0..sessions.max(100)).map(own_lock);
        for path in fixed.chain(others).chain(locks) {
            let flags = CreateMode::Persistent.flags();
            let create = Create { path, data: Some(DATA), acl: Some(Acl::shared_open()), flags };
            let create = world.send_as(world.sessions[0], Command::Client(Request::Create2(create)));
            world.run(&create);
        }
        world
    }

    pub fn open(&mut self, sent: &Sent) -> SessionId {
        let applied = self.machine.apply_stamped(sent.stamp, &sent.proposal, &mut ());
        applied.attached.expect("it opens").session
    }

    /// Applies a command that succeeds.
    pub fn run(&mut self, sent: &Sent) -> Response {
        self.machine.apply_stamped(sent.stamp, &sent.proposal, &mut ()).result.expect("it succeeds")
    }

    pub fn acquire(&mut self, n: usize, lock: &str) -> Sent {
        let acquire =
            Acquire { data: Some(Bytes::copy_from_slice(&DATA)), ..Acquire::exclusive(lock, self.prefix()) };
        self.tagged(n, Command::Client(Request::Acquire([acquire].into())))
    }

    pub fn release(&mut self, n: usize, claim: Claim) -> Sent {
        self.tagged(n, Command::Client(Request::Release([claim].into())))
    }

    /// A write of the n-th client that takes effect once.
    fn tagged(&mut self, n: usize, command: Command) -> Sent {
        let acked = self.tags[n];
        self.tags[n] += 1;
        self.send(n, Command::Tagged { id: acked + 1, acked, command: Box::new(command) })
    }

    /// A write of the n-th client.
    pub fn send(&mut self, n: usize, command: Command) -> Sent {
        self.send_as(self.sessions[n], command)
    }

    pub fn send_as(&mut self, session: SessionId, command: Command) -> Sent {
        self.requests += 1;
        let proposal = Proposal {
            origin: Origin {
                node: NodeId(1 + self.requests % 3),
                incarnation: 0x1234_5678,
                request: self.requests,
            },
            session,
            attachment: Attachment(u64::from(session != SessionId::NONE)),
            identities: [Id { scheme: "ip".to_owned(), id: "127.0.0.1".to_owned() }].into(),
            command,
        };
        let time_ms = 1_700_000_000_000 + (self.requests / 64) as i64;
        Sent { proposal, stamp: Stamp { time_ms, ..Stamp::default() } }
    }

    /// Name of a queue znode as Rowlock's client makes it: of a random id, which is not random here.
    pub fn prefix(&mut self) -> String {
        let mut word = || {
            self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            self.random >> 16
        };
        let (a, b, c) = (word() as u32, word(), word());
        format!(
            "_c_{a:08x}-{:04x}-4{:03x}-9{:03x}-{:012x}-lock-",
            b & 0xffff,
            b >> 16 & 0xfff,
            c & 0xfff,
            b & 0xffff_ffff_ffff
        )
    }

    pub fn holder(&self, lock: &str) -> (Claim, SessionId) {
        let queue = self.machine.lock_queue(lock).expect("somebody holds it");
        let holder = queue.holders().next().expect("somebody holds it");
        (Claim { path: holder.path.into(), token: holder.token }, holder.session)
    }
}
