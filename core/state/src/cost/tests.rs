//! The largest legal request of every kind and its effect on the state: counted steps and bytes, no clock.
//!
//! A price refuses a request that fills a frame, or the test applies the request. After a refusal the test
//! tries the largest request within the price. The effect never costs more than the price.

use std::collections::BTreeSet;
use std::sync::Arc;

use rowlock_frames::{At, Kind, LOGGED, bytes, create, largest};
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Owner, QueuePosition};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, Request, SessionId, Version};

use crate::command::{Attachment, Batch, Command, Origin, Proof, Proposal, Stamp};
use crate::cost::{COMMAND_BYTES_MAX, COMMAND_STEPS_MAX, Cost};
use crate::znode::{self, Znode};
use crate::{Machine, PLACES_MAX, Question, steps};

/// Limit of state bytes per byte of a frame, beside the effect of the smallest request of the kind.
const BYTES_PER_BYTE: usize = 16;
/// Limit of bytes beside the frame's own: 32 missing ancestors, an expanded list.
const BYTES_BESIDE: usize = 48 << 10;

struct Largest {
    /// Bytes of the full request, and its price.
    full: (usize, Result<Cost, ErrorCode>),
    /// Outcome of the largest admitted request.
    admitted: Applied,
}

struct Applied {
    items: usize,
    bytes: usize,
    cost: Cost,
    steps: u64,
    grown: usize,
    succeeds: bool,
}

fn measured(kind: &Kind) -> Largest {
    let mut world = World::new();
    let at = At { root: ROOT, token: world.prepare(kind) };
    let identities: Arc<[Id]> = kind.identities.ids().collect();
    let of = |items| (kind.request)(&at, items);
    let full = kind.full(&at);
    let price = |request: &Request| world.price(&identities, command(request.clone()));
    let request = of(full);
    let (price_of_full, looked) = steps::taken_by(|| price(&request));
    assert!(looked <= COMMAND_STEPS_MAX, "{}: finding out the price takes {looked} steps", kind.name);
    let items = match price_of_full {
        Ok(_) => full,
        Err(_) => largest(full, |items| price(&of(items)).is_ok()),
    };
    let request = of(items);
    let cost = price(&request).unwrap();
    let before = state_bytes(&world.machine);
    let (applied, steps) = steps::taken_by(|| world.apply(&identities, command(request.clone())));
    world.machine.check().unwrap();
    let failed = |results: &[OpResult]| matches!(results.first(), Some(OpResult::Error(_)));
    let succeeds = match &applied {
        Ok(Response::Multi(results)) => !failed(results),
        other => other.is_ok(),
    };
    let grown = state_bytes(&world.machine).saturating_sub(before);
    Largest {
        full: (bytes(&of(full)), price_of_full),
        admitted: Applied { items, bytes: bytes(&request), cost, steps, grown, succeeds },
    }
}

