//! Log entries, as a node gets them from another node or reads them from its log, and what they do to the
//! state.
//!
//! A follower forwards proposals, the leader prices them and puts them into the log, every node applies them:
//! also those that no node of this version makes. None may stop a node; the same bytes give the same state;
//! and that state stays consistent.

#![cfg_attr(feature = "libfuzzer", no_main)]

use bytes::Bytes;
use rowlock_fuzz::{fuzz_target, within_worth};
use rowlock_state::Machine;
use rowlock_state::command::{Batch, Proposal};

#[allow(dead_code, reason = "a test's, of which some is used here")]
#[path = "../../../core/state/tests/it/formats/sample.rs"]
mod sample;

thread_local! {
    static BEFORE: Machine = sample::machine_with_locks();
}

/// What a list that claims to be long gets in advance, at each level.
const ADVANCE: usize = 4 << 20;
/// A command may be dear as far as its price says: that bound is another test's.
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
    let written = batch.encode();
    let again = Batch::decode_shared(&written).expect("was just written");
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
    machine.check().expect("the state is whole");
    machine.digest()
}

/// As the leader judges it: what is too dear is refused in its place.
fn apply(machine: &mut Machine, batch: &Batch, proposal: &Proposal) {
    let mut proposal = proposal.clone();
    if let Err(code) = machine.price(&proposal) {
        proposal.command = proposal.command.refused(code);
    }
    machine.apply_stamped(batch.stamp(), &proposal, &mut sample::Silent);
}
