//! Log entries from another node or from a node's own log, and their effect on the state.
//!
//! A follower forwards proposals, the leader prices them and appends them to the log, every node applies
//! them: also proposals that no node of this version makes. No entry may stop a node; equal bytes give equal
//! states; and the state stays consistent.

#![cfg_attr(feature = "libfuzzer", no_main)]

use bytes::Bytes;
use rowlock_fuzz::{fuzz_target, within_worth};
use rowlock_state::Machine;
use rowlock_state::command::{Batch, Proposal};

#[allow(dead_code, reason = "a module of tests; this target uses a part")]
#[path = "../../../core/state/tests/it/formats/sample.rs"]
mod sample;

thread_local! {
    static BEFORE: Machine = sample::machine_with_locks();
}

/// Memory reserved in advance for a list with a long announced length, at each level.
const ADVANCE: usize = 4 << 20;
/// Bound of the state's memory: a command may cost as much as its price, which another test checks.
const STATE_MAX: usize = 64 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    let bytes = Bytes::copy_from_slice(rest);
    let batch = if choice % 2 == 0 {
        let read = within_worth(rest, ADVANCE, 128, || Proposal::decode_all(&bytes));
        read.ok().map(|proposals| Batch {
            proposals,
            time_ms: i64::from(*choice) * 1_000,
            ..Batch::default()
        })
    } else {
        within_worth(rest, ADVANCE, 128, || Batch::decode_shared(&bytes)).ok()
    };
    let Some(batch) = batch else { return };
    let encoded = batch.encode();
    let again = Batch::decode_shared(&encoded).expect("an encoded batch decodes");
    assert_eq!(again, batch);
    let digests = [applied(&batch), applied(&again)];
    assert_eq!(digests[0], digests[1]);
});

fn applied(batch: &Batch) -> u64 {
    let mut machine = BEFORE.with(Machine::clone);
    within_worth(&[], STATE_MAX, 0, || {
        if machine.takes(batch.ordinal) {
            for proposal in &batch.proposals {
                apply(&mut machine, batch, proposal);
            }
        }
    });
    machine.check().expect("the state is consistent");
    machine.digest()
}

/// Applies a proposal as the leader admits it: an error replaces a command that is too expensive.
fn apply(machine: &mut Machine, batch: &Batch, proposal: &Proposal) {
    let mut proposal = proposal.clone();
    if let Err(code) = machine.price(&proposal) {
        proposal.command = proposal.command.refused(code);
    }
    machine.apply_stamped(batch.stamp(), &proposal, &mut sample::Silent);
}
