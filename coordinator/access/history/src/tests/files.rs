//! Files of the history: bounds and damage.

#![allow(clippy::disallowed_methods)] // spoils files, which nothing else may

use std::fs;
use std::path::PathBuf;

use rowlock_env::disk::Dir;

use super::*;
use crate::block::{encode, entries};
use crate::footer::Footer;
use crate::query::Filter;
use crate::store::{Bounds, Store};

const BOUNDS: Bounds = Bounds { max_age_ms: 86_400_000, max_bytes: 64 << 20, free_min_bytes: 0 };

fn open(node: &Path, bounds: Bounds) -> Store {
    Store::open(Found::scan(node).unwrap(), bounds).unwrap()
}

/// Appends a record of about `len` bytes.
fn append(store: &mut Store, zxid: i64, len: usize) {
    append_of(store, zxid, "/l", SessionId(1), len);
}

fn append_of(store: &mut Store, zxid: i64, lock: &str, session: SessionId, len: usize) {
    let label = noise(zxid, len);
    let event = LockEvent {
        kind: LockEventKind::Converted,
        lock,
        path: "/n",
        token: FencingToken(zxid),
        session,
        label: label.as_str(),
        address: None,
        mode: Mode::Exclusive,
        acquired: true,
    };
    let newest = store.newest();
    let ordinal = if newest.zxid == Zxid(zxid) { newest.ordinal + 1 } else { 0 };
    let key = Key { time_ms: time_of(zxid), zxid: Zxid(zxid), ordinal };
    let entry = Entry { event: HistoryEvent::Lock(event), readers: Readers::of(&context(zxid)) };
    let mut bytes = Vec::new();
    assert!(encode(key, &entry, &mut bytes));
    store.append(&entries(&bytes).next().unwrap().unwrap()).unwrap();
}

/// Returns text that does not compress.
fn noise(seed: i64, len: usize) -> String {
    let mut state = seed.cast_unsigned();
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        char::from(state.to_be_bytes()[0] & 0x7f)
    };
    (0..len).map(|_| next()).collect()
}

fn read(store: &mut Store, filter: &Filter) -> Page {
    store.page(filter, None, time::wall_ms(), || false).unwrap()
}

fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(
            |entry| {
                if entry.path().is_dir() { size_of(&entry.path()) } else { entry.metadata().unwrap().len() }
            },
        )
        .sum()
}

