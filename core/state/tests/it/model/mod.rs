//! Random command sequences against the oracle, and against the machine itself by other ways: replay, a
//! snapshot in the middle, a frozen state that must not move.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod steps;

use proptest::prelude::*;
use rowlock_oracle::{Heard, Oracle};
use rowlock_proto::acl::perms;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::command::{Attachment, Batch, Command, Origin, Proposal, Stamp};
use rowlock_state::outcome::Attached;
use rowlock_state::{Machine, Proof, acl};
use steps::{Step, steps};

const PASSWORD: [u8; 16] = [7; 16];

/// Turns steps into proposals: knows which sessions there have been and their newest attachments.
#[derive(Default)]
struct Clients(Vec<(SessionId, Attachment)>);

impl Clients {
    fn get(&self, number: usize, stale: bool) -> (SessionId, Attachment) {
        let (session, Attachment(newest)) = self.0.get(number).copied().unwrap_or_default();
        (session, Attachment(newest - u64::from(stale && newest > 0)))
    }

    fn proposal(&self, request: u64, step: Step) -> Proposal {
        let mut origin = Origin { node: NodeId(1), incarnation: 1, request };
        let (mut session, mut attachment, mut identities) = (SessionId::NONE, Attachment(0), Vec::new());
        let command = match step {
            Step::Client { session: number, stale, who, command } => {
                (session, attachment) = self.get(number, stale);
                identities = who;
                command
            }
            Step::Open { node, timeout_ms } => {
                origin.node = node;
                Command::OpenSession { proof: Proof::of(&PASSWORD), timeout_ms }
            }
            Step::Attach { session, right, timeout_ms } => {
                let proof = Proof::of(if right { &PASSWORD } else { b"wrong" });
                Command::Reattach { from: None, session: self.get(session, false).0, proof, timeout_ms }
            }
            Step::Expire { session, stale } => {
                let (session, attachment) = self.get(session, stale);
                Command::ExpireSession { session, attachment }
            }
            Step::Cluster(command) => command,
        };
        Proposal { origin, session, attachment, identities: identities.into(), command }
    }

    fn learn(&mut self, attached: Option<&Attached>) {
        let Some(Attached { session, attachment, .. }) = attached else { return };
        match self.0.iter_mut().find(|(known, _)| known == session) {
            Some((_, newest)) => *newest = *attachment,
            None => self.0.push((*session, *attachment)),
        }
    }
}

fn snapshot(machine: &Machine) -> Vec<u8> {
    let mut bytes = Vec::new();
    machine.freeze().encode(&mut bytes).unwrap();
    bytes
}

/// Compares the reads of a client without identities with the znodes of the tree.
fn check_reads(machine: &Machine) -> Result<(), TestCaseError> {
    let mut paths = Vec::new();
    machine.each_znode(|path, _| paths.push(path.to_owned()));
    for path in &paths {
        let below = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let descendants: Vec<&String> =
            paths.iter().filter(|other| *other != "/" && other.starts_with(&below)).collect();
        let names = descendants.iter().map(|other| other[below.len()..].to_owned());
        let children: Vec<String> = names.filter(|name| !name.contains('/')).collect();
        let is_readable = acl::may(machine.acl(path).unwrap(), perms::READ, &[]);
        let reader = if is_readable { Ok(machine.stat(path).unwrap()) } else { Err(ErrorCode::NoAuth) };
        prop_assert_eq!(machine.get_data(path, &[]).map(|(_, stat)| stat), reader);
        prop_assert_eq!(machine.get_children(path, &[]), reader.map(|stat| (children, stat)));
        prop_assert_eq!(machine.all_children_number(path, &[]), reader.map(|_| descendants.len() as i32));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_does_what_the_oracle_does(
        steps in steps(),
        cut in 0usize..80,
    ) {
        let (mut machine, mut oracle, mut clients) = (Machine::new(), Oracle::default(), Clients::default());
        let mut log = Vec::new();
        let mut frozen = None;
        for (number, (stamp, step)) in steps.into_iter().enumerate() {
            if number == cut {
                frozen = Some((machine.freeze(), machine.digest(), snapshot(&machine), log.len()));
            }
            let proposal = clients.proposal(number as u64, step);
            let mut heard = Heard::default();
            let applied = machine.apply_stamped(stamp, &proposal, &mut heard);
            prop_assert_eq!(oracle.check((stamp, &proposal), &machine, (&applied, &heard.0)), Ok(()));
            prop_assert_eq!(oracle.check_all(&machine), Ok(()));
            prop_assert_eq!(machine.check(), Ok(()), "{:?}", proposal);
            check_reads(&machine)?;
            clients.learn(applied.attached.as_ref());
            let Stamp { time_ms, enforce_quota, .. } = stamp;
            log.push(Batch { time_ms, enforce_quota, proposals: vec![proposal], ..Batch::default() });
        }

        // Another replica, through the log format.
        let mut replica = Machine::new();
        replay(&mut replica, &log);
        prop_assert_eq!(replica.digest(), machine.digest());

        let Some((frozen, digest, bytes, applied)) = frozen else { return Ok(()) };
        // What was frozen has not moved.
        prop_assert_eq!(frozen.machine().check(), Ok(()));
        prop_assert_eq!(frozen.machine().digest(), digest);
        prop_assert_eq!(snapshot(frozen.machine()), bytes.clone());
        // A replica that starts from the snapshot arrives at the same state.
        let mut restored = Machine::decode(&mut bytes.as_slice()).unwrap();
        prop_assert_eq!(restored.check(), Ok(()));
        prop_assert_eq!(restored.digest(), digest);
        prop_assert_eq!(snapshot(&restored), bytes);
        replay(&mut restored, &log[applied..]);
        prop_assert_eq!(restored.digest(), machine.digest());
        prop_assert_eq!(snapshot(&restored), snapshot(&machine));
    }
}

fn replay(machine: &mut Machine, log: &[Batch]) {
    for batch in log {
        let batch = Batch::decode(&batch.encode()).unwrap();
        for proposal in &batch.proposals {
            machine.apply_stamped(batch.stamp(), proposal, &mut ());
        }
    }
}
