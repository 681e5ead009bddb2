//! Recovery after a stop, a kill, a torn write, and damage.

use rowlock_state::Machine;

use super::*;
use crate::log::segment::FIRST_RECORD_AT;
use crate::open::{Stopped, verify};
use crate::testing::{log_id, vote};

#[tokio::test]
async fn entries_vote_and_committed_survive_a_clean_stop() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    log.save_vote(vote(3, 2)).await.expect("saves");
    append(&mut log, entries(3, 0..10, 100)).await;
    log.set_committed(Some(log_id(3, 8)));
    log.close().await;

    let Opened { mut log, report, .. } = open(dir.path()).await;
    assert_eq!(stored(&mut log).await, entries(3, 0..10, 100));
    assert_eq!(stored_vote(&mut log).await, Some(vote(3, 2)));
    assert_eq!(log.checkpoint().committed, Some(log_id(3, 8)));
    assert_eq!((report.last, report.torn), (Some(log_id(3, 9)), false));
}

#[tokio::test]
async fn a_killed_process_has_lost_nothing_that_was_acknowledged() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    append(&mut log, entries(1, 0..5, 100)).await;
    log.save_vote(vote(2, 3)).await.expect("saves");
    log.set_committed(Some(log_id(1, 3)));
    append(&mut log, entries(1, 5..6, 100)).await; // carries the committed mark

    let mut log = open(killed(dir.path()).path()).await.log;
    assert_eq!(stored(&mut log).await, entries(1, 0..6, 100));
    assert_eq!(stored_vote(&mut log).await, Some(vote(2, 3)));
    assert_eq!(log.checkpoint().committed, Some(log_id(1, 3)));
}

#[tokio::test]
async fn a_truncated_log_stays_truncated_after_a_restart() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    append(&mut log, entries(1, 0..10, 10)).await;
    log.truncate_after(Some(log_id(1, 4))).await.expect("truncates");
    append(&mut log, entries(2, 5..7, 10)).await;

    let mut log = open(killed(dir.path()).path()).await.log;
    let expected: Vec<Entry> = entries(1, 0..5, 10).into_iter().chain(entries(2, 5..7, 10)).collect();
    assert_eq!(stored(&mut log).await, expected);
}

#[tokio::test]
async fn a_torn_tail_is_cut_at_every_byte_of_the_last_record() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    append(&mut log, entries(1, 0..3, 40)).await;
    let before = std::fs::read(&segments(dir.path())[0]).expect("reads");
    append(&mut log, entries(1, 3..4, 40)).await;
    let after = std::fs::read(&segments(dir.path())[0]).expect("reads");
    let start = (0..after.len()).find(|at| before[*at] != after[*at]).expect("something was written");
    let end = (0..after.len()).rfind(|at| before[*at] != after[*at]).expect("something was written");

    for cut in start & !7..=end {
        let copy = killed(dir.path());
        let mut torn = after.clone();
        torn[cut..].fill(0);
        std::fs::write(&segments(copy.path())[0], &torn).expect("writes");
        let mut log = open(copy.path()).await.log;
        assert_eq!(stored(&mut log).await, entries(1, 0..3, 40), "cut at {cut}");
        // The log continues at the cut.
        append(&mut log, entries(2, 3..5, 40)).await;
        let again = killed(copy.path());
        let last = stored(&mut open(again.path()).await.log).await.pop().expect("has entries");
        assert_eq!(last.log_id, log_id(2, 4));
    }
}

#[tokio::test]
async fn a_flipped_bit_is_refused_with_file_offset_and_advice() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    for index in 0..4 {
        append(&mut log, entries(1, index..index + 1, 100)).await;
    }
    let segment = segments(dir.path())[0].clone();
    let mut bytes = std::fs::read(&segment).expect("reads");
    bytes[FIRST_RECORD_AT as usize + 150] ^= 4;
    let copy = killed(dir.path());
    std::fs::write(&segments(copy.path())[0], &bytes).expect("writes");
    let text = try_open(copy.path()).await.err().expect("is refused").to_string();
    for part in
        ["0000000000000001.wal", "offset 4", "had been flushed", "Keep this folder", "Only if a majority"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn damage_in_an_earlier_segment_is_refused_even_at_its_end() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    append(&mut log, entries(1, 0..60, 1000)).await;
    let copy = killed(dir.path());
    let first = segments(copy.path())[0].clone();
    let mut bytes = std::fs::read(&first).expect("reads");
    let last = bytes.iter().rposition(|byte| *byte != 0).expect("has records");
    bytes[last] ^= 1;
    std::fs::write(&first, &bytes).expect("writes");
    assert!(matches!(try_open(copy.path()).await, Err(StorageError::Damaged { path, .. }) if path == first));
}

#[tokio::test]
async fn a_missing_segment_is_refused() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    append(&mut log, entries(1, 0..60, 1000)).await;
    for missing in [0, 1] {
        let copy = killed(dir.path());
        std::fs::remove_file(&segments(copy.path())[missing]).expect("removes");
        assert!(
            matches!(try_open(copy.path()).await, Err(StorageError::Incomplete { .. })),
            "segment {missing}"
        );
    }
}

