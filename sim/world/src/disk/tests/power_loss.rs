//! What remains after a power loss.

use std::collections::BTreeSet;

use super::*;

const SECTOR: usize = 512;

/// What `look` sees after a loss of power, under all seeds.
fn outcomes<T: Ord>(prepare: impl Fn(&Arc<dyn Disk>), look: impl Fn(&Arc<dyn Disk>) -> T) -> BTreeSet<T> {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let (disk, mount) = disk(seed);
        prepare(&mount);
        seen.insert(look(&after_power_loss(&disk)));
    }
    seen
}

#[test]
fn what_was_flushed_is_there() {
    let prepare = |mount: &Arc<dyn Disk>| {
        let file = durable(mount, "/f", b"first");
        file.write_all_at(b"second", 3).expect("writes");
        file.allocate(40).expect("allocates");
        file.sync().expect("flushes");
    };
    let expected = [b"firsecond".to_vec(), vec![0; 31]].concat();
    assert_eq!(outcomes(prepare, |mount| content(mount, "/f")), BTreeSet::from([expected]));
}

#[test]
fn unflushed_writes_survive_independently() {
    let prepare = |mount: &Arc<dyn Disk>| {
        let file = durable(mount, "/f", b"abc");
        for (at, byte) in [(0, b'A'), (1, b'B'), (2, b'C')] {
            file.write_all_at(&[byte], at).expect("writes");
        }
    };
    let seen = outcomes(prepare, |mount| String::from_utf8(content(mount, "/f")).expect("is text"));
    let all = ["abc", "abC", "aBc", "aBC", "Abc", "AbC", "ABc", "ABC"];
    assert_eq!(seen, all.map(str::to_owned).into());
}

#[test]
fn a_torn_write_changes_only_whole_sectors() {
    let old = vec![b'o'; 5 * SECTOR];
    // From the middle of the first sector to the middle of the fifth.
    let (begin, end) = (100, 4 * SECTOR + 100);
    let prepare = |mount: &Arc<dyn Disk>| {
        durable(mount, "/f", &old).write_all_at(&vec![b'n'; end - begin], begin as u64).expect("writes");
    };
    let seen = outcomes(prepare, |mount| {
        let bytes = content(mount, "/f");
        assert!(bytes[..begin].iter().chain(&bytes[end..]).all(|byte| *byte == b'o'));
        let edges = [begin, SECTOR, 2 * SECTOR, 3 * SECTOR, 4 * SECTOR, end];
        let sectors = edges.windows(2).map(|edge| {
            let sector = &bytes[edge[0]..edge[1]];
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
            sector[0] == b'n'
        });
        sectors.collect::<Vec<_>>()
    });
    let prefixes = (0..=5).map(|kept| (0..5).map(|sector| sector < kept).collect::<Vec<_>>());
    assert!(prefixes.into_iter().all(|prefix| seen.contains(&prefix)), "the first sectors");
    assert!(seen.len() > 20, "or any: {seen:?}");
}

#[test]
fn an_extending_write_may_leave_only_its_length() {
    let prepare = |mount: &Arc<dyn Disk>| {
        durable(mount, "/f", b"abc").write_all_at(b"def", 3).expect("writes");
    };
    let seen = outcomes(prepare, |mount| content(mount, "/f"));
    assert_eq!(seen, [b"abc".to_vec(), b"abc\0\0\0".to_vec(), b"abcdef".to_vec()].into());
}

#[test]
fn a_change_of_length_is_kept_or_not() {
    let prepare = |mount: &Arc<dyn Disk>| durable(mount, "/f", b"abc").set_len(1).expect("cuts");
    assert_eq!(outcomes(prepare, |m| content(m, "/f").len()), [1, 3].into());
    let prepare = |mount: &Arc<dyn Disk>| durable(mount, "/f", b"abc").allocate(9_000).expect("allocates");
    assert_eq!(outcomes(prepare, |m| content(m, "/f").len()), [3, 9_000].into());
}

#[test]
fn a_file_with_an_unflushed_name_may_be_lost() {
    let prepare = |mount: &Arc<dyn Disk>| {
        let file = create(mount, "/f");
        file.write_all_at(b"abc", 0).expect("writes");
        file.sync().expect("flushes");
    };
    let seen = outcomes(prepare, |mount| mount.exists(path("/f")).then(|| content(mount, "/f")));
    assert_eq!(seen, [None, Some(b"abc".to_vec())].into());
}

#[test]
fn a_name_that_was_flushed_says_nothing_about_the_content() {
    let prepare = |mount: &Arc<dyn Disk>| {
        create(mount, "/f").write_all_at(b"abc", 0).expect("writes");
        mount.sync_dir(path("/")).expect("flushes");
    };
    let seen = outcomes(prepare, |mount| content(mount, "/f"));
    assert_eq!(seen, [b"".to_vec(), b"\0\0\0".to_vec(), b"abc".to_vec()].into());
}

