//! Processes come and go; the disk stays.

use std::io::ErrorKind;

use super::*;

#[test]
fn what_a_dead_process_had_open_is_of_no_use_any_more() {
    let (disk, mount) = disk(1);
    let file = durable(&mount, "/f", b"abc");
    for power_goes in [false, true] {
        if power_goes {
            disk.power_loss();
        } else {
            disk.process_died();
        }
        assert!(
            file.read_at(&mut [0], 0).is_err() && file.write_all_at(b"x", 0).is_err() && file.sync().is_err()
        );
        assert!(!mount.exists(path("/f")) && mount.remove(path("/f")).is_err());
        assert!(!disk.mount().exists(path("/f")), "not before the next one begins");
        disk.boot();
        assert!(mount.remove(path("/f")).is_err() && file.set_len(0).is_err());
        assert_eq!(content(&disk.mount(), "/f"), b"abc");
    }
}

#[test]
fn a_lock_is_free_after_drop_or_death() {
    let (disk, mount) = disk(1);
    let lock = mount.lock(path("/LOCK")).expect("is free");
    assert_eq!(mount.lock(path("/LOCK")).expect_err("is taken").kind(), ErrorKind::WouldBlock);
    drop(lock);
    let dead = mount.lock(path("/LOCK")).expect("is free again");
    let mount = after_kill(&disk);
    let _held = mount.lock(path("/LOCK")).expect("is free again");
    drop(dead);
    assert!(mount.lock(path("/LOCK")).is_err(), "the end of a dead one's lock frees nothing");
    assert!(after_power_loss(&disk).lock(path("/LOCK")).is_ok());
}

#[test]
fn an_open_file_stays_readable_after_its_name_is_gone() {
    let (disk, mount) = disk(1);
    let file = durable(&mount, "/f", b"abc");
    mount.remove(path("/f")).expect("removes");
    mount.sync_dir(path("/")).expect("flushes");
    let mut bytes = [0; 3];
    assert_eq!(file.read_at(&mut bytes, 0).expect("reads"), 3);
    assert_eq!(&bytes, b"abc");
    assert_eq!(disk.state.lock().tree.used_bytes(), 4_096);
    drop(file);
    assert_eq!(disk.state.lock().tree.used_bytes(), 0);
}

#[test]
fn files_are_told_with_their_sizes_by_path() {
    let (disk, mount) = disk(1);
    mount.create_dir(path("/d")).expect("creates");
    create(&mount, "/d/b").allocate(100).expect("allocates");
    create(&mount, "/c");
    let files = disk.files();
    let files: Vec<_> = files.iter().map(|(path, size)| (path.to_str().expect("text"), *size)).collect();
    assert_eq!(files, [("/c", 0), ("/d/b", 100)]);
}
