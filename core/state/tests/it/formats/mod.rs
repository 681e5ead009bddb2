//! The bytes of log entries and snapshots: golden files that show every change of a format, and damage of all
//! kinds.
//!
//! `ROWLOCK_UPDATE=1 cargo test -p rowlock-state --test it formats` rewrites the golden files. After a
//! release only with a new format version, and with code that still reads the old one!

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

mod replay;
mod sample;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rowlock_state::command::{Batch, Command, Ordinal};
use rowlock_state::{BatchError, Layout, Machine, SnapshotError, version};
use rowlock_world::samples::missing;
use sample::SESSION;

/// Magic, version, the cluster's version and its fingerprint in front of the blocks.
const HEADER: usize = 16;
/// The fingerprint in it.
const LAYOUT: std::ops::Range<usize> = 12..16;
/// Length and checksum in front of a block.
const BLOCK_HEADER: usize = 8;

fn snapshot(machine: &Machine) -> Vec<u8> {
    let mut bytes = Vec::new();
    machine.freeze().encode(&mut bytes).unwrap();
    bytes
}

/// The bytes in `testdata/<name>.golden`, after comparing them with `bytes` or rewriting them.
fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    for line in bytes.chunks(32) {
        text.extend(line.iter().map(|byte| format!("{byte:02x}")));
        text.push('\n');
    }
    let written = crate::formats::bytes(&kept_text(name, &text));
    assert!(
        written == bytes,
        "{name} has changed: that needs a new fingerprint, after a release a new version"
    );
    written
}

/// The text of a golden file, after rewriting it if that is asked for.
#[expect(clippy::disallowed_methods, reason = "tests read their own files, no product code runs in between")]
fn kept_text(name: &str, text: &str) -> String {
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        std::fs::write(path_of(name), text).unwrap();
    }
    kept(name)
}

#[expect(clippy::disallowed_methods, reason = "tests read their own files, no product code runs in between")]
fn kept(name: &str) -> String {
    std::fs::read_to_string(path_of(name)).unwrap()
}

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(format!("{name}.golden"))
}

