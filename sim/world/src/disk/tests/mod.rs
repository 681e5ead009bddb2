//! What the disk guarantees, and every failure that it may show.

mod crash_points;
mod faults;
mod lives;
mod model;
mod power_loss;
mod stories;

use std::path::Path;
use std::sync::Arc;

use rowlock_env::world::{Disk, DiskFile, Open};

use super::HostDisk;
use crate::rng::Rng;

/// Seeds that a test tries when it looks for all that can happen.
const SEEDS: u64 = 400;

fn disk(seed: u64) -> (Arc<HostDisk>, Arc<dyn Disk>) {
    let disk = HostDisk::new(Rng::new(seed));
    let mount = disk.mount();
    (disk, mount)
}

fn path(name: &str) -> &Path {
    Path::new(name)
}

fn create(mount: &Arc<dyn Disk>, name: &str) -> Arc<dyn DiskFile> {
    mount.open(path(name), Open::New).expect("is new")
}

/// A file whose name and content are durable.
fn durable(mount: &Arc<dyn Disk>, name: &str, content: &[u8]) -> Arc<dyn DiskFile> {
    let file = create(mount, name);
    file.write_all_at(content, 0).expect("writes");
    file.sync().expect("flushes");
    mount.sync_dir(path(name).parent().expect("is in a directory")).expect("flushes");
    file
}

fn content(mount: &Arc<dyn Disk>, name: &str) -> Vec<u8> {
    let file = mount.open(path(name), Open::Existing).expect("is there");
    let mut bytes = vec![0xee; file.size().expect("size") as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("reads"), bytes.len());
    bytes
}

/// Power lost and back: what the next process sees.
fn after_power_loss(disk: &Arc<HostDisk>) -> Arc<dyn Disk> {
    disk.power_loss();
    disk.boot();
    disk.mount()
}

fn after_kill(disk: &Arc<HostDisk>) -> Arc<dyn Disk> {
    disk.process_died();
    disk.boot();
    disk.mount()
}