#[test]
fn no_request_costs_more_than_its_price_or_the_limit() {
    let mut found = Vec::new();
    assert_eq!(rowlock_frames::PLACES_MAX, PLACES_MAX);
    for kind in LOGGED.iter().copied().flatten() {
        let Largest { full, admitted } = measured(kind);
        let Applied { items, bytes, cost, steps, grown, succeeds } = admitted;
        let told = match full.1 {
            Ok(_) => "let in".to_owned(),
            Err(code) => format!("refused: {code}"),
        };
        println!(
            "{:46} frame {:>7} {told:24} | largest let in: {items:>6} items {bytes:>7} B, steps {steps:>8} of {:>8}, grown {grown:>9} of {:>9}, {:>4.1} per byte",
            kind.name,
            full.0,
            cost.steps,
            cost.bytes,
            grown as f64 / bytes as f64,
        );
        let wrong = [
            (steps > cost.steps, "it takes more steps than its price"),
            (cost.steps > COMMAND_STEPS_MAX, "it takes more steps than a command may"),
            (grown as u64 > cost.bytes, "it makes more bytes than its price"),
            (cost.bytes > COMMAND_BYTES_MAX, "it makes more bytes than a command may"),
            (grown > BYTES_PER_BYTE * bytes + BYTES_BESIDE, "it makes too many bytes for its own"),
            (full.1.err() != kind.refused, "the one that fills a frame gets another verdict"),
            (succeeds != kind.succeeds, "it is carried out, or not"),
            (full.1.is_err() && items != kind.admitted, "another number is the largest that is let in"),
        ];
        let wrong = wrong.iter().filter(|(is_wrong, _)| *is_wrong);
        found.extend(wrong.map(|(_, what)| format!("{}: {what}", kind.name)));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Overhead of an allocation, and of a map's entry.
const BESIDE: usize = 16;

/// Returns the approximate size of a state in bytes, with each ACL counted once per allocation.
pub(super) fn state_bytes(machine: &Machine) -> usize {
    let mut lists = BTreeSet::new();
    let mut sum = 0;
    let mut todo = vec![machine.tree.root()];
    while let Some(znode) = todo.pop() {
        sum += size_of::<Znode>() + BESIDE + znode.data_len();
        let entries = znode.acl.entries();
        if lists.insert(entries.as_ptr()) {
            let of = |entry: &Acl| size_of::<Acl>() + 2 * BESIDE + entry.id.scheme.len() + entry.id.id.len();
            sum += entries.iter().map(of).sum::<usize>();
        }
        for (name, child) in machine.tree.children(znode) {
            // An ephemeral znode's name is a slice of the path shared with its session.
            let own =
                if matches!(child.meta.kind, znode::Kind::Ephemeral(_)) { 0 } else { name.len() + BESIDE };
            sum += own + 32;
            todo.push(child);
        }
    }
    for (_, session) in machine.sessions() {
        sum += size_of_val(session) + session.outcome_bytes();
        sum += session.ephemerals().map(|path| path.len() + 2 * BESIDE + 16).sum::<usize>();
    }
    for (path, lock) in machine.locks.iter() {
        sum += path.len() + size_of_val(lock) + BESIDE;
        sum += lock
            .contenders()
            .map(|(key, contender)| {
                // Counts questions as unshared: questions from a snapshot are not shared.
                let asked = contender.asked.as_ref();
                let texts = |it: &Question| {
                    let askers = size_of_val(&*it.askers);
                    size_of_val(it) + it.reason.len() + it.by.len() + askers + 4 * BESIDE
                };
                size_of_val(key) + size_of_val(contender) + asked.map_or(0, |it| texts(it))
            })
            .sum::<usize>();
    }
    sum + machine.tree.reapable().iter().map(|(path, ())| path.len() + 2 * BESIDE).sum::<usize>()
}

/// Parent of all znodes of the requests.
const ROOT: &str = "/0000";

/// State with a session, and requests submitted as a node submits requests to the log.
pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) session: SessionId,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = World { machine: Machine::new(), session: SessionId::NONE };
        world.session = world.open();
        world
    }

    pub(super) fn open(&mut self) -> SessionId {
        let attachment = Attachment(0);
        let command = Command::OpenSession { proof: Proof::of(&[1; 16]), timeout_ms: 1_000 };
        let (origin, session) = (Origin::default(), SessionId::NONE);
        let proposal = Proposal { origin, session, attachment, identities: Default::default(), command };
        self.machine.apply(1_000, &proposal, &mut ()).attached.expect("a session opens").session
    }

    pub(super) fn proposal(&self, identities: &Arc<[Id]>, command: Command) -> Proposal {
        let (origin, attachment) = (Origin::default(), Attachment(1));
        Proposal { origin, session: self.session, attachment, identities: identities.clone(), command }
    }

    pub(super) fn price(&self, identities: &Arc<[Id]>, command: Command) -> Result<Cost, ErrorCode> {
        self.machine.price(&self.proposal(identities, command))
    }

    pub(super) fn apply(&mut self, identities: &Arc<[Id]>, command: Command) -> Result<Response, ErrorCode> {
        let proposal = self.proposal(identities, command);
        let stamp = Stamp { time_ms: 1_000, ..Stamp::default() };
        self.machine.apply_stamped(stamp, &proposal, &mut ()).result
    }

    /// Runs a preparatory command; panics on a refusal.
    pub(super) fn run(&mut self, command: Command) -> Response {
        match self.apply(&Arc::default(), command) {
            Ok(Response::Multi(results)) => {
                assert!(!results.iter().any(|it| matches!(it, rowlock_proto::response::OpResult::Error(_))));
                Response::Multi(results)
            }
            other => other.unwrap(),
        }
    }

    /// Prepares the state for a request of this kind, below a znode of its own. Returns the token of the
    /// first position taken.
    pub(super) fn prepare(&mut self, kind: &Kind) -> FencingToken {
        let root = create(ROOT, CreateMode::Persistent);
        self.run(Command::Client(Request::Create2(root)));
        let mut token = FencingToken::default();
        for request in (kind.prepare)(ROOT) {
            if let Response::QueuePositions(positions) = self.run(command(request))
                && let Some(QueuePosition::Held(claim)) = positions.first()
            {
                token = claim.token;
            }
        }
        token
    }
}