/// What these digits stand for.
fn bytes(written: &str) -> Vec<u8> {
    let digits: Vec<u8> = written.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn a_batch_matches_its_golden_file() {
    let bytes = golden("batch", &sample::batch().encode());
    assert_eq!(Batch::decode(&bytes).unwrap(), sample::batch());
}

#[test]
fn a_batch_about_locks_matches_its_golden_file() {
    let bytes = golden("batch_locks", &sample::lock_batch().encode());
    assert_eq!(Batch::decode(&bytes).unwrap(), sample::lock_batch());
}

#[test]
fn a_batch_of_other_commands_matches_its_golden_file() {
    let bytes = golden("batch_other", &sample::other_batch().encode());
    assert_eq!(Batch::decode(&bytes).unwrap(), sample::other_batch());
}

#[test]
fn decisions_of_the_leader_change_only_the_flags() {
    let plain = sample::batch();
    let guarding = Batch { guard_locks: true, ..plain.clone() };
    assert_eq!(Batch::decode(&guarding.encode()).unwrap(), guarding);
    assert_eq!(guarding.encode()[..2], [1, 2]);
    let enforcing = Batch { enforce_quota: true, ..plain.clone() };
    let bytes = enforcing.encode();
    assert_eq!(Batch::decode(&bytes).unwrap(), enforcing);
    assert_eq!((&bytes[..2], &bytes[2..]), (&[1, 1][..], &plain.encode()[2..]));
    let mut newer = bytes.to_vec();
    newer[1] = 4;
    assert!(matches!(Batch::decode(&newer), Err(BatchError::Flags(4))));
    assert!(matches!(Batch::decode(&bytes[..1]), Err(BatchError::Empty)));
}

#[test]
fn a_snapshot_matches_its_golden_file() {
    let machine = sample::machine();
    machine.check().unwrap();
    assert_eq!(machine.session(SESSION).unwrap().ephemerals().collect::<Vec<_>>(), ["/a/lock-0000000002"]);
    let bytes = golden("snapshot", &snapshot(&machine));
    let restored = Machine::decode(&mut bytes.as_slice()).unwrap();
    restored.check().unwrap();
    assert_eq!(restored.digest(), machine.digest());
    assert_eq!(restored.last_zxid(), machine.last_zxid());
    assert_eq!(restored.counts(), machine.counts());
}

#[test]
fn a_snapshot_with_queues_matches_its_golden_file() {
    let machine = sample::machine_with_locks();
    machine.check().unwrap();
    let counts = machine.counts();
    assert_eq!((counts.locks, counts.lock_holders, counts.lock_waiters), (4, 3, 1));
    let bytes = golden("snapshot_locks", &snapshot(&machine));
    let restored = Machine::decode(&mut bytes.as_slice()).unwrap();
    restored.check().unwrap();
    assert_eq!(restored.digest(), machine.digest());
    assert_eq!(restored.counts(), counts);
    assert_eq!(restored.last_entry(), Ordinal { term: 7, number: 1 });
    assert_eq!(restored.next_lock_due(), machine.next_lock_due());
    assert_eq!(snapshot(&restored), bytes);
}

#[test]
fn every_command_has_a_sample() {
    let batches = [sample::batch(), sample::lock_batch(), sample::other_batch()];
    let proposals = batches.into_iter().flat_map(|batch| batch.proposals);
    let commands: Vec<Command> = proposals.map(|proposal| proposal.command).collect();
    assert_eq!(missing(&commands), [] as [&str; 0]);
}

/// No golden file changes alone: the new fingerprint goes into `version.rs` (then rewrite the files again).
/// Builds before and after refuse each other's files and connections.
#[test]
fn the_fingerprint_is_that_of_the_golden_files() {
    let plain = ["batch", "batch_locks", "batch_other"].map(|name| bytes(&kept(name)));
    let snapshots = ["snapshot", "snapshot_locks"].map(|name| {
        let mut bytes = bytes(&kept(name));
        bytes[LAYOUT].fill(0);
        bytes
    });
    let log = kept(replay::LOG).into_bytes();
    let samples = Layout::of_samples(plain.into_iter().chain(snapshots).chain([log]));
    assert_eq!(Layout::of_version(version::FIRST), Some(samples), "REPLICATED is to be {samples}");
}

#[test]
fn a_snapshot_of_many_blocks_is_read_back_and_nothing_behind_it() {
    let machine = sample::large_machine();
    let mut bytes = snapshot(&machine);
    let length = bytes.len();
    assert!(length > 4_000_000);
    bytes.extend_from_slice(b"behind");
    let mut input = bytes.as_slice();
    let restored = Machine::decode(&mut input).unwrap();
    restored.check().unwrap();
    assert_eq!(restored.digest(), machine.digest());
    assert_eq!(input, b"behind");
}

#[test]
fn what_is_applied_keeps_nothing_of_its_entry() {
    let bytes = sample::lock_batch().encode();
    let batch = Batch::decode_shared(&bytes).unwrap();
    assert!(!bytes.is_unique(), "data are slices of the entry");
    let mut machine = Machine::new();
    for proposal in &batch.proposals {
        machine.apply(batch.time_ms, proposal, &mut ());
    }
    assert!(machine.lock_queue("/l/x").is_some());
    drop(batch);
    assert!(bytes.is_unique());
}

#[test]
fn a_batch_of_another_version_or_with_a_tail_is_refused() {
    let bytes = sample::batch().encode().to_vec();
    let decode = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        Batch::decode(&bytes)
    };
    assert!(matches!(decode(&|bytes| bytes[0] = 3), Err(BatchError::Version(3))));
    assert!(matches!(decode(&|bytes| bytes[0] = 0), Err(BatchError::Version(0))));
    assert!(matches!(decode(&|bytes| bytes.push(0)), Err(BatchError::Trailing(1))));
    assert!(matches!(decode(&|bytes| bytes.truncate(40)), Err(BatchError::Damaged(_))));
    assert!(matches!(decode(&|bytes| bytes.clear()), Err(BatchError::Empty)));
}