#[tokio::test]
async fn purged_segments_are_recycled_and_never_resurrect_old_records() {
    let dir = temp();
    let mut opened = open(dir.path()).await;
    let log = &mut opened.log;
    let mut next = 0;
    for round in 1..=20 {
        append(log, entries(round, next..next + 40, 1000)).await;
        next += 40;
        super::snapshots::write(&opened.snapshots, round, next - 1);
        log.purge(log_id(round, next - 1)).await.expect("purges");
        flush_all(log).await;
        assert!(segments(dir.path()).len() <= 2, "round {round}: {:?}", segments(dir.path()));

        let copy = killed(dir.path());
        let Opened { mut log, report, .. } = open(copy.path()).await;
        assert_eq!(stored(&mut log).await, [], "round {round}");
        assert_eq!(
            (report.purged, report.last),
            (Some(log_id(round, next - 1)), Some(log_id(round, next - 1)))
        );
    }
    let spares =
        std::fs::read_dir(dir.path().join("wal")).expect("lists").count() - segments(dir.path()).len();
    assert!((1..=2).contains(&spares), "{spares} spares");
}

#[tokio::test]
async fn a_purged_log_continues_behind_the_purge_after_a_restart() {
    let dir = temp();
    let mut opened = open(dir.path()).await;
    append(&mut opened.log, entries(1, 0..10, 10)).await;
    super::snapshots::write(&opened.snapshots, 1, 6);
    opened.log.purge(log_id(1, 5)).await.expect("purges");
    opened.log.close().await;

    let mut opened = open(dir.path()).await;
    assert_eq!(stored(&mut opened.log).await, entries(1, 6..10, 10));
    let state = opened.log.checkpoint();
    assert_eq!((state.purged, state.last), (Some(log_id(1, 5)), Some(log_id(1, 9))));
    append(&mut opened.log, entries(1, 10..11, 10)).await;
}

#[tokio::test]
async fn a_kill_at_any_step_of_making_a_segment_leaves_a_sound_log() {
    let dir = temp();
    let mut opened = open(dir.path()).await;
    append(&mut opened.log, entries(1, 0..60, 1000)).await;
    super::snapshots::write(&opened.snapshots, 1, 59);
    opened.log.purge(log_id(1, 40)).await.expect("purges");
    flush_all(&mut opened.log).await;
    let expected = stored(&mut opened.log).await;
    let newest = segments(dir.path()).pop().expect("has segments");
    let unfinished: [(&str, Option<Vec<u8>>); 3] = [
        ("new-segment.tmp", Some(vec![0; 100])),
        ("new-segment.tmp", None),
        // A spare with a new header, before its renaming.
        ("spare-0000000000000001", None),
    ];
    for (name, content) in unfinished {
        let copy = killed(dir.path());
        let content = content.unwrap_or_else(|| std::fs::read(&newest).expect("reads"));
        std::fs::write(copy.path().join("wal").join(name), content).expect("writes");
        let mut log = open(copy.path()).await.log;
        assert_eq!(stored(&mut log).await, expected);
        append(&mut log, entries(1, 60..120, 1000)).await;
        assert_eq!(stored(&mut open(killed(copy.path()).path()).await.log).await.len(), expected.len() + 60);
    }
}

#[tokio::test]
async fn a_record_larger_than_a_segment_gets_one_of_its_own() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    append(&mut log, entries(1, 0..1, 3 * SMALL as usize)).await;
    append(&mut log, entries(1, 1..3, 10)).await;
    let mut log = open(killed(dir.path()).path()).await.log;
    assert_eq!(stored(&mut log).await.len(), 3);
}

#[tokio::test]
async fn appended_entries_are_readable_before_they_are_durable() {
    let dir = temp();
    let log = open(dir.path()).await.log;
    log.append(entries(1, 0..3, 10), Done::Unawaited).await.expect("appends");
    assert_eq!(log.read().range(&(0..2)).count(), 2);
}

#[tokio::test]
async fn a_kill_after_beginning_a_segment_loses_nothing() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    log.save_vote(vote(7, 3)).await.expect("saves");
    append(&mut log, entries(1, 0..20, 1000)).await;
    let copy = killed(dir.path());
    let newest = segments(copy.path()).pop().expect("has segments");
    let mut bytes = std::fs::read(&newest).expect("reads");
    bytes[FIRST_RECORD_AT as usize..].fill(0);
    std::fs::write(&newest, bytes).expect("writes");

    let mut opened = open(copy.path()).await;
    let last = stored(&mut opened.log).await.pop().expect("has entries").log_id;
    super::snapshots::write(&opened.snapshots, 1, last.index);
    opened.log.purge(last).await.expect("purges");
    flush_all(&mut opened.log).await;
    assert_eq!(segments(copy.path()), [newest]);
    let mut log = open(killed(copy.path()).path()).await.log;
    assert_eq!(stored_vote(&mut log).await, Some(vote(7, 3)));
    assert_eq!(log.checkpoint().last, Some(last));
}

