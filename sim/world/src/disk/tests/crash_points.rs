//! The power goes at one exact operation: every step of a program is tried.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;
use std::{io, net};

use rowlock_env::disk::Dir;
use rowlock_env::world::{self, Boxed, Conduit, Port, TaskId, TimerId, World};

use super::*;

struct OnlyADisk(Arc<dyn Disk>);

impl World for OnlyADisk {
    fn now_ns(&self) -> u64 {
        unreachable!("files need no clock")
    }
    fn wall_ms(&self) -> i64 {
        unreachable!("files need no clock")
    }
    fn set_timer(&self, _: u64, _: &Waker) -> TimerId {
        unreachable!("files need no timers")
    }
    fn cancel_timer(&self, _: TimerId) {
        unreachable!("files need no timers")
    }
    fn spawn(&self, _: &'static str, _: Boxed<()>) -> TaskId {
        unreachable!("files need no tasks")
    }
    fn abort(&self, _: TaskId) {
        unreachable!("files need no tasks")
    }
    fn random(&self, _: &mut [u8]) {
        unreachable!("files need no randomness")
    }
    fn blocking_work(&self, _: &str) -> Boxed<()> {
        unreachable!("files need no tasks")
    }
    fn connect(&self, _: &str, _: Duration) -> Boxed<io::Result<Arc<dyn Conduit>>> {
        unreachable!("files need no network: {:?}", net::Ipv4Addr::LOCALHOST)
    }
    fn listen(&self, _: &str) -> io::Result<Arc<dyn Port>> {
        unreachable!("files need no network")
    }
    fn disk(&self) -> Arc<dyn Disk> {
        self.0.clone()
    }
}

/// Runs production code on the disk as the process that lives sees it.
fn inside<T>(disk: &Arc<HostDisk>, f: impl FnOnce() -> T) -> T {
    let _stay = world::enter(Arc::new(OnlyADisk(disk.mount())));
    f()
}

/// Cuts the power at each operation of `work` in turn, under several seeds, and looks at what is left.
/// `prepared` runs before, `look` gets whether `work` was done.
fn at_every_cut(
    prepare: impl Fn(),
    work: impl Fn() -> io::Result<()>,
    look: impl Fn(bool),
    end: fn(&HostDisk),
) {
    for seed in 0..60 {
        for n in 1.. {
            let disk = HostDisk::new(Rng::new(seed * 1_000 + n));
            inside(&disk, &prepare);
            let called = Arc::new(AtomicU64::new(0));
            let calls = called.clone();
            let seen_from = disk.clone();
            disk.cut_power_at_op(
                n,
                Box::new(move || {
                    calls.fetch_add(1, Ordering::Relaxed);
                    seen_from.stats(); // the lock is free
                }),
            );
            let done = inside(&disk, &work);
            let cut = called.load(Ordering::Relaxed) == 1;
            assert_eq!(done.is_err(), cut, "seed {seed}, operation {n}: {done:?}");
            if let Err(error) = &done {
                assert!(error.to_string().contains("the power is gone"), "{error}");
                let again = inside(&disk, || Dir::open(path("/")).map(drop));
                assert!(again.is_err(), "nothing works until the next start");
            }
            end(&disk);
            disk.boot();
            inside(&disk, || look(done.is_ok()));
            if !cut {
                assert!(n > 3, "there were operations to cut at");
                break;
            }
        }
    }
}

fn power_loss(disk: &HostDisk) {
    disk.power_loss();
}

fn root() -> Dir {
    Dir::open(path("/")).expect("is there")
}

