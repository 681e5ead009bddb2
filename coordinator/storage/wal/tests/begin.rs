//! Folders of a restore, interrupted at any step: either all folders are complete or no node starts, and the
//! next restore finishes the work.

mod bench;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bench::live;
use rowlock_env::disk::Dir;
use rowlock_proto::{ClusterId, NodeId};
use rowlock_state::Machine;
use rowlock_wal::entry::Member;
use rowlock_wal::{Begun, Identity, Membership, Storage, StorageError, begin_all, begin_with_state};
use rowlock_world::disk::HostDisk;
use rowlock_world::rng::Rng;

const PATHS: [&str; 3] = ["/node-1", "/node-2", "/node-3"];

fn restore(cluster: ClusterId) -> Result<Begun, StorageError> {
    let member = || Member { peer_addr: "a:1".to_owned(), client_addr: "a:2".to_owned() };
    let frozen = Machine::new().freeze();
    let fill = |number: usize| {
        let identity = Identity { cluster: "test".to_owned(), node: NodeId(number as u64 + 1) };
        let nodes = (1..=3).map(|node| (node, member())).collect();
        let membership = Membership { configs: vec![[1, 2, 3].into()], nodes };
        let body = |out: &mut dyn std::io::Write| frozen.encode(&mut &mut *out);
        begin_with_state(Path::new(PATHS[number]), &identity, cluster, membership, body)
    };
    begin_all(&PATHS.map(Path::new), fill)
}

/// Starts each node. Returns the cluster of its folder, or `None` for a half restored folder.
async fn start_all() -> Vec<Option<Option<ClusterId>>> {
    let mut found = Vec::new();
    for (number, path) in PATHS.iter().enumerate() {
        let identity = Identity { cluster: "test".to_owned(), node: NodeId(number as u64 + 1) };
        let opened = Storage::open(Path::new(path), identity, Arc::new(|_| {}), Arc::default()).await;
        found.push(match opened {
            Ok(opened) => {
                let cluster = opened.folder.cluster();
                opened.snapshots.close();
                opened.log.close().await;
                Some(cluster)
            }
            Err(StorageError::HalfRestored(_)) => None,
            Err(other) => panic!("{path}: {other}"),
        });
    }
    found
}

/// Copies the files at each cut: a second restore runs on a copy, and nodes start on another copy.
#[test]
fn a_restore_killed_anywhere_leaves_no_voter_that_starts_empty() {
    let (first, second) = (ClusterId(1), ClusterId(2));
    let (mut refused, mut finished, mut whole) = (0, 0, 0);
    let power_loss: fn(&HostDisk) = |disk| {
        let _ = disk.power_loss();
    };
    for end in [HostDisk::process_died, power_loss] {
        for n in 1.. {
            let interrupted = || {
                let disk = HostDisk::new(Rng::new(n));
                let gone = Arc::new(AtomicBool::new(false));
                let cut = gone.clone();
                disk.cut_power_at_op(n, Box::new(move || cut.store(true, Ordering::Relaxed)));
                let done =
                    live(&disk, 1, &AtomicBool::new(false), async { restore(first).is_ok() }, || end(&disk));
                assert_eq!(done, Some(!gone.load(Ordering::Relaxed)));
                disk.boot();
                (disk, done == Some(true))
            };
            let never = AtomicBool::new(false);
            let (disk, done) = interrupted();
            let first_is_begun = async {
                Dir::open(Path::new(PATHS[0]))
                    .and_then(|dir| dir.list())
                    .is_ok_and(|names| names.contains(&"wal".to_owned()))
            };
            let is_begun = live(&disk, 2, &never, first_is_begun, || ());
            if is_begun == Some(true) {
                let started = live(&disk, 3, &never, start_all(), || ()).expect("it ends");
                assert!(!started.contains(&Some(None)), "operation {n}: an empty voter: {started:?}");
                if started.contains(&Some(Some(first))) {
                    whole += 1;
                } else {
                    refused += 1;
                }
            }
            let (disk, _) = interrupted();
            let again = live(&disk, 4, &never, async { restore(second) }, || ()).expect("it ends");
            let cluster = match again {
                Ok(Begun::Filled) => second,
                Ok(Begun::AlreadyFilled(cluster)) => {
                    finished += 1;
                    cluster
                }
                // The first restore had finished.
                Err(StorageError::NotEmpty(_)) => first,
                Err(other) => panic!("operation {n}: {other}"),
            };
            let started = live(&disk, 5, &never, start_all(), || ()).expect("it ends");
            assert_eq!(started, vec![Some(Some(cluster)); 3], "operation {n}");
            if done {
                break;
            }
        }
    }
    assert!(
        refused > 20 && finished > 2 && whole > 2,
        "{refused} refused, {finished} finished, {whole} whole"
    );
}

#[test]
fn a_restore_beside_a_folder_with_other_content_changes_nothing() {
    let disk = HostDisk::new(Rng::new(1));
    let never = AtomicBool::new(false);
    let test = async {
        let other = Dir::create(Path::new(PATHS[1])).expect("is new");
        other.write_atomic("notes", b"mine").expect("writes");
        assert!(matches!(restore(ClusterId(1)), Err(StorageError::NotEmpty(_))));
        assert!(Dir::open(Path::new(PATHS[0])).expect("is there").list().expect("lists").is_empty());
    };
    live(&disk, 1, &never, test, || ()).expect("it ends");
}
