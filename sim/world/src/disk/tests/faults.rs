//! Disks that fail, are full, slow, or corrupted.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use super::*;
use crate::disk::Op;

#[test]
fn the_flush_after_a_failed_one_omits_its_data() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..SEEDS {
        let (disk, mount) = disk(seed);
        let file = durable(&mount, "/f", b"old");
        file.write_all_at(b"new", 0).expect("writes");
        disk.fail_syncs(1);
        assert_eq!(file.sync().expect_err("fails").raw_os_error(), Some(5));
        assert_eq!(content(&mount, "/f"), b"new", "the process sees what it wrote");
        file.sync().expect("fails once");
        match content(&after_power_loss(&disk), "/f").as_slice() {
            b"old" => lost += 1,
            b"new" => kept += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(disk.stats().failed_syncs, 1);
    }
    assert!(lost > 50 && kept > 50, "{lost} {kept}");
}

#[test]
fn data_rewritten_after_a_failed_flush_becomes_durable() {
    for seed in 0..SEEDS {
        let (disk, mount) = disk(seed);
        let file = durable(&mount, "/f", b"old");
        file.write_all_at(b"new", 0).expect("writes");
        disk.fail_syncs(1);
        file.sync().expect_err("fails");
        file.write_all_at(b"NEW", 0).expect("writes");
        file.sync().expect("fails once");
        assert_eq!(content(&after_power_loss(&disk), "/f"), b"NEW");
    }
}

#[test]
fn a_restart_after_a_failed_flush_sees_cache_or_medium() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let (disk, mount) = disk(seed);
        let file = durable(&mount, "/f", b"old");
        file.write_all_at(b"new", 0).expect("writes");
        disk.fail_syncs(1);
        file.sync().expect_err("fails");
        let cached = content(&after_kill(&disk), "/f");
        seen.insert((cached, content(&after_power_loss(&disk), "/f")));
    }
    let [old, new] = [b"old".to_vec(), b"new".to_vec()];
    assert_eq!(seen, [(old.clone(), old.clone()), (new.clone(), old), (new.clone(), new)].into());
}

#[test]
fn a_failed_flush_of_names_leaves_them_to_the_next() {
    for seed in 0..50 {
        let (disk, mount) = disk(seed);
        create(&mount, "/f");
        disk.fail_syncs(1);
        mount.sync_dir(path("/")).expect_err("fails");
        mount.sync_dir(path("/")).expect("fails once");
        assert!(after_power_loss(&disk).exists(path("/f")));
    }
}

#[test]
fn a_failing_disk_refuses_changes_and_stays_readable() {
    let (disk, mount) = disk(1);
    let file = durable(&mount, "/f", b"abc");
    disk.fail_changes(true);
    let eio = |result: std::io::Result<()>| assert_eq!(result.expect_err("fails").raw_os_error(), Some(5));
    eio(file.write_all_at(b"x", 0));
    eio(file.set_len(0));
    eio(file.allocate(10));
    eio(file.sync());
    eio(mount.open(path("/g"), Open::New).map(drop));
    eio(mount.create_dir(path("/d")));
    eio(mount.rename(path("/f"), path("/g")));
    eio(mount.remove(path("/f")));
    eio(mount.sync_dir(path("/")));
    assert_eq!(content(&mount, "/f"), b"abc");
    assert_eq!((disk.stats().failed_changes, disk.stats().failed_syncs), (7, 2));
    disk.heal();
    file.write_all_at(b"x", 0).expect("is healed");
}

#[test]
fn a_full_disk_accepts_only_overwrites() {
    let (disk, mount) = disk(1);
    let file = create(&mount, "/f");
    file.allocate(10_000).expect("there is space");
    disk.fill_up(0);
    assert_eq!(mount.free_bytes(path("/")).expect("tells"), 0);
    file.write_all_at(&[1; 10_000], 0).expect("was allocated");
    file.write_all_at(&[1; 2_288], 10_000).expect("is in the last block");
    let error = file.write_all_at(&[1], 12_288).expect_err("is full");
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::StorageFull, Some(28)));
    assert_eq!(file.allocate(12_289).expect_err("is full").kind(), ErrorKind::StorageFull);
    file.sync().expect("needs no space");

    let other = create(&mount, "/g");
    disk.fill_up(4_096);
    let error = other.write_all_at(&[1; 5_000], 0).expect_err("does not fit");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(other.size().expect("size"), 4_096, "what fitted was written");
    drop(file);
    mount.remove(path("/f")).expect("removes");
    other.write_all_at(&[1; 5_000], 0).expect("the removal made space");
    disk.heal();
    assert!(mount.free_bytes(path("/")).expect("tells") > 1 << 39);
    assert_eq!(disk.stats().out_of_space, 3);
}

#[test]
fn a_rotten_bit_is_in_a_chosen_file_and_stays() {
    for seed in 0..100 {
        let (disk, mount) = disk(seed);
        durable(&mount, "/f", &[7; 1_000]);
        durable(&mount, "/g", &[7; 1_000]);
        create(&mount, "/unflushed").write_all_at(b"x", 0).expect("writes");
        let told = disk.rot(|path| path != Path::new("/g")).expect("has content");
        assert!(told.contains(" of /f"), "{told}");
        let lives: [&dyn Fn() -> Arc<dyn Disk>; 3] =
            [&|| mount.clone(), &|| after_kill(&disk), &|| after_power_loss(&disk)];
        for life in lives {
            let mount = life();
            let bits: u32 = content(&mount, "/f").iter().map(|byte| (byte ^ 7).count_ones()).sum();
            assert_eq!(bits, 1);
            assert_eq!(content(&mount, "/g"), [7; 1_000]);
        }
        assert_eq!(disk.stats().rotten_bits, 1);
    }
    let (empty, _mount) = disk(1);
    assert_eq!(empty.rot(|_| true), None);
}

#[test]
fn a_write_after_the_rot_hides_it() {
    let (disk, mount) = disk(1);
    let file = durable(&mount, "/f", &[7; 100]);
    file.write_all_at(&[8; 100], 0).expect("writes");
    disk.rot(|_| true).expect("has content");
    assert_eq!(content(&mount, "/f"), [8; 100]);
    file.sync().expect("flushes");
    assert_eq!(content(&after_power_loss(&disk), "/f"), [8; 100]);
}

#[test]
fn the_pace_is_told_and_healed() {
    let (disk, _mount) = disk(1);
    disk.set_pace(40);
    assert_eq!(disk.pace(), 40);
    disk.heal();
    assert_eq!(disk.pace(), 1);
}

#[test]
fn operations_and_bytes_are_counted() {
    let (disk, mount) = disk(1);
    durable(&mount, "/f", b"abc");
    content(&mount, "/f");
    let mut stats = disk.stats();
    assert_eq!([Op::Create, Op::Write, Op::Sync, Op::SyncDir].map(|op| stats.of(op)), [1; 4]);
    assert_eq!((stats.operations(), stats.bytes_written, stats.bytes_read), (4, 3, 3));
    stats += disk.stats();
    assert_eq!(stats.operations(), 8);
}