/// Returns the closed segments in a node's folder, oldest first.
fn segments(node: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(node.join("history")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-")).collect();
    found.sort();
    found
}

/// Writes a history of several segments; returns the number of changes.
fn several_segments(node: &Path) -> i64 {
    let mut store = open(node, BOUNDS);
    let mut zxid = 0;
    while segments_of(&store, node) < 3 {
        zxid += 1;
        append(&mut store, zxid, 4_096);
    }
    store.close().unwrap();
    zxid
}

fn segments_of(_open: &Store, node: &Path) -> usize {
    segments(node).len()
}

#[test]
fn the_oldest_segments_are_removed_above_the_byte_bound() {
    for (len, changes) in [(100, 120_000), (4_000, 8_000)] {
        let node = tempfile::tempdir().unwrap();
        let bounds = Bounds { max_bytes: 16 << 20, ..BOUNDS };
        let mut store = open(node.path(), bounds);
        let mut largest = 0;
        for zxid in 1..=changes {
            append(&mut store, zxid, len);
            if zxid % 1_000 == 0 {
                largest = largest.max(size_of(node.path()));
            }
        }
        assert!(largest <= bounds.max_bytes, "{largest} bytes for records of {len}");
        assert!(largest > bounds.max_bytes / 3, "{largest} bytes for records of {len}");
        let (records, gaps) = ranges(&read(&mut store, &all()));
        assert_eq!(gaps, []);
        assert_eq!(records[0].0, changes);
        let count = i64::try_from(records.len()).unwrap();
        assert!((500..changes).contains(&count), "{count} of {len}");
        let page = read(&mut store, &all());
        assert_eq!(count, changes - page.complete_after.0, "none is missing in between");
        assert_eq!(page.complete_from_ms, page.entries.last().unwrap().0.time_ms);
        let of_lock = Filter { lock: Some("/l".to_owned()), ..all() };
        assert_eq!(ranges(&read(&mut store, &of_lock)), (records, gaps));
        assert!(size_of(node.path()) <= bounds.max_bytes, "with copies that are read");
    }
}

#[test]
fn old_entries_are_hidden_and_removed() {
    let node = tempfile::tempdir().unwrap();
    let bounds = Bounds { max_age_ms: 80_000, ..BOUNDS };
    let mut store = open(node.path(), bounds);
    let now = |zxid: i64| time_of(zxid);
    for zxid in (0..=200_000).step_by(1_000) {
        append(&mut store, zxid + 1, 10);
        store.trim(now(zxid)).unwrap();
        assert!(segments(node.path()).len() <= 10, "{zxid}");
        let shown = store.page(&all(), None, now(zxid), || false).unwrap();
        assert_eq!(shown.entries.last().unwrap().0.zxid.0, (zxid - 80_000).max(0) + 1, "none goes too early");
        let (known_ms, oldest_ms) = (shown.complete_from_ms, now(zxid) - 80_000);
        let is_all = oldest_ms <= time_of(1);
        assert_eq!(known_ms == i64::MIN, is_all, "{zxid}");
        assert!(is_all || (oldest_ms..=oldest_ms + 1_000).contains(&known_ms), "{zxid}: {known_ms}");
    }
    let shown = store.page(&all(), None, now(200_001), || false).unwrap();
    let oldest = shown.entries.last().unwrap().0.zxid.0;
    assert!((120_001..=121_001).contains(&oldest), "{oldest}");
    // Removal happens without new requests, too.
    store.trim(now(300_000)).unwrap();
    assert_eq!(segments(node.path()).len(), 0);
    store.close().unwrap();
    drop(store);
    let shown = open(node.path(), bounds).page(&all(), None, now(300_000), || false).unwrap();
    assert_eq!(
        shown,
        Page { complete_after: Zxid(200_001), complete_from_ms: now(300_000) - 80_000, ..Page::default() },
        "it is known after a restart"
    );
}

/// A segment has all covered events: after a crash the covered part of the log is not replayed.
#[test]
fn a_segment_ends_between_two_commands() {
    let node = tempfile::tempdir().unwrap();
    let mut store = open(node.path(), Bounds { max_bytes: 1 << 20, ..BOUNDS });
    (0..600).for_each(|nth| append(&mut store, 1 + nth / 3, 1_000));
    let ends =
        segments(node.path()).into_iter().map(|folder| Footer::read(&Dir::open(&folder).unwrap()).unwrap());
    let ends: Vec<u32> = ends.map(|footer| footer.last().ordinal).collect();
    assert!(ends.len() > 2 && ends.iter().all(|ordinal| *ordinal == 2), "{ends:?}");
}

#[test]
fn a_damaged_segment_is_set_aside_and_shown_as_a_gap() {
    let whole = tempfile::tempdir().unwrap();
    let changes = several_segments(whole.path());
    let count = segments(whole.path()).len();
    for (victim, file, cut) in [(0, "db", false), (1, "db", true), (1, "FOOTER", false), (0, "conf", true)] {
        let node = tempfile::tempdir().unwrap();
        copy(whole.path(), node.path());
        let segment = segments(node.path())[victim].clone();
        let mut bytes = fs::read(segment.join(file)).unwrap();
        let middle = bytes.len() / 2;
        match cut {
            true => bytes.truncate(middle),
            false => bytes[middle] ^= 0x10,
        }
        fs::write(segment.join(file), bytes).unwrap();
        let mut store = open(node.path(), BOUNDS);
        let (records, gaps) = ranges(&read(&mut store, &all()));
        assert!(!records.is_empty() && records.len() < usize::try_from(changes).unwrap(), "{file}");
        assert_eq!(gaps.len(), 1, "{file}");
        let kept = || {
            let names = fs::read_dir(node.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_str().unwrap().starts_with("history.damaged-")).count()
        };
        assert_eq!(kept(), 1, "{file}");
        // The next start reports the same gap, and continues.
        drop(store);
        let mut store = open(node.path(), BOUNDS);
        assert_eq!(ranges(&read(&mut store, &all())), (records, gaps), "{file}");
        append(&mut store, changes + 1, 10);
        assert_eq!(ranges(&read(&mut store, &Filter { limit: 1, ..all() })).0, [(changes + 1, 0)]);
        assert_eq!((kept(), segments(node.path()).len() >= count - 2), (1, true));
    }
}

#[test]
fn segments_from_before_the_first_release_are_removed() {
    let node = tempfile::tempdir().unwrap();
    let old = node.path().join("history/slice-0000000004");
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("SEAL"), "anything").unwrap();
    let mut store = open(node.path(), BOUNDS);
    assert!(!old.exists());
    append(&mut store, 1, 10);
    assert_eq!(ranges(&read(&mut store, &all())), (vec![(1, 0)], vec![]));
}

