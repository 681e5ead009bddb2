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
