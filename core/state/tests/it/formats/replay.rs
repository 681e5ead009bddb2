//! Logs that releases have written give the states that these releases had, for as long as their version is
//! read: a change of what a command does would make two replicas differ while a cluster is upgraded.
//!
//! `testdata/log_0.2.0.golden` has a line per entry: its bytes, and the digest of the state behind it.

use rowlock_proto::ClusterId;
use rowlock_state::command::{Attachment, Batch, Command, Ordinal};
use rowlock_state::{ClusterVersion, Machine, version};

use crate::formats::sample::{self, SESSION};

pub(super) const LOG: &str = "log_0.2.0";

/// What the leader of a cluster of 0.2.0 has put into its log: every command, and time goes by.
fn entries() -> Vec<Batch> {
    let reattached = |mut batch: Batch| {
        batch.proposals.iter_mut().for_each(|proposal| proposal.attachment = Attachment(2));
        batch
    };
    let of = |commands: &[Command], proposals: &Batch| {
        let mut proposal = proposals.proposals[0].clone();
        let mut of_each = |command: &Command| {
            proposal.command = command.clone();
            proposal.origin.request += 1;
            proposal.clone()
        };
        Batch { proposals: commands.iter().map(&mut of_each).collect(), ..proposals.clone() }
    };
    let plain = sample::batch();
    let cluster = [Command::Found { cluster: ClusterId(0x1234 << 100) }, Command::EndGrace];
    let release = "0.2.0".to_owned();
    let upgrades = [
        Command::Noop,
        Command::HoldVersion { hold: true },
        Command::RaiseVersion { to: ClusterVersion { number: version::FIRST, release } },
    ];
    let due = [
        Command::LockDue { lock: "/l/x".to_owned() },
        Command::LockDue { lock: "/l/s".to_owned() },
        Command::Reap { path: "/ttl".to_owned() },
        Command::Reap { path: "/box2".to_owned() },
    ];
    let end = [Command::ExpireSession { session: SESSION, attachment: Attachment(2) }, Command::Noop];
    let all = [
        of(&cluster, &plain),
        sample::lock_batch(),
        sample::batch(),
        reattached(sample::other_batch()),
        of(&upgrades, &plain),
        of(&due, &plain),
        reattached(sample::lock_batch()),
        of(&end, &plain),
    ];
    let numbered = all.into_iter().zip(0_u64..).map(|(batch, at)| Batch {
        ordinal: Ordinal { term: 2 + at / 5, number: 1 + at % 5 },
        time_ms: batch.time_ms + 40_000 * at as i64,
        enforce_quota: at % 2 == 1,
        ..batch
    });
    numbered.collect()
}

fn replay(machine: &mut Machine, entry: &[u8]) -> u64 {
    let batch = Batch::decode(entry).expect("this release reads it");
    assert!(machine.takes(batch.ordinal), "it follows");
    for proposal in &batch.proposals {
        machine.apply_stamped(batch.stamp(), proposal, &mut ());
    }
    machine.check().expect("the state is whole");
    machine.digest()
}

#[test]
fn the_log_of_a_release_gives_the_states_that_it_had() {
    let mut machine = Machine::new();
    let written: String = entries().iter().map(Batch::encode).fold(String::new(), |text, bytes| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{text}{hex} {:016x}\n", replay(&mut machine, &bytes))
    });
    let kept = crate::formats::kept_text(LOG, &written);
    assert!(kept.lines().count() >= 8, "the file has a log");
    let mut again = Machine::new();
    for (line, at) in kept.lines().zip(1..) {
        let (entry, digest) = line.split_once(' ').expect("an entry and a digest");
        let found = replay(&mut again, &crate::formats::bytes(entry));
        assert_eq!(format!("{found:016x}"), digest, "entry {at}: replicas of two releases would differ");
    }
    assert_eq!(again.version().number, version::FIRST);
    assert!(kept == written, "the log of a release is never written anew");
}

#[test]
fn entries_of_a_later_version_begin_with_its_number() {
    let batch = sample::batch();
    let bytes = batch.encode_as(version::REHEARSED);
    assert_eq!((bytes[0], &bytes[1..]), (2, &batch.encode()[1..]));
    assert_eq!(Batch::decode(&bytes).expect("this release reads it"), batch);
}