#[test]
fn another_builds_segment_is_set_aside_but_not_as_damaged() {
    let node = tempfile::tempdir().unwrap();
    let changes = several_segments(node.path());
    let oldest = segments(node.path())[0].clone();
    let mut footer = fs::read(oldest.join("FOOTER")).unwrap();
    // Changes the version, then the fingerprint.
    footer[1] ^= 1;
    let body = footer.len() - 4;
    let crc = crc32fast::hash(&footer[..body]).to_le_bytes();
    footer[body..].copy_from_slice(&crc);
    fs::write(oldest.join("FOOTER"), footer).unwrap();

    let found = Found::scan(node.path()).unwrap();
    assert_eq!(found.covered, Zxid(changes), "what is missing is not recorded again in part");
    let mut store = Store::open(found, BOUNDS).unwrap();
    let (records, gaps) = ranges(&read(&mut store, &all()));
    let first = records.last().unwrap().0;
    assert!(first > 1);
    assert!(node.path().join("history.other-build-1").is_dir());
    drop(store);
    assert_eq!(ranges(&read(&mut open(node.path(), BOUNDS), &all())), (records, gaps), "and so it stays");
}

#[test]
fn indexed_reads_of_many_segments_equal_a_full_scan() {
    let node = tempfile::tempdir().unwrap();
    let bounds = Bounds { max_bytes: 16 << 20, ..BOUNDS };
    let mut store = open(node.path(), bounds);
    let changes = 30_000;
    // Some locks occur in every segment, some in a few, a single lock only once.
    let lock_of = |zxid: i64| match zxid {
        777 => "/once".to_owned(),
        _ if zxid % 5 == 0 => format!("/rare/{}", zxid / 1_000),
        _ => format!("/often/{}", zxid % 7),
    };
    for zxid in 1..=changes {
        append_of(&mut store, zxid, &lock_of(zxid), SessionId(zxid % 11), 30);
        if zxid % 3_000 == 0 {
            store.checkpoint(Zxid(zxid)).unwrap();
        }
        if zxid % 10_000 == 0 {
            let key = Key { time_ms: time_of(zxid - 50), zxid: Zxid(zxid - 50), ordinal: 0 };
            let gap = Gap { from_zxid: Zxid(zxid - 60), missing: None, reason: GapReason::TooFast };
            store.append_gap(key, gap).unwrap();
        }
    }
    assert!(segments(node.path()).len() >= 2);
    let everything = read(&mut store, &all()).entries;
    assert!(everything.iter().map(|(key, _)| *key).rev().is_sorted());
    assert_eq!(everything.len(), usize::try_from(changes).unwrap() + 3);
    for (lock, session) in [
        (Some("/once".to_owned()), None),
        (Some("/rare/3".to_owned()), None),
        (Some("/often/3".to_owned()), None),
        (Some("/often/3".to_owned()), Some(SessionId(5))),
        (Some("/none".to_owned()), None),
        (None, Some(SessionId(5))),
        (None, Some(SessionId(99))),
    ] {
        let wanted = |entry: &Entry| {
            entry.event.lock().is_none_or(|event| {
                lock.as_deref().is_none_or(|lock| lock == event.lock)
                    && session.is_none_or(|session| session == event.session)
            })
        };
        let expected: Vec<_> = everything.iter().filter(|(_, entry)| wanted(entry)).cloned().collect();
        for limit in [3, 100, 1_000_000] {
            let (mut found, mut before) = (Vec::new(), Some(Key::MAX));
            while let Some(key) = before {
                let (lock, before_key) = (lock.clone(), key);
                let filter = Filter { lock, session, before: before_key, limit, ..all() };
                let page = read(&mut store, &filter);
                assert!(page.entries.len() <= limit);
                found.extend(page.entries);
                before = page.more_before.filter(|_| found.len() < 1_000);
            }
            let expected = &expected[..found.len().max(expected.len().min(1_000))];
            assert_eq!(found, expected, "{lock:?} {session:?} {limit}");
        }
    }
}

