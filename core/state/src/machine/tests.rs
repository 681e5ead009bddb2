//! Tries the order of entries, ids, numbers of sequential znodes, and very deep trees.

use rowlock_proto::request::Create;
use rowlock_proto::{NodeId, SessionId};

use super::*;
use crate::command::{Attachment, Origin, Proof};
use crate::outcome::{Change, SessionEnd};

struct Silent;

impl EventSink for Silent {
    fn changed(&mut self, _: &Change<'_>) {}
    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}
}

fn run(machine: &mut Machine, session: SessionId, command: Command) -> Applied {
    let origin = Origin { node: NodeId(0x83), incarnation: 1, request: 1 };
    let proposal =
        Proposal { origin, session, attachment: Attachment(1), identities: Default::default(), command };
    let applied = machine.apply(1_000, &proposal, &mut Silent);
    machine.check().unwrap();
    applied
}

fn open(machine: &mut Machine) -> SessionId {
    let command = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 4_000 };
    run(machine, SessionId::NONE, command).attached.expect("a session opens").session
}

fn create(path: &str, flags: i32) -> Command {
    let create = Create { path: path.to_owned(), data: None, acl: Some(Acl::shared_open()), flags };
    Command::Client(Request::Create2(create))
}

#[test]
fn an_entry_that_does_not_follow_its_predecessor_is_skipped() {
    let mut machine = Machine::new();
    let mut takes = |term, number| machine.takes(Ordinal { term, number });
    assert!(!takes(3, 2), "the first entry of a term has the number 1");
    assert!(takes(3, 1) && takes(3, 2));
    assert!(!takes(3, 4), "it has overtaken another one");
    assert!(!takes(3, 2), "it comes again");
    assert!(takes(3, 3) && takes(3, 4));
    assert!(takes(0, 0), "it has no number");
    assert!(!takes(5, 2), "the first one of the next term is missing");
    assert!(takes(5, 1));
    assert!(!takes(3, 1) && !takes(3, 5), "that term is over");
    assert_eq!(machine.last_entry(), Ordinal { term: 5, number: 1 });
}

#[test]
fn states_that_expect_different_entries_differ() {
    let (mut ahead, behind) = (Machine::new(), Machine::new());
    assert!(ahead.takes(Ordinal { term: 1, number: 1 }));
    assert_ne!(ahead.digest(), behind.digest());
    let mut bytes = Vec::new();
    ahead.freeze().encode(&mut bytes).unwrap();
    let mut restored = Machine::decode(&mut bytes.as_slice()).unwrap();
    assert_eq!(restored.digest(), ahead.digest());
    assert!(restored.takes(Ordinal { term: 1, number: 2 }));
}

#[test]
fn session_ids_carry_the_node_and_the_zxid() {
    let mut machine = Machine::new();
    assert_eq!(open(&mut machine), SessionId(0x0300_0000_0000_0001));
    machine.last_zxid = Zxid((1 << 56) + 8);
    assert_eq!(open(&mut machine), SessionId(0x0300_0000_0000_0009));
}

#[test]
fn sequence_numbers_go_on_below_zero_past_the_largest() {
    let mut machine = Machine::new();
    let session = open(&mut machine);
    let id = machine.tree.find("/zookeeper").unwrap();
    machine.tree.update("/zookeeper", id, 0, |znode| znode.meta.creates = i32::MAX);
    for expected in ["/zookeeper/q2147483647", "/zookeeper/q-2147483648", "/zookeeper/q-2147483647"] {
        match run(&mut machine, session, create("/zookeeper/q", 2)).result {
            Ok(Response::PathStat(path, _)) => assert_eq!(path, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_very_deep_tree_needs_no_recursion() {
    let mut machine = Machine::new();
    let session = open(&mut machine);
    let mut path = String::new();
    let frozen = machine.freeze();
    for _ in 0..1_000 {
        path.push_str("/a");
        let proposal = Proposal {
            origin: Origin::default(),
            session,
            attachment: Attachment(1),
            identities: Default::default(),
            command: create(&path, 0),
        };
        machine.apply(1_000, &proposal, &mut Silent).result.unwrap();
    }
    let work = move || {
        machine.check().unwrap();
        let mut bytes = Vec::new();
        machine.freeze().encode(&mut bytes).unwrap();
        let copy = Machine::decode(&mut bytes.as_slice()).unwrap();
        assert_eq!(copy.all_children_number("/", &[]), Ok(1_003));
        assert_eq!(copy.digest(), machine.digest());
        assert_eq!(frozen.machine().counts().znodes, 4);
    };
    // Recursion would need more than 64 bytes per level, whatever the build.
    let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap();
    thread.join().unwrap();
}
