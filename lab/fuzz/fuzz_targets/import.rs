//! A snapshot file of Apache ZooKeeper, read like `rowlock import`: the unchanged file, and again with a
//! corrected checksum to reach the code after the checksum. Then the plan of the import.
//!
//! Nothing may panic or take more memory than the file's size justifies, whatever lengths and counts the file
//! claims.

#![cfg_attr(feature = "libfuzzer", no_main)]

use std::path::PathBuf;
use std::sync::OnceLock;

use rowlock_fuzz::{fuzz_target, within_worth};

/// The readers are part of the program, which is not a library.
#[allow(dead_code, reason = "modules of the program; this target uses a part")]
#[path = "../../../cli/src/import"]
mod import {
    pub mod limits;
    pub mod plan;
    pub mod record;
    pub mod snapshot;
    pub mod target;
}

use import::plan::{Pass, Plan};
use import::snapshot::{Snapshot, SnapshotError};
use import::target::Target;

static FILE: OnceLock<PathBuf> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let path = FILE.get_or_init(|| rowlock_fuzz::folder().join("snapshot.1"));
    std::fs::write(path, input).expect("the folder for temporary files is writable");
    // The reader's buffer is a quarter of a megabyte.
    let read = within_worth(input, 1 << 20, 256, || read(path));
    let Err(SnapshotError::Checksum { expected, found }) = read else { return };
    let sealed = replaced(input, &i64::from(expected).to_be_bytes(), &i64::from(found).to_be_bytes());
    std::fs::write(path, &sealed).expect("the folder for temporary files is writable");
    let _ = within_worth(input, 1 << 20, 256, || self::read(path));
});

fn read(path: &std::path::Path) -> Result<Plan, SnapshotError> {
    let snapshot = Snapshot::open(path)?;
    let target = Target { under: "/imported".to_owned(), versions_max: Some(1_000) };
    let mut plan = Plan::new(Pass::Before, 1_000);
    let mut records = snapshot.records();
    while let Some(record) = records.next()? {
        plan.add(&record, None, &target);
    }
    plan.finish(&target);
    Ok(plan)
}

/// Returns `bytes` with the last occurrence of `old` replaced.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(at) = bytes.windows(old.len()).rposition(|window| window == old) {
        bytes[at..at + old.len()].copy_from_slice(new);
    }
    bytes
}