/// Makes the command of a logged request.
fn command(request: Request) -> Command {
    let opcode = request.opcode();
    Command::of_client(request).unwrap_or_else(|| panic!("{opcode} is not logged"))
}

/// Makes an owner with a position that asks again and again behind 10,000 other positions.
fn pipelined() -> (u64, usize) {
    let mut world = World::new();
    let named = |lock: &str, prefix: String, owner| {
        let acquire = Acquire { owner: Owner::Named(owner), ..Acquire::exclusive(lock, prefix) };
        Command::Client(Request::Acquire([acquire].into()))
    };
    for at in 0..10_000 {
        world.run(named("/l", format!("{at}-"), at));
    }
    world.run(named("/other", "o-".to_owned(), 77_777));
    let again = (0..400).map(|at| world.proposal(&Arc::default(), named("/l", format!("x{at}-"), 77_777)));
    let proposals = again.collect();
    let batch = Batch { time_ms: 1_000, proposals, ..Batch::default() };
    let batch = Batch::decode(&batch.encode()).unwrap();
    let mut machine = world.machine.clone();
    let (taken, steps) = steps::taken_by(|| {
        assert!(machine.takes(batch.ordinal));
        let apply = |proposal| machine.apply_stamped(batch.stamp(), proposal, &mut ()).result;
        let results: Vec<_> = batch.proposals.iter().map(apply).collect();
        results.iter().filter(|result| matches!(result, Ok(Response::QueuePositions(_)))).count()
    });
    machine.check().unwrap();
    (steps, taken)
}

#[test]
fn pipelined_acquires_share_the_search_budget_of_an_entry() {
    let (steps, all) = pipelined();
    assert_eq!(all, 400);
    assert!(steps < 200_000, "{steps} steps");
}

#[test]
fn a_circle_is_found_after_the_entrys_budget_is_used_up() {
    let mut world = World::new();
    let named = |lock: &str, prefix: &str, owner| {
        let acquire = Acquire { owner: Owner::Named(owner), ..Acquire::exclusive(lock, prefix) };
        Command::Client(Request::Acquire([acquire].into()))
    };
    world.run(named("/a", "a-", 1));
    world.run(named("/b", "b-", 2));
    world.run(named("/b", "w-", 1));
    world.machine.searched = 1_000_000;
    let Response::QueuePositions(positions) = world.run(named("/a", "w-", 2)) else {
        panic!("acquire gives queue positions")
    };
    assert!(
        matches!(&positions[..], [rowlock_proto::lock::QueuePosition::Deadlock(circle)] if circle.len() == 2)
    );
}

#[test]
fn a_delete_finds_a_znode_by_its_path_alone() {
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral, CreateMode::Container] {
        let mut world = World::new();
        world.run(Command::Client(Request::Create2(create("/a", mode))));
        for path in ["//a", "///a", "/a/", "//", "a"] {
            let delete = Command::Client(Request::Delete { path: path.to_owned(), version: Version::ANY });
            let proposal = world.proposal(&Arc::default(), delete);
            let result = world.machine.apply(1_000, &proposal, &mut ()).result;
            world.machine.check().unwrap_or_else(|error| panic!("{mode:?} {path}: {error}"));
            assert!(result.is_err(), "{mode:?} {path}: {result:?}");
        }
    }
}