#[test]
fn every_cut_and_every_flipped_bit_of_a_snapshot_is_noticed() {
    let bytes = snapshot(&sample::machine_with_locks());
    for length in 0..bytes.len() {
        assert!(Machine::decode(&mut &bytes[..length]).is_err(), "cut at {length}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Machine::decode(&mut bytes.as_slice()).is_err(), "bit {bit}");
    }
}

#[test]
fn foreign_and_other_versions_snapshots_are_not_damaged_ones() {
    let bytes = snapshot(&sample::machine());
    let decode = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        Machine::decode(&mut bytes.as_slice()).map(|machine| machine.digest())
    };
    assert!(matches!(decode(0, b'X'), Err(SnapshotError::NotASnapshot)));
    assert!(matches!(decode(8, 4), Err(SnapshotError::Version(4))));
    assert!(matches!(decode(8, 0), Err(SnapshotError::Version(0))));
    assert!(matches!(decode(10, 9), Err(SnapshotError::Damaged(_))), "its records are of the first version");
    let other = decode(LAYOUT.start, !bytes[LAYOUT.start]);
    assert!(matches!(other, Err(SnapshotError::OtherBuild { version: 1, .. })), "{other:?}");
    assert!(matches!(decode(HEADER + 3, 0xff), Err(SnapshotError::Damaged(_))));
    assert!(matches!(Machine::decode(&mut &bytes[..bytes.len() - 1]), Err(SnapshotError::Io(_))));
}

#[test]
fn siblings_of_one_name_in_a_snapshot_are_damage() {
    let mut bytes = snapshot(&sample::machine());
    let block = &mut bytes[HEADER + BLOCK_HEADER..];
    // Depth 1, length 3 and the name: the sibling of /box.
    let at = block.windows(5).position(|bytes| bytes == b"\x01\x03ttl").unwrap();
    block[at + 2..at + 5].copy_from_slice(b"box");
    let at = block.windows(6).position(|bytes| bytes == b"\x01\x04box2").unwrap();
    block[at + 2..at + 6].copy_from_slice(b"aox2");
    let crc = crc32fast::hash(block);
    bytes[HEADER + 4..HEADER + BLOCK_HEADER].copy_from_slice(&crc.to_le_bytes());
    match Machine::decode(&mut bytes.as_slice()) {
        Err(SnapshotError::Damaged(what)) => assert!(what.contains("order"), "{what}"),
        other => panic!("{:?}", other.map(|machine| machine.counts())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_decoding_of_a_batch_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Batch::decode(&bytes);
    }

    #[test]
    fn damaged_batches_do_not_make_decoding_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = sample::batch().encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = Batch::decode(&bytes);
    }

    /// As a buggy or hostile writer would make them.
    #[test]
    fn wrong_contents_with_right_checksums_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        moved in any::<[prop::sample::Index; 3]>(),
        shuffle in any::<bool>(),
    ) {
        let mut bytes = snapshot(&sample::machine());
        let block = &mut bytes[HEADER + BLOCK_HEADER..];
        if shuffle {
            let [from, to, length] = moved.map(|index| index.index(block.len()));
            let length = (length % 60).min(block.len() - from.max(to));
            block.copy_within(from..from + length, to);
        } else {
            for (at, byte) in changes {
                block[at.index(block.len())] = byte;
            }
        }
        let crc = crc32fast::hash(block);
        bytes[HEADER + 4..HEADER + BLOCK_HEADER].copy_from_slice(&crc.to_le_bytes());
        if let Ok(machine) = Machine::decode(&mut bytes.as_slice()) {
            prop_assert_eq!(machine.check(), Ok(()));
        }
    }
}
