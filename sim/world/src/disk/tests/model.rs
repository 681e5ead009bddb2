//! The disk against the simplest model: each file is its last flushed version, changed by any of the later
//! writes; each directory is its last flushed version, changed by a first part of the later operations.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const NAMES: [&str; 4] = ["/d/a", "/d/b", "/d/c", "/d/e"];
const FILE_BYTES: usize = 3_000;

/// The bytes that are written are below this.
const BYTES: usize = 64;

/// For each byte, a bit for every value that it may have after a loss of power.
type Possible = Vec<u64>;

/// A file: what it is, and what each of its bytes has been since it was flushed.
#[derive(Clone)]
struct Modelled {
    now: Vec<u8>,
    possible: Possible,
}

impl Modelled {
    fn flushed(now: Vec<u8>) -> Self {
        let possible = now.iter().map(|byte| 1 << byte).collect();
        Modelled { now, possible }
    }
}

/// Names to file numbers.
type Names = BTreeMap<&'static str, usize>;

struct Model {
    files: Vec<Modelled>,
    /// What the directory has been since it was flushed; the last is what it is.
    names: Vec<Names>,
}

impl Model {
    fn now(&self) -> &Names {
        self.names.last().expect("never empty")
    }

    fn change(&mut self, f: impl FnOnce(&mut Names)) {
        let mut next = self.now().clone();
        f(&mut next);
        self.names.push(next);
    }
}

fn step(model: &mut Model, mount: &Arc<dyn Disk>, rng: &mut Rng) {
    let name = rng.pick(&NAMES);
    let Some(number) = model.now().get(name).copied() else {
        let file = create(mount, name);
        file.allocate(FILE_BYTES as u64).expect("allocates");
        file.sync().expect("flushes");
        model.files.push(Modelled::flushed(vec![0; FILE_BYTES]));
        let number = model.files.len() - 1;
        model.change(|names| {
            names.insert(name, number);
        });
        return;
    };
    let file = mount.open(path(name), Open::Existing).expect("is there");
    match rng.weighted(&[50, 20, 10, 5, 15]) {
        0 => {
            let at = rng.below(FILE_BYTES);
            let len = rng.below(FILE_BYTES - at + 1);
            let byte = rng.below(BYTES) as u8;
            file.write_all_at(&vec![byte; len], at as u64).expect("writes");
            let modelled = &mut model.files[number];
            modelled.now[at..at + len].fill(byte);
            for possible in &mut modelled.possible[at..at + len] {
                *possible |= 1 << byte;
            }
        }
        1 => {
            file.sync().expect("flushes");
            model.files[number] = Modelled::flushed(model.files[number].now.clone());
        }
        2 => {
            let to = rng.pick(&NAMES);
            mount.rename(path(name), path(to)).expect("renames");
            if to != name {
                model.change(|names| {
                    names.remove(name);
                    names.insert(to, number);
                });
            }
        }
        3 => {
            mount.remove(path(name)).expect("removes");
            model.change(|names| {
                names.remove(name);
            });
        }
        _ => {
            mount.sync_dir(path("/d")).expect("flushes");
            model.names.drain(..model.names.len() - 1);
        }
    }
}

/// The disk is one of those that the model allows; the model becomes that one.
fn settle(model: &mut Model, mount: &Arc<dyn Disk>, seed: u64) {
    let listed = mount.list(path("/d")).expect("lists");
    let found: BTreeMap<&str, Vec<u8>> = NAMES
        .iter()
        .filter(|name| mount.exists(path(name)))
        .map(|name| (*name, content(mount, name)))
        .collect();
    assert_eq!(listed.len(), found.len());
    let fits = |names: &&Names| {
        names.keys().eq(found.keys())
            && names.iter().all(|(name, number)| {
                let possible = &model.files[*number].possible;
                let bytes = &found[name];
                bytes.len() == possible.len()
                    && bytes.iter().zip(possible).all(|(byte, any)| any >> byte & 1 == 1)
            })
    };
    let Some(names) = model.names.iter().find(fits).cloned() else {
        panic!("seed {seed}: {listed:?} is none of {:?}", model.names);
    };
    for (name, number) in &names {
        model.files[*number] = Modelled::flushed(found[name].clone());
    }
    model.names = vec![names];
}

#[test]
fn flushed_data_survives_and_no_data_appears() {
    for seed in 0..2_000 {
        let (disk, mut mount) = disk(seed);
        mount.create_dir(path("/d")).expect("creates");
        mount.sync_dir(path("/")).expect("flushes");
        let mut model = Model { files: Vec::new(), names: vec![Names::new()] };
        let mut rng = Rng::new(seed ^ 0x5eed);
        for _ in 0..3 {
            for _ in 0..rng.below(20) {
                step(&mut model, &mount, &mut rng);
            }
            if rng.chance(30) {
                mount = after_kill(&disk);
                for (name, number) in model.now() {
                    assert_eq!(content(&mount, name), model.files[*number].now, "seed {seed}");
                }
                assert_eq!(mount.list(path("/d")).expect("lists").len(), model.now().len());
            } else {
                mount = after_power_loss(&disk);
                settle(&mut model, &mount, seed);
            }
        }
    }
}

#[test]
fn a_seed_means_the_same_disk_for_ever() {
    let run = |seed: u64| {
        let (disk, mount) = disk(seed);
        mount.create_dir(path("/d")).expect("creates");
        mount.sync_dir(path("/")).expect("flushes");
        let mut model = Model { files: Vec::new(), names: vec![Names::new()] };
        let mut rng = Rng::new(9);
        for _ in 0..40 {
            step(&mut model, &mount, &mut rng);
        }
        disk.power_loss();
        (disk.image_digest(), disk.stats())
    };
    for seed in 0..50 {
        assert_eq!(run(seed), run(seed));
    }
    let digests: BTreeSet<u64> = (0..50).map(|seed| run(seed).0).collect();
    assert!(digests.len() > 20, "another seed means another disk");
}