#[test]
fn a_segment_fatal_to_the_node_is_not_opened_again() {
    let node = tempfile::tempdir().unwrap();
    several_segments(node.path());
    let before = ranges(&read(&mut open(node.path(), BOUNDS), &all())).0.len();
    let newest = segments(node.path()).pop().unwrap();
    let number: u64 = newest.file_name().unwrap().to_str().unwrap()["segment-".len()..].parse().unwrap();
    fs::write(node.path().join("history/OPENING"), number.to_string()).unwrap();
    let (records, gaps) = ranges(&read(&mut open(node.path(), BOUNDS), &all()));
    assert!(records.len() < before && !records.is_empty());
    assert_eq!(gaps.len(), 1);
    assert!(node.path().join(format!("history.damaged-{number}")).is_dir());
    let again = ranges(&read(&mut open(node.path(), BOUNDS), &all()));
    assert_eq!(again, (records, gaps), "once is enough");
}

#[test]
fn a_crash_leaves_only_the_replacement_of_a_segment() {
    let node = tempfile::tempdir().unwrap();
    let mut store = open(node.path(), BOUNDS);
    (1..=10).for_each(|zxid| append(&mut store, zxid, 10));
    store.checkpoint(Zxid(10)).unwrap();
    let old = segments(node.path()).pop().unwrap();
    let kept = tempfile::tempdir().unwrap();
    copy(&old, kept.path());
    (11..=20).for_each(|zxid| append(&mut store, zxid, 10));
    store.checkpoint(Zxid(20)).unwrap();
    drop(store);
    assert!(!old.exists());
    fs::create_dir(&old).unwrap();
    copy(kept.path(), &old);
    let mut store = open(node.path(), BOUNDS);
    assert_eq!(ranges(&read(&mut store, &all())).0.len(), 20);
    assert!(!old.exists());
}