#[test]
fn an_unflushed_rename_may_vanish_and_is_never_half_done() {
    let prepare = |mount: &Arc<dyn Disk>| {
        durable(mount, "/new", b"n");
        durable(mount, "/f", b"o");
        mount.rename(path("/new"), path("/f")).expect("renames");
    };
    let seen = outcomes(prepare, |m| (m.list(path("/")).expect("lists").join(" "), content(m, "/f")));
    assert_eq!(seen, [("f".to_owned(), b"n".to_vec()), ("f new".to_owned(), b"o".to_vec())].into());
}

#[test]
fn a_flushed_rename_or_removal_stays() {
    let prepare = |mount: &Arc<dyn Disk>| {
        durable(mount, "/a", b"a");
        durable(mount, "/b", b"b");
        mount.rename(path("/a"), path("/c")).expect("renames");
        mount.remove(path("/b")).expect("removes");
        mount.sync_dir(path("/")).expect("flushes");
    };
    assert_eq!(outcomes(prepare, |m| m.list(path("/")).expect("lists")), [vec!["c".to_owned()]].into());
}

#[test]
fn a_removed_file_may_come_back_as_it_was() {
    let prepare = |mount: &Arc<dyn Disk>| {
        drop(durable(mount, "/f", b"abc"));
        mount.remove(path("/f")).expect("removes");
        assert!(!mount.exists(path("/f")));
    };
    let seen = outcomes(prepare, |mount| mount.exists(path("/f")).then(|| content(mount, "/f")));
    assert_eq!(seen, [None, Some(b"abc".to_vec())].into());
}

#[test]
fn of_the_changes_in_a_directory_the_first_ones_survive() {
    let prepare = |mount: &Arc<dyn Disk>| {
        for name in ["/1", "/2", "/3"] {
            create(mount, name);
        }
    };
    let seen = outcomes(prepare, |mount| mount.list(path("/")).expect("lists").concat());
    assert_eq!(seen, ["", "1", "12", "123"].map(str::to_owned).into());
}

#[test]
fn a_directory_that_is_lost_takes_what_is_in_it_along() {
    let prepare = |mount: &Arc<dyn Disk>| {
        mount.create_dir(path("/d")).expect("creates");
        durable(mount, "/d/f", b"abc");
    };
    let seen = outcomes(prepare, |mount| mount.exists(path("/d/f")).then(|| content(mount, "/d/f")));
    assert_eq!(seen, [None, Some(b"abc".to_vec())].into());
}

#[test]
fn a_removed_directory_may_return_in_parts() {
    let prepare = |mount: &Arc<dyn Disk>| {
        mount.create_dir(path("/d")).expect("creates");
        mount.sync_dir(path("/")).expect("flushes");
        durable(mount, "/d/1", b"1");
        durable(mount, "/d/2", b"2");
        mount.remove_all(path("/d")).expect("removes");
        assert!(!mount.is_dir(path("/d")) && mount.list(path("/d")).is_err());
    };
    let seen = outcomes(prepare, |mount| mount.list(path("/d")).map(|names| names.concat()).ok());
    assert_eq!(seen, [None, Some("12"), Some("2"), Some("")].map(|names| names.map(str::to_owned)).into());
}

#[test]
fn what_survived_one_loss_of_power_survives_the_next() {
    for seed in 0..SEEDS {
        let (disk, mount) = disk(seed);
        let file = durable(&mount, "/f", b"abc");
        file.write_all_at(b"xyz", 2).expect("writes");
        create(&mount, "/g");
        let once = after_power_loss(&disk);
        let (names, bytes) = (once.list(path("/")).expect("lists"), content(&once, "/f"));
        let digest = disk.image_digest();
        let twice = after_power_loss(&disk);
        assert_eq!((twice.list(path("/")).expect("lists"), content(&twice, "/f")), (names, bytes));
        assert_eq!(disk.image_digest(), digest);
    }
}

#[test]
fn losses_are_counted_and_told() {
    let (disk, mount) = disk(3);
    let file = durable(&mount, "/f", b"abc");
    for _ in 0..10 {
        file.write_all_at(&[7; 2_000], 0).expect("writes");
    }
    file.set_len(50).expect("cuts");
    create(&mount, "/g");
    let losses = disk.power_loss();
    assert_eq!(losses.kept + losses.dropped + losses.torn, 10);
    assert_eq!(losses.lengths_kept + losses.lengths_lost, 1);
    assert_eq!(losses.names_kept + losses.names_lost, 1);
    assert_eq!(disk.stats().losses, losses);
    assert!(losses.to_string().starts_with("unflushed writes: "), "{losses}");
}