#[tokio::test]
async fn a_folder_whose_log_has_vanished_does_not_pass_for_a_new_one() {
    let dir = temp();
    open(dir.path()).await.log.close().await;
    std::fs::remove_file(&segments(dir.path())[0]).expect("removes");
    let text = try_open(dir.path()).await.err().expect("is refused").to_string();
    assert!(text.contains("segments are missing") && text.contains("forgotten its vote"), "{text}");
}

#[tokio::test]
async fn a_first_start_that_was_killed_at_any_step_can_be_repeated() {
    let dir = temp();
    std::fs::write(dir.path().join("identity.tmp"), b"rowl").expect("writes");
    drop(open(dir.path()).await);
    let copy = killed(dir.path());
    // A kill before the first segment has its name, and before the identity file records the log as begun.
    let identity = copy.path().join("identity");
    let begun = std::fs::read_to_string(&identity).expect("reads");
    let (content, _) = begun.rsplit_once("crc ").expect("it ends with a checksum");
    let new = content.replace("log begun", "log new");
    let crc = crc32fast::hash(new.as_bytes());
    std::fs::write(identity, format!("{new}crc {crc:08x}\n")).expect("writes");
    let without_segment = killed(copy.path());
    std::fs::remove_file(&segments(without_segment.path())[0]).expect("removes");
    open(without_segment.path()).await;
    open(copy.path()).await;
}

#[tokio::test]
async fn a_stopped_nodes_folder_can_be_verified_without_changing_it() {
    let dir = temp();
    let mut opened = open(dir.path()).await;
    append(&mut opened.log, entries(1, 0..30, 1000)).await;
    let meta = crate::testing::snapshot_meta(1, 20);
    let state = |mut out: &mut dyn std::io::Write| Machine::new().freeze().encode(&mut out);
    opened.snapshots.write(meta, state, |_| Ok(())).expect("writes");
    opened.log.purge(log_id(1, 20)).await.expect("purges");
    assert!(matches!(verify(dir.path()), Err(StorageError::InUse(_))));
    opened.log.close().await;

    let content =
        |dir: &Path| segments(dir).iter().map(|path| std::fs::read(path).expect("reads")).collect::<Vec<_>>();
    let before = content(dir.path());
    let Stopped { identity: found, report, .. } = verify(dir.path()).expect("is whole");
    assert_eq!(found, identity());
    assert_eq!(
        (report.purged, report.last, report.snapshot),
        (Some(log_id(1, 20)), Some(log_id(1, 29)), Some(log_id(1, 20)))
    );
    assert_eq!(content(dir.path()), before);

    let newest = segments(dir.path()).pop().expect("has segments");
    let mut bytes = std::fs::read(&newest).expect("reads");
    bytes[FIRST_RECORD_AT as usize + 30] ^= 1;
    std::fs::write(&newest, bytes).expect("writes");
    assert!(matches!(verify(dir.path()), Err(StorageError::Damaged { .. })));
}

/// Returns the range of the last entry's record in the last segment, found by its payload.
fn last_entry(bytes: &[u8], payload: u8) -> std::ops::Range<usize> {
    let run = [payload; 64];
    let at = bytes.windows(run.len()).rposition(|window| window == run).expect("is there");
    at..at + run.len()
}

#[tokio::test]
async fn rot_in_the_last_flushed_batch_of_an_idle_log_is_damage() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    append(&mut log, entries(1, 0..3, 100)).await;
    // The worker writes the mark after a pause.
    let is_marked = || verify_copy(dir.path()).records >= 6;
    let begun = rowlock_env::time::now();
    while !is_marked() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "no mark was written");
        rowlock_env::time::sleep(crate::limits::FLUSH_MARK_DELAY).await;
    }
    let copy = killed(dir.path());
    let segment = segments(copy.path())[0].clone();
    let mut bytes = std::fs::read(&segment).expect("reads");
    let place = last_entry(&bytes, 2);
    bytes[place.start] ^= 4;
    std::fs::write(&segment, &bytes).expect("writes");
    assert!(matches!(try_open(copy.path()).await, Err(StorageError::Damaged { .. })));
}

#[tokio::test]
async fn rot_in_the_last_batch_of_a_closed_log_is_damage() {
    let dir = temp();
    let mut log = open(dir.path()).await.log;
    append(&mut log, entries(1, 0..3, 100)).await;
    log.close().await;
    let segment = segments(dir.path())[0].clone();
    let mut bytes = std::fs::read(&segment).expect("reads");
    let place = last_entry(&bytes, 2);
    bytes[place.start] ^= 4;
    std::fs::write(&segment, &bytes).expect("writes");
    assert!(matches!(try_open(dir.path()).await, Err(StorageError::Damaged { .. })));
}

/// Verifies a copy of the folder, as a killed process would leave the files.
fn verify_copy(dir: &Path) -> crate::RecoveryReport {
    verify(killed(dir).path()).expect("is whole").report
}