#[test]
fn short_blocks_are_merged_after_repeated_closes() {
    let node = tempfile::tempdir().unwrap();
    let mut store = open(node.path(), BOUNDS);
    for zxid in 1..=20 {
        append(&mut store, zxid, 10);
        store.checkpoint(Zxid(zxid)).unwrap();
    }
    let newest = Dir::open(&segments(node.path()).pop().unwrap()).unwrap();
    let footer = Footer::read(&newest).unwrap();
    assert_eq!((footer.blocks.len(), footer.entries()), (1, Some(20)));
    assert_eq!(ranges(&read(&mut store, &all())).0.len(), 20);
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn entries_of_a_failed_close_are_declared_missing() {
    let node = tempfile::tempdir().unwrap();
    let mut store = open(node.path(), BOUNDS);
    (1..=20).for_each(|zxid| append(&mut store, zxid, 10));
    store.checkpoint(Zxid(20)).unwrap();
    (21..=40).for_each(|zxid| append(&mut store, zxid, 10));
    // Simulates a disk without space.
    fs::remove_dir_all(node.path().join("history/open")).unwrap();
    let error = store.checkpoint(Zxid(45)).unwrap_err();
    assert_eq!((store.abandon(&error), store.covered()), (Zxid(20), Zxid(45)));
}

#[test]
fn a_segment_without_a_footer_is_a_gap_unless_newest() {
    let node = tempfile::tempdir().unwrap();
    let last = several_segments(node.path());
    let first_of = |segment: &PathBuf| Footer::read(&Dir::open(segment).unwrap()).unwrap().first().zxid.0;
    let all_segments = segments(node.path());
    let (second, third) = (first_of(&all_segments[1]), first_of(&all_segments[2]));
    let newest = first_of(all_segments.last().unwrap());
    fs::remove_file(all_segments[1].join("FOOTER")).unwrap();
    for _ in 0..2 {
        let mut store = open(node.path(), BOUNDS);
        assert_eq!(store.covered(), Zxid(last));
        assert_eq!(ranges(&read(&mut store, &all())).1, [(second - 1, third - 1)]);
        store.close().unwrap();
    }
    fs::remove_file(segments(node.path()).last().unwrap().join("FOOTER")).unwrap();
    assert_eq!(Found::scan(node.path()).unwrap().covered, Zxid(newest - 1), "the log has the rest");
}

#[test]
fn an_unwritten_gap_is_shown() {
    let node = tempfile::tempdir().unwrap();
    let mut store = open(node.path(), BOUNDS);
    (1..=20).for_each(|zxid| append(&mut store, zxid, 10));
    let key = Key { time_ms: time_of(25), zxid: Zxid(25), ordinal: 1 };
    let missed = Some((key, Gap { from_zxid: Zxid(20), missing: Some(9), reason: GapReason::NoSpace }));
    let mut page = |filter: &Filter| ranges(&store.page(filter, missed, time::wall_ms(), || false).unwrap());
    assert_eq!(page(&Filter { limit: 2, ..all() }), (vec![(20, 0)], vec![(20, 25)]));
    let behind =
        |zxid| Filter { before: Key { time_ms: time_of(zxid), zxid: Zxid(zxid), ordinal: 1 }, ..all() };
    assert_eq!(page(&behind(20)).1, [], "it has been shown");
    assert_eq!(page(&behind(23)).1, [(20, 23)], "what the pages before have shown is lost by now");
}

#[test]
fn a_lost_segment_with_a_leading_gap_is_one_gap() {
    let node = tempfile::tempdir().unwrap();
    let mut store = open(node.path(), BOUNDS);
    let (mut zxid, mut is_first) = (0, false);
    while !is_first {
        zxid += 10;
        append(&mut store, zxid - 5, 4_096);
        let key = Key { time_ms: time_of(zxid), zxid: Zxid(zxid), ordinal: 0 };
        let (gap, before) = (
            Gap { from_zxid: Zxid(zxid - 5), missing: Some(5), reason: GapReason::NoSpace },
            segments(node.path()).len(),
        );
        store.append_gap(key, gap).unwrap();
        is_first = segments(node.path()).len() > before;
    }
    store.close().unwrap();
    fs::write(segments(node.path()).last().unwrap().join("db"), "").unwrap();
    let page = read(&mut open(node.path(), BOUNDS), &all());
    assert_eq!(ranges(&page).1[0], (zxid - 5, zxid));
    assert!(
        matches!(page.entries[0].1.event, HistoryEvent::Gap(Gap { missing: None, .. })),
        "it is not known how many"
    );
}
