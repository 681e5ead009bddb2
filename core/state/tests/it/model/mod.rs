//! Random command sequences against a naive model, and against the machine itself by other ways: replay, a
//! snapshot in the middle, a frozen state that must not move.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod naive;
mod steps;

use naive::{Event, Naive};
use proptest::prelude::*;
use rowlock_proto::acl::perms;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::command::{Attachment, Batch, Command, Origin, Proposal, Stamp};
use rowlock_state::outcome::{Attached, Change, EventSink, SessionEnd};
use rowlock_state::{Machine, Proof};
use steps::{Step, steps};

const PASSWORD: [u8; 16] = [7; 16];

#[derive(Default)]
struct Recorder(Vec<Event>);

impl EventSink for Recorder {
    fn changed(&mut self, change: &Change<'_>) {
        self.0.push(Event::Changed {
            zxid: change.zxid,
            path: change.path.to_owned(),
            kind: change.kind,
            acl: change.acl.to_vec(),
            parent_acl: change.parent_acl.to_vec(),
        });
    }

    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.0.push(Event::Opened(session, attachment, timeout_ms));
    }

    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.0.push(Event::Attached(session, attachment, timeout_ms));
    }

    fn session_ended(&mut self, session: SessionId, end: SessionEnd) {
        self.0.push(Event::Ended(session, end));
    }
}

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

fn same_trees(machine: &Machine, naive: &Naive) -> Result<(), TestCaseError> {
    prop_assert_eq!(machine.last_zxid(), naive.zxid);
    for (path, node) in &naive.nodes {
        let (data, stat) = naive.shown(path);
        prop_assert_eq!(machine.stat(path), Some(stat), "{}", path);
        prop_assert_eq!(machine.acl(path), Some(node.acl.as_slice()), "{}", path);
        let readable = naive::allows(&node.acl, perms::READ, &[]);
        let reader = if readable { Ok(()) } else { Err(ErrorCode::NoAuth) };
        prop_assert_eq!(machine.get_data(path, &[]), reader.map(|()| (data, stat)));
        prop_assert_eq!(machine.get_children(path, &[]), reader.map(|()| (naive.children(path), stat)));
        prop_assert_eq!(
            machine.all_children_number(path, &[]),
            reader.map(|()| naive.descendants(path) as i32)
        );
    }
    prop_assert_eq!(machine.counts().znodes as usize, naive.nodes.len());
    prop_assert_eq!(
        machine.sessions().map(|(id, _)| id).collect::<Vec<_>>(),
        naive.sessions.keys().copied().collect::<Vec<_>>()
    );
    for (id, open) in &naive.sessions {
        let session = machine.session(*id).unwrap();
        prop_assert_eq!((session.attachment, session.timeout_ms), (open.attachment, open.timeout_ms));
        prop_assert_eq!(machine.ephemerals(*id, "/"), naive.owned(*id));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_does_what_the_naive_model_does(
        steps in steps(),
        cut in 0usize..80,
    ) {
        let (mut machine, mut naive, mut clients) = (Machine::new(), Naive::new(), Clients::default());
        let mut log = Vec::new();
        let mut frozen = None;
        for (number, (stamp, step)) in steps.into_iter().enumerate() {
            if number == cut {
                frozen = Some((machine.freeze(), machine.digest(), snapshot(&machine), log.len()));
            }
            let proposal = clients.proposal(number as u64, step);
            let (expected, expected_events) = naive.apply(stamp, &proposal);
            let mut recorder = Recorder::default();
            let applied = machine.apply_stamped(stamp, &proposal, &mut recorder);
            let answer = applied.result.map(|response| (response, applied.attached));
            prop_assert_eq!(&answer, &expected, "{:?}", proposal);
            prop_assert_eq!(recorder.0, expected_events, "{:?}", proposal);
            prop_assert_eq!(machine.check(), Ok(()), "{:?}", proposal);
            same_trees(&machine, &naive)?;
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
            machine.apply_stamped(batch.stamp(), proposal, &mut Recorder::default());
        }
    }
}
