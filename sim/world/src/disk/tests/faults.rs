//! Disks that fail, are full, slow, or corrupted.

use std::io::ErrorKind;

use super::*;
use crate::disk::Op;

#[test]
fn refused_changes_and_flushes_are_counted() {
    let (disk, mount) = disk(1);
    let file = durable(&mount, "/f", b"abc");
    disk.fail_changes(true);
    file.write_all_at(b"x", 0).expect_err("fails");
    file.sync().expect_err("fails");
    disk.heal();
    disk.fail_syncs(1);
    file.sync().expect_err("fails");
    assert_eq!((disk.stats().failed_changes, disk.stats().failed_syncs), (1, 2));
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