#[test]
fn an_atomic_write_leaves_the_old_or_the_new_file() {
    let (old, new) = (vec![b'o'; 3_000], vec![b'n'; 5_000]);
    for end in [power_loss, HostDisk::process_died] {
        let seen = (AtomicU64::new(0), AtomicU64::new(0));
        at_every_cut(
            || root().write_atomic("f", &old).expect("writes"),
            || root().write_atomic("f", &new),
            |done| {
                let found = root().read("f").expect("is there");
                assert!(found == new || (!done && found == old), "{done} {}", found.len());
                let counter = if found == new { &seen.0 } else { &seen.1 };
                counter.fetch_add(1, Ordering::Relaxed);
            },
            end,
        );
        assert!(seen.0.into_inner() > 20 && seen.1.into_inner() > 20);
    }
}

#[test]
fn a_write_that_skips_its_flush_is_caught() {
    let hasty = |content: &[u8]| {
        let file = root().create_new("f.tmp")?;
        file.write_all_at(content, 0)?;
        root().rename("f.tmp", "f")?;
        root().sync()
    };
    let broken = AtomicU64::new(0);
    at_every_cut(
        || root().write_atomic("f", b"old").expect("writes"),
        || hasty(b"new"),
        |_| {
            let found = root().read("f").expect("is there");
            broken.fetch_add(u64::from(found != b"old" && found != b"new"), Ordering::Relaxed);
        },
        power_loss,
    );
    assert!(broken.into_inner() > 10);
}

#[test]
fn folders_created_durably_survive_a_power_loss() {
    at_every_cut(
        || {},
        || Dir::create(path("/a/b/c")).map(drop),
        |done| {
            assert!(!done || Dir::open(path("/a/b/c")).is_ok());
            Dir::create(path("/a/b/c")).expect("can be repeated");
        },
        power_loss,
    );
}

#[test]
fn a_folder_found_after_a_kill_is_as_durable_as_one_just_made() {
    for seed in 0..60 {
        for n in 1..=6 {
            let disk = HostDisk::new(Rng::new(seed * 100 + n));
            disk.cut_power_at_op(n, Box::new(|| {}));
            let made = inside(&disk, || Dir::create(path("/a/b/c")).is_ok());
            assert!(!made, "there are six operations");
            disk.process_died();
            disk.boot();
            inside(&disk, || Dir::create(path("/a/b/c")).map(drop)).expect("can be repeated");
            assert!(after_power_loss(&disk).is_dir(path("/a/b/c")), "seed {seed}, operation {n}");
        }
    }
}

#[test]
fn a_log_keeps_flushed_records_at_every_power_cut() {
    const RECORD: usize = 700;
    let flushed = AtomicU64::new(0);
    at_every_cut(
        || {
            root()
                .create_new("log")
                .and_then(|log| log.allocate(1 << 16).and_then(|()| log.sync_all()))
                .expect("makes");
            root().sync().expect("flushes");
        },
        || {
            flushed.store(0, Ordering::Relaxed);
            let log = root().open_file("log")?;
            for n in 1..6u8 {
                log.write_all_at(&[n; RECORD], u64::from(n - 1) * RECORD as u64)?;
                log.sync_data()?;
                flushed.store(u64::from(n), Ordering::Relaxed);
            }
            Ok(())
        },
        |_| {
            let bytes = root().read("log").expect("is there");
            assert_eq!(bytes.len(), 1 << 16);
            let flushed = flushed.load(Ordering::Relaxed) as usize;
            for (index, record) in bytes.chunks(RECORD).take(flushed).enumerate() {
                assert_eq!(record, [index as u8 + 1; RECORD]);
            }
            assert!(bytes[(flushed + 1) * RECORD..].iter().all(|byte| *byte == 0));
        },
        power_loss,
    );
}

#[test]
fn a_planned_cut_is_forgotten_with_the_process_and_by_healing() {
    let (disk, mount) = disk(1);
    let plan = || disk.cut_power_at_op(1, Box::new(|| panic!("is not called")));
    plan();
    disk.heal();
    create(&mount, "/f");
    plan();
    let mount = after_kill(&disk);
    create(&mount, "/g");
    assert_eq!(disk.stats().cuts, 0);
}
